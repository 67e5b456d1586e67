"""Answers with drafts equal those without, token for token. Real prompts, all kinds of sampling, float32.

    python -m tests.acceptance.speculation.lossless [--device cuda [--batch-invariant]] [--prompts 200] [--tokens 128]

Each case runs the same requests with another drafter or under other pressure: room for all; few blocks, so that
requests are preempted, and recomputed or swapped; small steps, which split prompts; a second time, with all prompts in
the prefix cache; a window. The draft model is the model itself unless ``--draft`` names another.

On a GPU float32 sums depend on the size of the batch. So a difference is excused if its token was nearly tied with the
expected one, and the request is not compared further: in greedy decoding if the two best log-probabilities are within
1e-4; in sampling if the engine without drafts samples the same token when its uniform number moves by at most 1e-4.
"""

import argparse
import contextlib
import dataclasses
import json
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from bakeoff.reference_engine.core.request import Request, SamplingParams, Watermark
from bakeoff.reference_engine.offline import LLM
from bakeoff.reference_engine.sampling import device_sampler, sampler
from bakeoff.reference_engine.sampling.uniform import uniforms
from benchmarks.bars import Bars, model_argument
from benchmarks.speculation.prompts import FAMILIES, prompts_of

EXCUSED_MARGIN = 1e-4  # natural-log units
SHIFTS = (0.0, *(sign * 1e-4 / 2**halvings for halvings in range(8) for sign in (1, -1)))
"""Of the uniform number, which lies in [0, 1)."""
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
"""Cases that change sums even without drafts, because shorter parts of a prompt are summed in another order."""
Answers = dict[int, list[tuple[int, float]]]
"""Tokens of each request, with the margin of the likeliest over the next; infinite unless log-probs are asked for."""


def answer(
    llm: LLM, prompts: Mapping[int, list[int]], num_tokens: int, passes: int = 1
) -> tuple[Answers, Counter[str]]:
    """Answers of the last pass to prompts by number; and counts of the engine's events in all passes."""
    counts = Counter[str]()
    answers: Answers = {}
    eos = frozenset(llm._eos_token_ids)
    for _ in range(passes):
        answers = {}
        for number, prompt in prompts.items():
            params = SamplingParams(
                max_tokens=num_tokens, seed=number, stop_token_ids=eos, **SAMPLING[number % len(SAMPLING)]
            )
            if params.grammar is not None:
                params = dataclasses.replace(params, grammar=llm.engine.grammars.of_regex(params.grammar))
            answers[number] = []
            llm.engine.add(Request(str(number), prompt, params))
        while llm.engine.has_work:
            report = llm.engine.step()
            counts.update(drafted=sum(report.drafted), accepted=sum(report.accepted))
            counts.update(preempted=report.preemptions, swapped=report.swaps, cached=report.cached_tokens)
            for output in report.outputs:
                best = output.token.alternatives
                margin = best[0][1] - best[1][1] if len(best) > 1 else float("inf")
                answers[int(output.request_id)].append((output.token.token_id, margin))
    return answers, counts


def differences(expected: Answers, answers: Answers) -> dict[int, int]:
    """Place of the first difference by number of the request."""
    places: dict[int, int] = {}
    for number, tokens in expected.items():
        pairs = list(zip(tokens, answers[number], strict=False))
        place = next((place for place, (a, b) in enumerate(pairs) if a[0] != b[0]), len(pairs))
        if place < max(len(tokens), len(answers[number])):
            places[number] = place
    return places


def nearly_tied(
    settings: Mapping[str, Any],
    prompts: Mapping[int, list[int]],
    expected: Answers,
    answers: Answers,
    places: dict[int, int],
) -> list[int]:
    """Numbers of the requests whose first difference is excused.

    Args:
        settings: of the engine without drafts.
        prompts: of the requests, by number.
        expected: its answers.
        answers: those with drafts.
        places: of the differences.
    """
    excused = [number for number, place in places.items() if _margin(expected[number], place) < EXCUSED_MARGIN]
    sampled = [number for number in places if number not in excused and SAMPLING[number % len(SAMPLING)]["temperature"]]
    if sampled:
        with LLM(**settings) as llm:
            for number in sampled:
                token_ids = [token_id for token_id, _ in answers[number][: places[number] + 1]]
                if samples(llm, number, prompts[number], token_ids):
                    excused.append(number)
    return excused


def samples(llm: LLM, number: int, prompt: list[int], token_ids: list[int]) -> bool:
    """Whether an engine samples these tokens if the uniform number of the last one is shifted."""
    for shift in SHIFTS:
        with shifted(number, len(token_ids) - 1, shift):
            answers, _ = answer(llm, {number: prompt}, len(token_ids))
        if [token_id for token_id, _ in answers[number]] == token_ids:
            return True
    return False


def _margin(tokens: Sequence[tuple[int, float]], place: int) -> float:
    return tokens[place][1] if place < len(tokens) else float("inf")


@contextlib.contextmanager
def shifted(number: int, place: int, shift: float) -> Generator[None]:
    """Shift the uniform number that samples one token of one request."""

    def shifted_uniforms(seeds: Sequence[int], places: Sequence[int], stream: int = 0) -> np.ndarray:
        is_shifted = (np.asarray(seeds) == number) & (np.asarray(places) == place)
        return np.clip(uniforms(seeds, places, stream) + shift * is_shifted, 0.0, np.nextafter(1.0, 0.0))

    with (
        mock.patch.object(sampler, "uniforms", shifted_uniforms),
        mock.patch.object(device_sampler, "uniforms", shifted_uniforms),
    ):
        yield


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
    settings |= {"max_num_seqs": 8, "max_num_batched_tokens": 512, "model": options.model}
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
    cases += [(method, pressure) for method in middle for pressure in (*PRESSURES, "second time")]
    cases += [(method, "window") for method in middle if method.startswith("ngram")]
    baselines: dict[str, Answers] = {}
    requests: dict[int, list[int]] = {}
    print(f"{'drafts':<14}{'case':<14}{'differ':>7}{'excused':>9}{'accepted':>10}{'drafted':>9}  events")
    for method, case in dict.fromkeys(cases):
        changes = settings | (WINDOW if case == "window" else PRESSURES.get(case, {}))
        key = case if case in OWN_BASELINE else ""
        plain = changes if key else settings
        if key not in baselines:
            with LLM(**plain) as llm:
                count = -(-options.prompts // len(FAMILIES))
                prompts = [p for family in FAMILIES for p in prompts_of(llm.tokenizer, family, count)]
                requests = dict(enumerate(prompts[: options.prompts]))
                baselines[key], _ = answer(llm, requests, options.tokens)
        with LLM(**changes, speculation=method, adaptive_speculation=False) as llm:
            answers, counts = answer(llm, requests, options.tokens, passes=2 if case == "second time" else 1)
        places = differences(baselines[key], answers)
        excused = [] if options.batch_invariant else nearly_tied(plain, requests, baselines[key], answers, places)
        numbers = [number for number in places if number not in excused]
        name = ":".join(method.split(":")[:2])
        events = ", ".join(f"{event} {counts[event]}" for event in ("preempted", "swapped", "cached") if counts[event])
        events += "".join(f"; {SAMPLING[number % len(SAMPLING)]}" for number in numbers)
        row = f"{name:<14}{case:<14}{len(numbers):>7}{len(excused):>9}{counts['accepted']:>10}{counts['drafted']:>9}"
        print(f"{row}  {events}", flush=True)
        bars.add(f"{name} {case}: requests that differ".replace(" ", "_"), len(numbers), "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
