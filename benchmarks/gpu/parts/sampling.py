"""Sampling on the device: tokens against those of the sampler on the host, calls that wait, and the cost of a call."""

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from bakeoff.reference_engine.core.request import Request, SamplingParams
from bakeoff.reference_engine.sampling import Sampler, choose_on_device
from bakeoff.reference_engine.sampling.blocks import BlockedScores
from bakeoff.reference_engine.sampling.drawing import draw
from bakeoff.reference_engine.sampling.truncation import draw_truncated
from bakeoff.reference_engine.sampling.uniform import uniforms
from benchmarks.gpu.parts.timing import PEAK_GBS, VOCAB

ROWS = 256
NEAR = 1e-6  # relative; the sums over blocks are of float32 exponentials, which differ by a rounding between devices
MIXED: list[dict[str, Any]] = [
    {}, {"temperature": 0.7}, {"temperature": 0.0}, {"top_p": 0.95}, {"top_k": 50}, {"min_p": 0.05}, {"top_k": 1},
    {"top_k": 500}, {"top_k": 2000, "temperature": 1.5}, {"top_k": 40, "top_p": 0.9, "temperature": 0.8},
    {"top_p": 0.5, "min_p": 0.01}, {"temperature": 3.0},
]  # fmt: skip
TIMED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0}, "temperature 1": {}, "top-k 50": {"top_k": 50}, "top-p 0.95": {"top_p": 0.95},
    "min-p 0.05": {"min_p": 0.05}, "top-k 2000": {"top_k": 2000},
}  # fmt: skip
SLEEP_CYCLES = 40_000_000  # 20 ms, longer than the host takes to queue the calls of a measurement


def requests_for(all_params: Iterator[dict[str, Any]], rows: int) -> list[Request]:
    requests: list[Request] = []
    for seed, params in enumerate(itertools.islice(all_params, rows)):
        requests.append(Request(str(seed), [1], SamplingParams(max_tokens=9999, seed=seed, **params)))
        requests[-1].token_ids += [2] * (seed % 7)
    return requests


def mixed_logits(rows: int, vocab_size: int) -> torch.Tensor:
    """Float32 on the host: flat and steep rows, rows with ties, and some without a usable score."""
    logits = torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(rows + vocab_size))
    logits[::2] *= 3
    logits[::3] = logits[::3].bfloat16().float()
    # These rows have the first and the fourth parameters of `MIXED`: a whole distribution and a nucleus.
    logits[24::72], logits[27::72] = -torch.inf, -torch.inf
    logits[36::72, 5], logits[39::72, 5] = torch.nan, torch.nan
    logits[48::72, 7], logits[51::72, 7] = torch.inf, torch.inf
    return logits


def is_near(scores: torch.Tensor, request: Request, token: int) -> bool:
    """Whether the sampler on the host draws this token with a uniform number close to the request's."""
    sampling = request.sampling
    number = uniforms([sampling.seed], [request.num_sampled])[0]
    choose = draw_truncated if sampling.is_truncated else draw
    blocked = BlockedScores(scores[None])
    return any(choose(blocked, [sampling], np.array([number * factor]))[0] == token for factor in (1 - NEAR, 1 + NEAR))


def errors() -> Iterator[tuple[str, float]]:
    """Tokens that differ from the host's, the share of those next to a border, and calls that wait for the device."""
    for rows, vocab_size in ((ROWS, VOCAB), (40, VOCAB - 13), (1, 100)):
        logits, requests = mixed_logits(rows, vocab_size), requests_for(itertools.cycle(MIXED), rows)
        with np.errstate(invalid="ignore"):  # infinite scores
            expected = [token.token_id for token in Sampler().sample(logits.clone(), requests)]
        choose = functools.partial(choose_on_device, logits.cuda(), requests)
        tokens = choose().tolist()
        differing = [row for row in range(rows) if tokens[row] != expected[row]]
        far = [row for row in differing if not is_near(logits[row], requests[row], tokens[row])]
        for row in far:
            print(f"row {row}, {requests[row].sampling}: {tokens[row]} instead of {expected[row]}")
        yield "sampled tokens", float(len(far))
        yield "sampled tokens next to a border, share", (len(differing) - len(far)) / rows
        yield "sampling waits", float(waits(choose))


def waits(call: Callable[[], object]) -> bool:
    """Whether a call makes the host wait for the device, as far as torch notices."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        print(error)
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def times() -> Iterator[tuple[str, float, float]]:
    """Name, µs, and bandwidth share if the logits are read once; then name and µs of the host part."""
    for (name, params), rows in itertools.product(TIMED.items(), (ROWS, 1)):
        logits = torch.randn(rows, VOCAB, device="cuda") * 3
        requests = requests_for(itertools.repeat(params), rows)
        device_us, host_us = call_us(functools.partial(choose_on_device, logits, requests))
        yield f"{name}, {rows} rows", device_us, 4 * rows * VOCAB / device_us / 1e3 / PEAK_GBS
        yield f"  its host part, {name}, {rows} rows", host_us, 0.0


def call_us(call: Callable[[], object], calls: int = 3, repeats: int = 5) -> tuple[float, float]:
    """Median microseconds of one call: on the device, which waits for no launch, and on the host."""
    call()
    device_us: list[float] = []
    host_us: list[float] = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP_CYCLES)  # noqa: SLF001
        start.record()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        host_us.append((time.perf_counter() - began) * 1e6 / calls)
        end.record()
        end.synchronize()
        device_us.append(start.elapsed_time(end) * 1e3 / calls)
    return statistics.median(device_us), statistics.median(host_us)
