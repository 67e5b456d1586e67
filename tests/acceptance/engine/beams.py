"""Beam search against Transformers, token for token, in float32; and the memory that sharing blocks saves.

    python -m tests.acceptance.engine.beams [--prompts 16] [--tokens 32]

Transformers searches each prompt alone. The engine searches all prompts together, with ample blocks and with so few
that beams are preempted and recomputed, at three widths with different length penalties and stopping rules. A
difference is excused only if the log-probabilities of the two hypotheses at each rank are within 1e-4.

The saving is defined as in PagedAttention (SOSP'23, §6.3): the share of blocks that sharing avoids, of those that the
beams would hold without sharing. The paper reports 37.6 % at 2 beams to 55.2 % at 6, on Alpaca's requests. Lengths here
are drawn from exponential distributions with the same means, 19 prompt and 58 output tokens. The distribution is an
assumption: longer answers share more and weigh more; if all requests have exactly the mean lengths, 2 beams save 36 to
37 %. The peak is compared with that of as many separate requests without prefix caching.
The last line of the output is one JSON object; the exit status is 0 if every goal is met.
"""

import argparse
import random
import time
from collections import Counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from bakeoff.reference_engine.core.request import BeamParams, Request, SamplingParams
from bakeoff.reference_engine.offline import LLM
from benchmarks.bars import Bars, model_argument
from benchmarks.engine.prompts import read_prompts
from tests.reference_engine.beam_truth import ScoredHypothesis, agreement, searched, transformers_beams

STOP_TEXTS = (".", "\n")  # the last token of each is a stop token
SEARCHES = {
    "2 beams": (BeamParams(2), False),
    "4 beams, until there are 4": (BeamParams(4, 0.6, early_stopping=True), True),
    "6 beams, never early": (BeamParams(6, 1.0, early_stopping="never"), True),
}
PUBLISHED = {2: 0.376, 6: 0.552}
ALPACA = (19, 58)  # mean tokens of prompt and answer
MIN_TOKENS, MAX_TOKENS = 4, 320  # fewest and most tokens of a prompt or an answer
NUM_PROMPTS = 32  # the searched prompts are chosen from these
COMMON: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 1024, "max_num_seqs": 12}
LONGEST = 120  # tokens of a compared prompt; Transformers computes a prompt once for each beam


def settings_of(longest: int) -> dict[str, dict[str, int]]:
    """By case: blocks for all sequences, and blocks for two of the longest."""
    return {"ample blocks": {"num_blocks": 2048}, "preempted": {"num_blocks": 2 * longest // 16}}


def compare(
    llm: LLM,
    prompts: list[list[int]],
    params: SamplingParams,
    truths: list[list[ScoredHypothesis]],
    counts: Counter[str],
) -> str:
    """Add the outcomes of one search to `counts`; returns the figures of its table line."""
    began, preemptions_before = time.perf_counter(), llm.engine.preemptions
    outcomes = Counter(
        agreement(hypotheses, truth) for hypotheses, truth in zip(searched(llm, prompts, params), truths, strict=True)
    )
    preemptions = llm.engine.preemptions - preemptions_before
    counts.update(outcomes)
    counts["preemptions"] += preemptions
    seconds = time.perf_counter() - began
    columns = (outcomes["equal"], outcomes["excused"], outcomes["different"], preemptions)
    return "".join(f"{value:>11}" for value in columns) + f"{seconds:>9.1f}"


def parity(options: argparse.Namespace, bars: Bars) -> None:
    """Compare all searches with Transformers'."""
    prompts = [prompt for prompt in read_prompts(options.model, NUM_PROMPTS) if len(prompt) <= LONGEST][
        : options.prompts
    ]
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    lengths = f"{min(map(len, prompts))} to {max(map(len, prompts))}"
    print(f"{len(prompts)} prompts of {lengths} tokens, at most {options.tokens} more")
    print(f"{'search':<28}{'case':<12}{'equal':>11}{'excused':>11}{'different':>11}{'preempted':>11}{'seconds':>9}")
    counts: Counter[str] = Counter()
    cases = settings_of(max(map(len, prompts)) + options.tokens)
    llms = {case: LLM(options.model, threads=options.threads, **COMMON, **changes) for case, changes in cases.items()}
    stop_ids = frozenset(llms["ample blocks"].tokenizer.encode(text)[-1] for text in STOP_TEXTS)
    for name, (beams, is_stopped) in SEARCHES.items():
        stops = stop_ids if is_stopped else frozenset[int]()
        params = SamplingParams(max_tokens=options.tokens, beams=beams, stop_token_ids=stops)
        truths = [transformers_beams(model, prompt, params) for prompt in prompts]
        for case, llm in llms.items():
            print(f"{name:<28}{case:<12}{compare(llm, prompts, params, truths, counts)}", flush=True)
    bars.add("beams_unexcused", counts["different"], "==", 0)
    bars.add("beams_compared", counts["equal"] + counts["excused"], "==", len(SEARCHES) * len(cases) * len(prompts))
    bars.add("beams_preemptions_forced", counts["preemptions"], ">=", 1)


def blocks_of_search(llm: LLM, prompt: list[int], params: SamplingParams, width: int) -> tuple[int, int, int]:
    """Run one search alone; returns the held blocks summed over steps, the same without sharing, and the peak."""
    family = [Request(f"beam {number}", prompt, params) for number in range(width)]
    leader = family[0]
    leader.siblings = tuple(family[1:])
    llm.engine.add(leader)
    scheduler = llm.engine.core._scheduler
    held = unshared = peak = 0
    while llm.engine.has_work:
        report = llm.engine.step()
        beams = [member for member in family if member.request_id in scheduler._requests]
        tables = [table for beam in beams for table in scheduler.cache.blocks_of(beam).tables]
        peak = max(peak, report.used_blocks)
        if report.used_blocks:
            held += report.used_blocks
            unshared += sum(1 for table in tables for _ in table.held())
    return held, unshared, peak


def peak_of_separate(llm: LLM, prompt: list[int], length: int, count: int) -> int:
    """Peak of the blocks that `count` independent requests hold."""
    params = SamplingParams(max_tokens=length, temperature=0.0)
    for number in range(count):
        llm.engine.add(Request(f"separate {number}", prompt, params))
    peak = 0
    while llm.engine.has_work:
        peak = max(peak, llm.engine.step().used_blocks)
    return peak


def saving(options: argparse.Namespace, bars: Bars) -> None:
    """Measure what sharing blocks saves."""
    rng = random.Random(1)
    prompts = read_prompts(options.model, NUM_PROMPTS)
    lengths = [[min(max(round(rng.expovariate(1 / mean)), MIN_TOKENS), MAX_TOKENS) for mean in ALPACA] for _ in prompts]
    requests = [(prompt[:length], output) for prompt, (length, output) in zip(prompts, lengths, strict=True)]
    llm = LLM(options.model, threads=options.threads, enable_prefix_caching=False, num_blocks=2048, **COMMON)
    input_mean = sum(len(prompt) for prompt, _ in requests) / len(requests)
    output_mean = sum(output for _, output in requests) / len(requests)
    print(f"\n{len(requests)} prompts of {input_mean:.0f} tokens on average, {output_mean:.0f} more; blocks of 16")
    print(f"{'beams':<8}{'saved by sharing':>18}{'peak':>8}{'separate':>10}{'saved':>8}")
    for width in (2, 4, 6):
        totals = [0, 0, 0]
        separate = 0
        for prompt, output in requests:
            params = SamplingParams(max_tokens=output, beams=BeamParams(width))
            totals = list(map(sum, zip(totals, blocks_of_search(llm, prompt, params, width), strict=True)))
            separate += peak_of_separate(llm, prompt, output, width)
        held, unshared, peak = totals
        shared = 1 - held / unshared
        count = len(requests)
        print(f"{width:<8}{shared:>18.1%}{peak / count:>8.1f}{separate / count:>10.1f}{1 - peak / separate:>8.1%}")
        if width in PUBLISHED:
            bars.add(f"beams_saved_by_sharing_{width}", shared, ">=", PUBLISHED[width])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_argument(parser)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1, help="more only where nothing else runs")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    bars = Bars()
    parity(options, bars)
    saving(options, bars)
    bars.finish()


if __name__ == "__main__":
    main()
