"""Decode speed of the packaged model with weights quantised at load, beside plain weights and GGUF blocks, on a CPU.

    python -m benchmarks.quantisation.cpu [--gguf FILE] [--dtype float32]

All sides decode in turns in one process: 200 prompt tokens, then 64 each, as in throughput.py, at batch 1 and 8. A
ratio is the median over rounds of the ratio to the plain weights in the same round. The blocks are the Q4_1 file that
the model is made from, with a Q8_0 embedding and head; quantisation at load leaves embedding and head plain. Perplexity
is that of this project's documentation.
"""

import argparse
import dataclasses
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from bakeoff.reference_engine.core.config import DtypeName, EngineConfig, QuantizationName
from bakeoff.reference_engine.core.quantization_names import MethodName
from bakeoff.reference_engine.offline import load_engine
from bakeoff.reference_engine.tools.evaluator import PerplexityMeter
from benchmarks.bars import Bars, model_argument
from benchmarks.engine.gguf import packaged_file
from benchmarks.engine.prompts import text
from benchmarks.engine.throughput import CONTEXT_TOKENS, NEW_TOKENS, PREFILL_TOKENS, time_engine

METHOD_NAMES: tuple[MethodName, ...] = ("int8", "int8-zp", "int4", "int4-zp")
GOALS = {"int8": 1.3, "int4": 1.6}
"""Least decode speed at batch 1 over that of plain weights in the same dtype."""
MAX_INT8_PERPLEXITY_CHANGE = 0.01


def sides_of(model: str, blocks: Path, dtype: DtypeName) -> Mapping[str, EngineConfig]:
    """Engine configs by name; plain weights first."""

    def config(path: str, quantization: QuantizationName) -> EngineConfig:
        return EngineConfig(
            model=path, dtype=dtype, quantization=quantization, device="cpu", num_blocks=512, max_model_len=2048,
            enable_prefix_caching=False,  # every round sends the same prompts
        )  # fmt: skip

    quantised = {name: config(model, name) for name in METHOD_NAMES}
    return {"plain": config(model, "none"), **quantised, "Q4_1 blocks": config(str(blocks), "stored")}


def perplexity(config: EngineConfig, tokens: int) -> float:
    meter = PerplexityMeter(dataclasses.replace(config, max_model_len=1024, num_blocks=None))
    return meter.measure(meter.tokenizer.encode(text())[:tokens]).perplexity


def compare(sides: Mapping[str, EngineConfig], options: argparse.Namespace) -> None:
    rates: dict[str, list[tuple[float, ...]]] = {name: [] for name in sides}
    engines = {name: load_engine(config) for name, config in sides.items()}
    for number in range(options.rounds + 1):
        for name, engine in engines.items():
            round_rates = (
                time_engine(engine, 1, CONTEXT_TOKENS, NEW_TOKENS).decode,
                time_engine(engine, 8, CONTEXT_TOKENS, NEW_TOKENS).decode,
                time_engine(engine, 1, PREFILL_TOKENS, 1).prefill,
            )
            if number:  # the first warms up
                rates[name].append(round_rates)
    del engines
    perplexities = {name: perplexity(config, options.perplexity) for name, config in sides.items()}
    print(
        f"{options.dtype}, {torch.get_num_threads()} threads; tokens/s (over plain), medians of {options.rounds} rounds"
    )
    print(f"{'weights':<14}" + "".join(f"{title:>18}" for title in ("decode 1", "decode 8", "prefill", "perplexity")))
    ratios: dict[str, list[float]] = {}
    for name, rounds in rates.items():
        pairs = list(zip(rounds, rates["plain"], strict=True))
        ratios[name] = [statistics.median(quantised[i] / plain[i] for quantised, plain in pairs) for i in range(3)]
        medians = (statistics.median(column) for column in zip(*rounds, strict=True))
        cells = "".join(f"{rate:>10.1f} ({ratio:4.2f})" for rate, ratio in zip(medians, ratios[name], strict=True))
        print(f"{name:<14}{cells}{perplexities[name]:>18.4f}")
    bars = Bars()
    for name, goal in GOALS.items():
        bars.add(f"{name}_decode_1_over_plain", ratios[name][0], ">=", goal)
    change = perplexities["int8"] / perplexities["plain"] - 1
    bars.add("int8_perplexity_change", change, "<=", MAX_INT8_PERPLEXITY_CHANGE)
    bars.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--gguf", type=Path, help="the same model in blocks")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--perplexity", type=int, default=4096, help="tokens of the text")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(sides_of(options.model, options.gguf or packaged_file(Path(folder)), options.dtype), options)


if __name__ == "__main__":
    main()
