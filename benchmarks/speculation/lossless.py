"""Bar: answers with drafts are those without, token for token. Real prompts, all kinds of sampling, float32.

    python -m benchmarks.speculation.lossless [--device cuda [--batch-invariant]] [--prompts 200] [--tokens 128]

Each case runs the same requests with another way of drafting or under other pressure: room for all; few blocks, so that
requests are preempted, and computed again or swapped; small steps, which cut prompts; a second time, when the prefix
cache has them; a window. The draft model is the model itself unless ``--draft`` names another. A difference is excused
only in greedy decoding, where the two best log-probabilities are within 1e-4; that request is then compared no further.
"""

import argparse
import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from benchmarks.bars import Bars, model_argument
from benchmarks.speculation.prompts import FAMILIES, prompts_of
from reference_engine.engine.request import Request, SamplingParams, Watermark
from reference_engine.offline import LLM

EXCUSED_MARGIN = 1e-4  # natural-log units
GRAMMAR = r"[A-Za-z ,.\n]{40,}"
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 0.8},
    {"temperature": 0.7, "top_k": 40},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.9, "min_p": 0.05},
    {"temperature": 0.7, "repetition_penalty": 1.2},
    {"temperature": 0.0, "frequency_penalty": 0.4, "logprobs": 2},
    {"temperature": 0.8, "grammar": GRAMMAR},
    {"temperature": 0.8, "watermark": Watermark()},
    {"temperature": 0.8, "min_tokens": 40},
]
PRESSURES: dict[str, dict[str, Any]] = {
    "room for all": {},
    "preempted": {"max_num_seqs": 8, "num_blocks": 90},
    "swapped": {"max_num_seqs": 8, "num_blocks": 90, "preemption": "swap"},
    "cut prompts": {"max_num_batched_tokens": 48},
}
WINDOW = {"attention_window": 128, "enable_prefix_caching": False}
OWN_BASELINE = ("window", "cut prompts")
"""Cases that change sums without any draft: a shorter piece of a prompt is multiplied in another order."""


def answer(llm: LLM, prompts: list[list[int]], num_tokens: int, times: int = 1) -> tuple[list[list[Any]], Counter[str]]:
    """Tokens and margins of each request, the last time; and what happened."""
    counts = Counter[str]()
    told: dict[str, list[Any]] = {}
    eos = frozenset(llm._eos_token_ids)  # noqa: SLF001
    for _ in range(times):
        told = {}
        for number, prompt in enumerate(prompts):
            params = SamplingParams(
                max_tokens=num_tokens, seed=number, stop_token_ids=eos, **SAMPLING[number % len(SAMPLING)]
            )
            if params.grammar is not None:
                params = dataclasses.replace(params, grammar=llm.engine.grammars.of_regex(params.grammar))
            told[str(number)] = []
            llm.engine.add(Request(str(number), prompt, params))
        while llm.engine.has_work:
            report = llm.engine.step()
            counts.update(drafted=sum(report.drafted), accepted=sum(report.accepted))
            counts.update(preempted=report.preemptions, swapped=report.swaps, cached=report.cached_tokens)
            for output in report.outputs:
                best = output.token.alternatives
                margin = best[0][1] - best[1][1] if len(best) > 1 else float("inf")
                told[output.request_id].append((output.token.token_id, margin))
    return list(told.values()), counts


def compare(expected: list[list[Any]], said: list[list[Any]]) -> tuple[list[int], int]:
    """Numbers of the requests that differ, and how many are excused."""
    different: list[int] = []
    excused = 0
    for number, (ours, theirs) in enumerate(zip(expected, said, strict=True)):
        pairs = zip(ours, theirs, strict=False)
        place = next((place for place, (a, b) in enumerate(pairs) if a[0] != b[0]), None)
        if place is not None and ours[place][1] < EXCUSED_MARGIN:
            excused += 1
        elif place is not None or len(ours) != len(theirs):
            different.append(number)
    return different, excused


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--draft", help="checkpoint folder of a draft model")
    parser.add_argument("--head", help="checkpoint folder of an EAGLE head")
    parser.add_argument("--methods", nargs="+", choices=["ngram", "draft", "early_exit", "eagle"], help="default: all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-invariant", action="store_true", help="in bfloat16, and nothing is excused")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 3, 8])
    options = parser.parse_args()
    if options.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
    settings = {"dtype": "float32", "device": options.device, "max_model_len": 1024, "num_blocks": 600}
    settings |= {"max_num_seqs": 8, "max_num_batched_tokens": 512}
    if options.batch_invariant:
        settings |= {"dtype": "bfloat16", "batch_invariant": True}
    bars = Bars()
    layers = json.loads(Path(options.model, "config.json").read_text(encoding="utf-8"))["num_hidden_layers"]
    sources = {
        "ngram": "",
        "draft": f":{options.draft or options.model}",
        "early_exit": f":{layers // 2}",
        "eagle": f":{options.head}",
    }
    if not options.head:
        print("no --head, so no EAGLE drafts")
    methods = [method for method in options.methods or sources if method != "eagle" or options.head]
    lengths = options.lengths
    cases = [(f"{method}:{length}{sources[method]}", "room for all") for method in methods for length in lengths]
    middle = [f"{method}:{lengths[len(lengths) // 2]}{sources[method]}" for method in methods]
    cases += [(each, pressure) for each in middle for pressure in (*PRESSURES, "second time")]
    cases += [(each, "window") for each in middle if each.startswith("ngram")]
    baselines: dict[str, list[list[Any]]] = {}
    print(f"{'drafts':<14}{'case':<14}{'differ':>7}{'excused':>9}{'accepted':>10}{'drafted':>9}  what happened")
    for method, case in dict.fromkeys(cases):
        changes = settings | (WINDOW if case == "window" else PRESSURES.get(case, {}))
        key = case if case in OWN_BASELINE else ""
        if key not in baselines:
            with LLM(options.model, **(changes if key else settings)) as llm:
                count = -(-options.prompts // len(FAMILIES))
                prompts = [p for family in FAMILIES for p in prompts_of(llm.tokenizer, family, count)][
                    : options.prompts
                ]
                baselines[key], _ = answer(llm, prompts, options.tokens)
        with LLM(options.model, **changes, speculation=method, adaptive_speculation=False) as llm:
            said, counts = answer(llm, prompts, options.tokens, times=2 if case == "second time" else 1)
        numbers, excused = compare(baselines[key], said)
        different = len(numbers) + (excused if options.batch_invariant else 0)
        name = ":".join(method.split(":")[:2])
        happened = ", ".join(f"{what} {counts[what]}" for what in ("preempted", "swapped", "cached") if counts[what])
        happened += "".join(f"; {SAMPLING[number % len(SAMPLING)]}" for number in numbers)
        print(
            f"{name:<14}{case:<14}{different:>7}{excused:>9}{counts['accepted']:>10}{counts['drafted']:>9}  {happened}",
            flush=True,
        )
        bars.add(f"{name} {case}: requests that differ".replace(" ", "_"), different, "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
