"""Whether quantised answers depend on the load or on drafts: ``python -m benchmarks.quantisation.one_arithmetic``.

Greedy answers of the pulled model in bfloat16 on this CPU, one at a time, beside the same questions all at once, with
prompts cut into steps of 16 tokens, and with drafts. Not one may differ.
"""

import argparse
import os
from typing import Any

from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.offline import LLM, Completion
from benchmarks.bars import Bars

QUESTIONS = (
    "Explain how a heat pump works.", "Write a haiku about rain.", "List three uses of a brick.",
    "Why is the sky blue?",
    "Describe the water cycle in one paragraph.", "What is a monad?", "Give me a recipe for bread.",
    "Summarise the plot of Hamlet.", "How do vaccines work?", "Name five rivers in Europe.", "What causes inflation?",
    "Tell me about the moon.",
)  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "together": {},
    "cut": {"max_num_batched_tokens": 16},
    "drafts": {"speculation": "ngram:4"},
}


def answers(llm: LLM, *, one_by_one: bool = False) -> list[Completion]:
    """The answers to all questions."""
    params = SamplingParams(max_tokens=24, temperature=0.0, logprobs=0)
    if one_by_one:
        return [llm.generate([question], params)[0].completions[0] for question in QUESTIONS]
    return [answer.completions[0] for answer in llm.generate(QUESTIONS, params)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.environ.get("BAKEOFF_TEST_MODEL"), help="checkpoint folder")
    parser.add_argument("--method", action="append", help="of quantisation (default: int8 and int4)")
    options = parser.parse_args()
    bars = Bars()
    for method in options.method or ("int8", "int4"):
        common: dict[str, Any] = {
            "dtype": "bfloat16", "quantization": method, "num_blocks": 256, "enable_prefix_caching": False,
        }  # fmt: skip
        alone = answers(LLM(options.model, max_num_seqs=1, **common), one_by_one=True)
        for name, settings in SETTINGS.items():
            found = answers(LLM(options.model, max_num_seqs=16, **common, **settings))
            differing = sum(one.token_ids != other.token_ids for one, other in zip(alone, found, strict=True))
            print(f"{method} {name}: {differing} of {len(QUESTIONS)} answers differ from those alone", flush=True)
            bars.add(f"{method}_{name}_differing", differing, "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
