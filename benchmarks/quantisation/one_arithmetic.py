"""Whether quantised answers depend on the load, on cuts, on the cache or on drafts.

    python -m benchmarks.quantisation.one_arithmetic [--prompts 100] [--weights int8] [--cache int4]

Greedy answers of the pulled model in bfloat16 on this CPU, one at a time, beside the same prompts all at once, with
prompts cut into steps of 16 tokens, with so few blocks that requests are preempted, with drafts, and behind cached
prefixes. Plain weights are measured, too: where attention in bfloat16 rounds differently in steps of another shape, as
torch's does and the engine's CPU kernel does not, quantised weights may differ in no more answers than they, within
chance (two standard deviations).
"""

import argparse
import itertools
import math
from typing import Any

from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.offline import LLM, Completion
from benchmarks.bars import Bars, model_argument
from benchmarks.engine.prompts import read_prompts

PLAIN = ("none", "auto")
"""Weights, keys and values as they are."""
SETTINGS: dict[str, dict[str, Any]] = {
    "together": {},
    "cut": {"max_num_batched_tokens": 16},
    "preempted": {"num_blocks": 60},
    "drafts": {"speculation": "ngram:4"},
    "cached": {"enable_prefix_caching": True},
}
PASSES = {"cached": 2}


def answers(llm: LLM, prompts: list[list[int]], *, one_by_one: bool = False, passes: int = 1) -> list[Completion]:
    """The answers of the last pass to all prompts."""
    params = SamplingParams(max_tokens=24, temperature=0.0)
    if one_by_one:
        return [llm.generate([prompt], params)[0].completions[0] for prompt in prompts]
    found: list[Completion] = []
    for _ in range(passes):
        found = [answer.completions[0] for answer in llm.generate(prompts, params)]
    return found


def main() -> None:
    """Measures every format and setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--weights", action="append", help="methods of quantisation (default: int8 and int4)")
    parser.add_argument("--cache", action="append", help="formats of keys and values (default: auto, int8 and int4)")
    options = parser.parse_args()
    prompts = read_prompts(options.model, options.prompts)
    bars = Bars()
    plain: dict[str, int] = {}
    formats = itertools.product(options.weights or ("int8", "int4"), options.cache or ("auto", "int8", "int4"))
    for weights, cache in (PLAIN, *formats):
        common: dict[str, Any] = {
            "dtype": "bfloat16", "quantization": weights, "kv_cache_dtype": cache, "num_blocks": 1024,
            "enable_prefix_caching": False,
        }  # fmt: skip
        alone = answers(LLM(options.model, max_num_seqs=1, **common), prompts, one_by_one=True)
        for name, settings in SETTINGS.items():
            llm = LLM(options.model, max_num_seqs=16, **common | settings)
            found = answers(llm, prompts, passes=PASSES.get(name, 1))
            differing = sum(one.token_ids != other.token_ids for one, other in zip(alone, found, strict=True))
            print(f"weights {weights}, cache {cache}, {name}: {differing} of {len(prompts)} answers differ", flush=True)
            plain.setdefault(name, differing)
            if (weights, cache) != PLAIN:
                most = plain[name] + 2 * math.sqrt(2 * plain[name])
                bars.add(f"{weights}_{cache}_{name}_differing", differing, "<=", most)
    bars.finish()


if __name__ == "__main__":
    main()
