"""The reference engine beside real vLLM and Transformers, without HTTP. Same weights, dtype, prompts, lengths.

64 prompt tokens, exactly 128 output tokens, greedy, at batch 1, 8 and 32. Each side is a process that lasts for the
whole run; the sides take turns, and each figure is the median of the rounds. The percentage is the share of the
bandwidth floor: steps that read every weight once at this machine's memory bandwidth.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch

from benchmarks.bars import Bars, model_argument
from benchmarks.engine.sides.side import Side, random_prompts

INPUT, OUTPUT = 64, 128
GOALS = {("vllm", 1): 1.2, ("vllm", 8): 1.3, ("vllm", 32): 1.2, ("transformers", 1): 1.8}


def tokens_per_s(side: Side, batch: int, seed: int) -> float:
    """Output tokens per second of one batch of random prompts."""
    return batch * OUTPUT / side.seconds(random_prompts(batch, INPUT, f"{batch} {seed}"), OUTPUT)


def read_bytes_per_s() -> float:
    """Bandwidth of memory reads: the best of five sums over 512 MiB."""
    memory = torch.ones(128 << 20, dtype=torch.float32)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        memory.sum()
        best = min(best, time.perf_counter() - began)
    return memory.nbytes / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    model_argument(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--sides", nargs="+", default=["ours", "vllm", "transformers"])
    options = parser.parse_args()
    weights = Path(options.model, "model.safetensors").stat().st_size
    floor = read_bytes_per_s() / weights
    sides = [Side(name, options.model, "bfloat16", max(options.batches)) for name in options.sides]
    rates: dict[tuple[str, int], list[float]] = {}
    for number in range(-1, options.rounds):
        for batch in options.batches:
            for side in sides if number % 2 else sides[::-1]:
                rate = tokens_per_s(side, batch, number)
                if number >= 0:
                    rates.setdefault((side.name, batch), []).append(rate)
    for side in sides:
        side.close()
    print(f"floor: {floor:.0f} steps/s\n{'batch':>5}  " + "".join(f"{side.name:>22}" for side in sides))
    for batch in options.batches:
        medians = {side.name: statistics.median(rates[side.name, batch]) for side in sides}
        print(f"{batch:>5}  " + "".join(f"{r:>10.0f} tok/s {r / batch / floor:4.0%}" for r in medians.values()))
    bars = Bars()
    for (name, batch), goal in GOALS.items():
        if (name, batch) in rates and "ours" in options.sides:
            ratios = [a / b for a, b in zip(rates["ours", batch], rates[name, batch], strict=True)]
            bars.add(f"over_{name}_at_{batch}", statistics.median(ratios), ">=", goal)
    bars.finish()


if __name__ == "__main__":
    main()
