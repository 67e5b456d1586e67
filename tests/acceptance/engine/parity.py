"""The reference engine gives the tokens of Transformers. Greedy, float32, real prompts.

    python -m tests.acceptance.engine.parity [--device cuda] [--prompts 100] [--tokens 128] [--case NAME]

Transformers runs each prompt alone in a greedy loop with its own cache, once. The engine runs the same prompts alone;
in mixed batches of 8 with chunked prefill; with so few KV blocks that requests are preempted, and recomputed or swapped
to host memory; a second time, with all prompts in the prefix cache; and with other block sizes. A difference is excused
only if Transformers' two best log-probabilities are within 1e-4; the prompt is not compared further. The prompts are
those of `prompts.json` and passages of this project's documentation, of 5 to 400 tokens.
"""

import argparse
import dataclasses
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from bakeoff.reference_engine.core.config import DeviceName, EngineConfig
from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.engine.beam_engine import BeamSearchEngine
from bakeoff.reference_engine.offline import load_engine
from benchmarks.bars import Bars, model_argument
from benchmarks.engine.prompts import read_prompts

BLOCK_SIZES = (1, 7, 32, 128)
CASES = ("alone", "mixed", "preempted", "swapped", "cached", *(f"blocks of {size}" for size in BLOCK_SIZES))
EXCUSED_MARGIN = 1e-4  # natural-log units
BATCH = 8


@dataclasses.dataclass(frozen=True)
class Truth:
    """Tokens that Transformers chose, and the gap between its two best log-probabilities at each position."""

    tokens: list[int]
    margins: list[float]


@dataclasses.dataclass
class Tally:
    """Counts of equal, excused and different prompts, and of the engine's work on them."""

    equal: int = 0
    excused: int = 0
    different: int = 0
    tokens: int = 0
    seconds: float = 0.0
    preemptions: int = 0
    swaps: int = 0
    cached_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to run all prompts.

    Attributes:
        config: of the engine.
        batch: prompts that are queued together.
        passes: how often all prompts are run; only the last pass counts.
    """

    config: EngineConfig
    batch: int = BATCH
    passes: int = 1


@torch.inference_mode()
def transformers_greedy(model: PreTrainedModel, prompt: list[int], length: int) -> Truth:
    ids, cache = torch.tensor([prompt], device=model.device), None
    tokens, margins = [], []
    for _ in range(length):
        answer = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = answer.past_key_values
        best = answer.logits[0, -1].log_softmax(-1).topk(2)
        tokens.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        ids = best.indices[:1][None]
    return Truth(tokens, margins)


def compare(truth: Truth, tokens: list[int], tally: Tally) -> None:
    tally.tokens += len(tokens)
    for place, (token, expected) in enumerate(zip(tokens, truth.tokens, strict=True)):
        if token != expected:
            excused = truth.margins[place] <= EXCUSED_MARGIN
            tally.excused += excused
            tally.different += not excused
            return
    tally.equal += 1


def answers(engine: BeamSearchEngine, prompts: list[list[int]], length: int, tally: Tally) -> list[list[int]]:
    """Output token ids of prompts that are queued together."""
    params, tokens = SamplingParams(max_tokens=length, temperature=0.0), [[] for _ in prompts]
    for number, prompt in enumerate(prompts):
        engine.add(Request(str(number), prompt, params))
    while engine.has_work:
        report = engine.step()
        tally.preemptions += report.preemptions
        tally.swaps += report.swaps
        tally.cached_tokens += report.cached_tokens
        for output in report.outputs:
            tokens[int(output.request_id)].append(output.token.token_id)
    engine.check_integrity()
    return tokens


def run(case: Case, prompts: list[list[int]], truths: list[Truth]) -> Tally:
    engine, tally, length = load_engine(case.config), Tally(), len(truths[0].tokens)
    for _ in range(case.passes):
        tally, began = Tally(), time.perf_counter()
        for start in range(0, len(prompts), case.batch):
            outputs = answers(engine, prompts[start : start + case.batch], length, tally)
            for truth, tokens in zip(truths[start:], outputs, strict=False):
                compare(truth, tokens, tally)
        tally.seconds = time.perf_counter() - began
    return tally


def truths_of(model_path: str, device: str, prompts: list[list[int]], tokens: int) -> list[Truth]:
    began = time.perf_counter()
    model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    model.to(device)
    truths = [transformers_greedy(model, prompt, tokens) for prompt in prompts]
    lengths = f"{min(map(len, prompts))} to {max(map(len, prompts))} tokens"
    print(f"transformers: {len(prompts)} prompts of {lengths}, {tokens} more each, {time.perf_counter() - began:.1f} s")
    return truths


def cases_of(model: str, device: DeviceName, longest: int) -> dict[str, Case]:
    common = EngineConfig(
        model=model, dtype="float32", device=device, max_model_len=2048, num_blocks=1024, enable_prefix_caching=False
    )
    mixed = dataclasses.replace(common, max_num_seqs=BATCH, max_num_batched_tokens=48)
    # 1.2 times the blocks of the longest sequence, so that eight sequences preempt each other.
    tight = dataclasses.replace(mixed, num_blocks=int(1.2 * longest / common.block_size))
    # All prompts and answers stay in the cache until the second pass.
    roomy = dataclasses.replace(mixed, num_blocks=8192, enable_prefix_caching=True)
    sizes = {
        f"blocks of {size}": dataclasses.replace(mixed, block_size=size, num_blocks=BATCH * (longest // size + 1))
        for size in BLOCK_SIZES
    }
    return {
        "alone": Case(common, batch=1),
        "mixed": Case(mixed),
        "preempted": Case(tight),
        "swapped": Case(dataclasses.replace(tight, preemption="swap")),
        "cached": Case(roomy, passes=2),
        **{name: Case(config) for name, config in sizes.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--case", action="append", choices=CASES, help="only this one; may be given several times")
    options = parser.parse_args()
    prompts = read_prompts(options.model, options.prompts)
    truths = truths_of(options.model, options.device, prompts, options.tokens)
    bars, tallies = Bars(), dict[str, Tally]()
    columns = ("equal", "excused", "different", "preemptions", "swaps", "cached_tokens")
    print(f"{'case':<16}" + "".join(f"{name:>15}" for name in (*columns, "seconds")))
    longest = max(map(len, prompts)) + options.tokens
    cases = cases_of(options.model, options.device, longest)
    for name in options.case or CASES:
        case = cases[name]
        tally = tallies[name] = run(case, prompts, truths)
        counts = "".join(f"{getattr(tally, column):>15}" for column in columns)
        print(f"{name:<16}{counts}{tally.seconds:>15.1f}", flush=True)
        bars.add(f"parity_{name.replace(' ', '_')}", tally.equal + tally.excused, "==", len(prompts))
    excused = sum(tally.excused for tally in tallies.values()) / (len(tallies) * len(prompts))
    bars.add("excused_share", excused, "<=", 0.05)
    if "preempted" in tallies:
        bars.add("preemptions_forced", tallies["preempted"].preemptions, ">=", 1)
    if "swapped" in tallies:
        bars.add("swaps_forced", tallies["swapped"].swaps, ">=", 1)
    if "cached" in tallies:
        bars.add("share_of_prompts_cached", tallies["cached"].cached_tokens / sum(map(len, prompts)), ">=", 0.8)
    bars.finish()


if __name__ == "__main__":
    main()
