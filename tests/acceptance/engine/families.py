"""Every model family gives the tokens of Transformers. Greedy, float32, random tiny models.

    python -m tests.acceptance.engine.families [--prompts 20] [--tokens 64] [--only NAME] [--case NAME]

Transformers runs each prompt alone. The engine runs them alone and in batches, with several block sizes and chunk
budgets, with so few blocks that requests are recomputed or swapped, and with several processes (over gloo, or over NCCL
on as many GPUs; skipped on fewer): tensor, pipeline, expert and context parallelism, as far as a family can be parted.
``--case parallel`` runs these only. Each case runs twice, the second time with cached prefixes. A
difference is excused only if Transformers' two best log-probabilities are within 1e-4; the prompt is not compared
further. The last line of the output is one JSON object; the exit status is 0 if every goal is met.
"""

import argparse
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.loading.safetensors import read_config
from bakeoff.reference_engine.models.config_readers import MoeConfig
from bakeoff.reference_engine.offline import load_engine
from benchmarks.bars import Bars
from tests.acceptance.engine.parity import Tally, Truth, compare, transformers_greedy
from tests.reference_engine.conftest import write_checkpoint
from tests.reference_engine.models.tiny_families import (
    FAMILIES,
    VOCAB_SIZE,
    WINDOW,
    answers,
    engine_config,
    make_family,
)

LONGEST = 150  # tokens of a prompt
PARALLEL = {
    "tensor 2": {"tensor_parallel_size": 2}, "pipeline 2": {"pipeline_parallel_size": 2},
    "2 stages of 2": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    "whole experts 2": {"tensor_parallel_size": 2, "expert_parallel": True},
    "contexts 2": {"context_parallel_size": 2, "max_num_batched_tokens": 512},
}  # fmt: skip
CASES = {
    "alone": {"max_num_seqs": 1, "max_num_batched_tokens": 512, "block_size": 16},
    "blocks of 16": {"max_num_batched_tokens": 64, "block_size": 16},
    "blocks of 1": {"max_num_batched_tokens": 16, "block_size": 1, "num_blocks": 2048},
    "preempted, 16": {"max_num_batched_tokens": 32, "block_size": 16, "num_blocks": None},
    "preempted, 1": {"max_num_batched_tokens": 16, "block_size": 1, "num_blocks": None},
    "swapped, 16": {"max_num_batched_tokens": 32, "block_size": 16, "num_blocks": None, "preemption": "swap"},
    "swapped, 1": {"max_num_batched_tokens": 16, "block_size": 1, "num_blocks": None, "preemption": "swap"},
    **{name: {"max_num_batched_tokens": 64, "block_size": 16} | settings for name, settings in PARALLEL.items()},
}


def make_prompts(count: int) -> list[list[int]]:
    """Prompts of 1 to LONGEST tokens; every second one shares a prefix with the one two before it."""
    rng = random.Random(1)
    prompts: list[list[int]] = []
    for number in range(count):
        prefix = prompts[number - 2] if number % 2 and number > 2 else []
        prefix = prefix[: rng.randrange(LONGEST // 2)]
        prompts.append(prefix + [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(1, LONGEST - len(prefix)))])
    return prompts


def fewest_blocks(directory: Path, block_size: int, budget: int, longest: int) -> int:
    """So few that eight requests preempt each other: blocks for 1.5 sequences, or for little more than one window."""
    windows = read_config(directory).windows
    if windows and None not in windows:
        return -(-(WINDOW + budget) // block_size) + 2  # blocks outside the window are freed
    return int(1.5 * longest / block_size)


def run(
    directory: Path, case: str, prompts: list[list[int]], truths: list[Truth], device: str
) -> tuple[Tally, Counter]:
    settings = CASES[case] | {"device": device}
    length = len(truths[0].tokens)
    if settings.get("num_blocks", 1) is None:
        longest = max(map(len, prompts)) + length
        budget, size = settings["max_num_batched_tokens"], settings["block_size"]
        settings["num_blocks"] = fewest_blocks(directory, size, budget, longest)
    engine = load_engine(engine_config(directory, **settings))
    tally, counts = Tally(), Counter()
    began = time.perf_counter()
    for _ in range(2):
        outputs, events = answers(engine, prompts, length)
        counts += events
        for truth, tokens in zip(truths, outputs, strict=True):
            compare(truth, tokens, tally)
    tally.seconds = time.perf_counter() - began
    engine.close()
    return tally, counts


def suits(directory: Path, case: str, device: str) -> bool:
    """Whether a family can be parted as a case wants, and there are enough GPUs."""
    settings, model = CASES[case], read_config(directory)
    if settings.get("expert_parallel") and not isinstance(model, MoeConfig):
        return False
    config = EngineConfig(model=str(directory), **settings)
    if config.pipeline_parallel_size > 1 and (model.num_hidden_layers < 2 or model.cla_factor > 1):
        return False
    return device == "cpu" or config.num_ranks <= torch.cuda.device_count()


def check(name: str, cases: list[str], prompts: list[list[int]], length: int, device: str, bars: Bars) -> Counter:
    """Compare one family in some cases; prints a line for each."""
    total = Counter()
    with tempfile.TemporaryDirectory() as folder:
        model = make_family(name)
        directory = write_checkpoint(Path(folder), model)
        truths = [transformers_greedy(model, prompt, length) for prompt in prompts]
        for case in filter(lambda case: suits(directory, case, device), cases):
            tally, counts = run(directory, case, prompts, truths, device)
            total += counts + Counter(different=tally.different, excused=tally.excused)
            columns = [tally.equal, tally.excused, tally.different, *(counts[key] for key in COUNTED)]
            print(f"{name:<30}{case:<19}" + "".join(f"{value:>9}" for value in columns) + f"{tally.seconds:>8.1f}")
    bars.add(f"{name}: unexcused", total["different"], "==", 0)
    return total


COUNTED = ("preemptions", "swaps", "cached_tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--only", choices=FAMILIES)
    parser.add_argument("--case", choices=[*CASES, "parallel"])
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="of the engine; Transformers runs on the CPU"
    )
    options = parser.parse_args()
    prompts, bars = make_prompts(options.prompts), Bars()
    heads = ("equal", "excused", "differ", "preempt", "swap", "cached")
    print(f"{'family':<30}{'case':<19}" + "".join(f"{head:>9}" for head in heads) + f"{'seconds':>8}")
    cases = [*PARALLEL] if options.case == "parallel" else [options.case] if options.case else [*CASES]
    totals = {
        name: check(name, cases, prompts, options.tokens, options.device, bars)
        for name in ([options.only] if options.only else FAMILIES)
    }  # fmt: skip
    for key in COUNTED if not options.case else ():
        bars.add(f"families: fewest {key}", min(total[key] for total in totals.values()), ">=", 1)
    print(f"excused: {sum(total['excused'] for total in totals.values())}")
    bars.finish()


if __name__ == "__main__":
    main()
