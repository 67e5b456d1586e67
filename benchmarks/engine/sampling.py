"""Bars of the sampler: draws of each option follow the exact distribution, and sampling adds little time to a step.

A chi-square test compares 50,000 draws of each option, from a vocabulary of 512 and with fixed seeds, with the exact
probabilities. Times are median milliseconds per step for 32 rows of 49,152 scores on two threads; the same sampling by
Transformers' `generate` takes turns with the engine's.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from scipy.stats import chisquare
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from bakeoff.reference_engine.core.request import Request, SamplingParams, Watermark
from bakeoff.reference_engine.sampling import Sampler
from benchmarks.bars import Bars

DRAWS, SIZE = 50_000, 512
PROMPT, OUTPUT = list(range(0, 60, 2)), [1, 1, 4, 6, 6, 6, 100, 101, 101]
OPTIONS = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 40},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.05},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.6, "frequency_penalty": 0.4},
    "bias": {"logit_bias": {3: 2.0, 4: -3.0, 100: 1.0, 200: -100.0}},
    "together": {
        "temperature": 0.9, "top_k": 80, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1,
        "presence_penalty": 0.2, "frequency_penalty": 0.1, "logit_bias": {3: 2.0, 200: -100.0},
    },
}  # fmt: skip
ROWS, VOCABULARY, STEPS = 32, 49_152, 200


def exact(logits: torch.Tensor, params: SamplingParams) -> np.ndarray:
    """The probability of each token, by the definition of each option."""
    scores = logits.double().numpy().copy()
    for token, value in params.logit_bias.items():
        scores[token] += value
    for token in set(PROMPT) | set(OUTPUT):
        scores[token] *= 1 / params.repetition_penalty if scores[token] > 0 else params.repetition_penalty
    for token in set(OUTPUT):
        scores[token] -= params.presence_penalty + params.frequency_penalty * OUTPUT.count(token)
    order = np.argsort(-scores, kind="stable")
    weights = np.exp((scores[order] - scores.max()) / params.temperature)
    weights[weights < params.min_p] = 0
    weights[params.top_k or SIZE :] = 0
    weights /= weights.sum()
    weights[weights.cumsum() - weights >= params.top_p] = 0
    probabilities = np.zeros(SIZE)
    probabilities[order] = weights / weights.sum()
    return probabilities


def draws(logits: torch.Tensor, params: dict) -> np.ndarray:
    """How often each token is drawn by requests that differ in their seeds only."""
    counts = np.zeros(SIZE, np.int64)
    for first in range(0, DRAWS, 1000):
        batch = [make_request(seed, PROMPT, OUTPUT, params) for seed in range(first, first + 1000)]
        counts += np.bincount(
            [token.token_id for token in Sampler().sample(logits.repeat(1000, 1), batch)], minlength=SIZE
        )
    return counts


def make_request(seed: int, prompt: list[int], output: list[int], params: dict) -> Request:
    request = Request(str(seed), prompt, SamplingParams(max_tokens=9999, seed=seed, **params))
    request.token_ids.extend(output)
    return request


def p_value(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Chi-square; cells in which fewer than 5 draws are expected are one cell."""
    expected = probabilities * DRAWS
    few = (expected < 5) & (expected > 0)
    cells = [np.append(values[expected >= 5], values[few].sum()) for values in (counts, expected)]
    is_filled = cells[1] > 0
    return float(chisquare(cells[0][is_filled], cells[1][is_filled]).pvalue)


def milliseconds(*calls: Callable[[], object], steps: int = STEPS) -> list[float]:
    """Median milliseconds of each call; the calls take turns."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(steps):
        for call_times, call in zip(times, calls, strict=True):
            start = time.perf_counter()
            call()
            call_times.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(call_times) for call_times in times]


def add_distributions(bars: Bars) -> None:
    logits = torch.randn(SIZE, generator=torch.Generator().manual_seed(1)) * 2
    for name, params in OPTIONS.items():
        counts, probabilities = draws(logits, params), exact(logits, SamplingParams(max_tokens=1, **params))
        bars.add(f"{name}_draws_outside_the_support", int(counts[probabilities == 0].sum()), "==", 0)
        bars.add(f"{name}_chi_square_p", p_value(counts, probabilities), ">=", 0.01)


def add_times(bars: Bars) -> None:
    logits = torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(2)) * 3
    prompt, output = list(range(300)), list(range(50))

    def engine_call(**params: float | Watermark) -> Callable[[], object]:
        batch = [make_request(seed, prompt, output, params) for seed in range(ROWS)]
        sampler = Sampler()
        return lambda: sampler.sample(logits, batch)

    for name, params in (
        ("temperature", {"temperature": 0.7}),
        ("top_p alone", {"top_p": 0.9}),
        ("min_p", {"min_p": 0.05}),
        ("penalties, greedy", {"temperature": 0.0, "repetition_penalty": 1.0 + math.ulp(1.0)}),
        ("watermark, greedy, lists cached", {"temperature": 0.0, "watermark": Watermark()}),
        ("20 log-probabilities, greedy", {"temperature": 0.0, "logprobs": 20}),
    ):
        print(f"{name}: {milliseconds(engine_call(**params))[0]:.2f} ms")
    greedy, argmax = milliseconds(engine_call(temperature=0.0), lambda: logits.numpy().argmax(axis=-1).tolist())
    bars.add("greedy_over_argmax_ms", greedy - argmax, "<=", 0.1)
    warp = LogitsProcessorList([TemperatureLogitsWarper(0.7), TopKLogitsWarper(50), TopPLogitsWarper(0.9)])
    ids = torch.tensor([prompt + output] * ROWS)

    def transformers_call() -> list[list[int]]:
        # As `generate` does; the warpers return new scores.
        return torch.multinomial(warp(ids, logits).softmax(dim=-1), 1).tolist()  # pyright: ignore[reportArgumentType]

    engine_ms, transformers_ms = milliseconds(
        engine_call(temperature=0.7, top_k=50, top_p=0.9), transformers_call, steps=STEPS // 4
    )
    print(f"temperature, top_k, top_p: {engine_ms:.2f} ms; Transformers {transformers_ms:.2f} ms")
    bars.add("temperature_top_k_top_p_over_transformers", transformers_ms / engine_ms, ">=", 10.0)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(2)
    bars = Bars()
    with torch.inference_mode():
        add_distributions(bars)
        add_times(bars)
    bars.finish()


if __name__ == "__main__":
    main()
