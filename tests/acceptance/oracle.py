"""Computes every metric from the definitions and the server's record, without ``bakeoff.results.metrics``.

Only the client's planned times come from the raw log; token arrivals and ends of requests are the virtual server's own.
"""

import math
from collections.abc import Sequence

import msgspec

from bakeoff.results.records import Slo

QUANTILES = {"p50": (0.5, 3), "p90": (0.9, 64), "p95": (0.95, 130), "p99": (0.99, 662)}
"""Each percentile: its quantile, and the number of observations that it needs."""


class Truth(msgspec.Struct, frozen=True):
    """One request as it happened, in seconds.

    Attributes:
        planned: when the client planned to send it.
        sent: when it reached the server; None if it never did.
        ended: when its exchange ended.
        chunks: time and tokens of each read that held tokens.
        ok: whether it succeeded with at least one token.
        given_up: whether the client cancelled it, which is no failure.
        prompt_tokens: as the server counted them.
        kinds: one letter for each token's chunk: ``r`` reasoning, ``t`` text, ``c`` a tool call.
        reasoning: reasoning tokens that the server counted.
        hidden: those of them that it did not send.
        cached_tokens: those of them that it found in its prefix cache; None if it has none.
    """

    planned: float
    sent: float | None
    ended: float
    chunks: tuple[tuple[float, int], ...]
    ok: bool
    given_up: bool
    prompt_tokens: int
    cached_tokens: int | None = None
    kinds: str = ""
    reasoning: int = 0
    hidden: int = 0


UNSEEN = {
    "peak_host_bytes", "peak_gpu_bytes", "foreign_cpu_share", "energy_per_output_token_j",
    "energy_above_idle_per_output_token_j", "energy_per_request_j",
}  # fmt: skip
"""Metrics of the machine, which a virtual world does not have."""


def expected(
    requests: Sequence[Truth], start: float, end: float, slo: Slo, *, saturated: bool, backlog_grew: bool
) -> dict[str, float | None]:
    """The expected value of each metric; None if it must be absent."""
    length = end - start
    inside = [r for r in requests if start <= r.planned < end]
    failed = sum(not r.ok and not r.given_up for r in inside)
    succeeded = [r for r in inside if r.ok]
    values: dict[str, float | None] = {}
    per_request = {
        "ttft": [r.chunks[0][0] - r.planned for r in succeeded],
        "ttft_from_send": [r.chunks[0][0] - (r.sent or 0) for r in succeeded],
        "e2e": [r.chunks[-1][0] - r.planned for r in succeeded],
        "normalized_latency": [(r.chunks[-1][0] - r.planned) / sum(n for _, n in r.chunks) for r in succeeded],
        "tpot": [
            (r.chunks[-1][0] - r.chunks[0][0]) / sum(n for _, n in r.chunks[1:]) for r in succeeded if len(r.chunks) > 1
        ],
    }
    values |= _of_reasoning(requests, inside, succeeded, start, end)
    if any("r" in r.kinds or r.hidden for r in requests):
        per_request |= {
            "first_visible": [
                min(t for (t, _), kind in zip(r.chunks, r.kinds, strict=True) if kind != "r") - r.planned
                for r in succeeded
                if r.kinds.strip("r")
            ],
            "thinking": [
                r.chunks[r.kinds.rindex("r")][0] - r.chunks[r.kinds.index("r")][0]
                for r in succeeded
                if r.kinds.count("r") > 1
            ],
            "reasoning_tpot": [pace for r in succeeded if (pace := _pace(r, "r")) is not None],
            "visible_tpot": [pace for r in succeeded if (pace := _pace(r, "tc")) is not None],
        }
    for name, seconds in per_request.items():
        for label, (q, need) in QUANTILES.items():
            values[f"{name}_{label}_s"] = None if saturated else _quantile(seconds, failed, q, need)
    gaps = [
        (b - a, n) for r in requests for (a, _), (b, n) in zip(r.chunks, r.chunks[1:], strict=False) if start <= b < end
    ]
    spread = [gap / n for gap, n in gaps for _ in range(n)]
    answers = sum(any(start <= t < end for t, _ in r.chunks[1:]) for r in requests)
    for label, (q, need) in QUANTILES.items():
        few = q > 0.5 and answers < need  # the tokens of an answer share its pace
        values[f"itl_{label}_s"] = None if saturated or few else _quantile(spread, 0, q, need)
        values[f"chunk_gap_{label}_s"] = None if saturated or few else _quantile([gap for gap, _ in gaps], 0, q, need)
    values["output_tokens_per_s"] = sum(n for r in requests for t, n in r.chunks if start <= t < end) / length
    share_of = _ended_inside if backlog_grew else _share
    shares = [(r, share_of(r, start, end)) for r in requests if r.ok]
    values["requests_per_s"] = sum(share for _, share in shares) / length
    values["prompt_tokens_per_s"] = sum(r.prompt_tokens * share for r, share in shares) / length
    good = sum(_meets(r, slo) for r in inside)
    cached = any(r.cached_tokens is not None for r, _ in shares)
    values["uncached_prompt_tokens_per_s"] = (
        sum((r.prompt_tokens - (r.cached_tokens or 0)) * share for r, share in shares) / length if cached else None
    )
    values["requests_in_flight"] = (
        sum(max(0.0, min(r.ended, end) - max(r.sent, start)) for r in requests if r.sent is not None) / length
    )
    for label, (q, need) in QUANTILES.items():  # the virtual client is never late
        lags = [0.0 for r in inside if r.sent is not None]
        values[f"send_lag_{label}_s"] = None if saturated else _quantile(lags, 0, q, need)
    values["goodput_per_s"] = None if saturated or slo == Slo() else good / length
    values["attainment"] = None if saturated or slo == Slo() or not inside else good / len(inside)
    values["failures"] = float(failed)
    values["right_share"] = None  # none of the scenarios scores answers
    reads = sum(len(r.chunks) for r in inside)
    values["tokens_per_chunk"] = sum(n for r in inside for _, n in r.chunks) / reads if reads else None
    return values


def _of_reasoning(
    requests: Sequence[Truth], inside: Sequence[Truth], succeeded: Sequence[Truth], start: float, end: float
) -> dict[str, float | None]:
    absent = {f"{name}_{label}_s": None for name in ("first_visible", "thinking", "reasoning_tpot", "visible_tpot")
              for label in QUANTILES}  # fmt: skip
    absent |= dict.fromkeys(("visible_tokens_per_s", "reasoning_tokens", "hidden_tokens", "reasoning_share"))
    if not any("r" in r.kinds or r.hidden for r in requests):
        return absent
    seen = sum(
        n for r in requests for (t, n), kind in zip(r.chunks, r.kinds, strict=True) if kind != "r" and start <= t < end
    )
    thought = sum(r.reasoning for r in succeeded)
    tokens = sum(sum(n for _, n in r.chunks) + r.hidden for r in succeeded)
    return {
        **absent,
        "visible_tokens_per_s": seen / (end - start),
        "reasoning_tokens": thought / len(succeeded) if succeeded else None,
        "hidden_tokens": sum(r.hidden for r in succeeded) / len(succeeded) if succeeded else None,
        "reasoning_share": thought / tokens if tokens else None,
    }


def _pace(request: Truth, kinds: str) -> float | None:
    gaps = [
        (b - a, n)
        for (a, _), (b, n), before, after in zip(
            request.chunks, request.chunks[1:], request.kinds, request.kinds[1:], strict=False
        )
        if before in kinds and after in kinds
    ]
    return sum(gap for gap, _ in gaps) / sum(n for _, n in gaps) if gaps else None


def _quantile(seconds: Sequence[float], failures: int, q: float, need: int) -> float | None:
    """Type 7 over successes followed by failures."""
    ordered = [*sorted(seconds), *[math.inf] * failures]
    if len(ordered) < need:
        return None
    h = (len(ordered) - 1) * q
    low, high = ordered[math.floor(h)], ordered[math.ceil(h)]
    return None if math.isinf(high) else low + (high - low) * (h - math.floor(h))


def _ended_inside(request: Truth, start: float, end: float) -> float:
    return float(start <= request.chunks[-1][0] < end)


def _share(request: Truth, start: float, end: float) -> float:
    first, last = request.planned, request.chunks[-1][0]
    if last <= first:
        return float(start <= first < end)
    return max(0.0, min(last, end) - max(first, start)) / (last - first)


def _meets(request: Truth, slo: Slo) -> bool:
    if not request.ok:
        return False
    later = sum(n for _, n in request.chunks[1:])
    last = request.chunks[-1][0]
    return (
        (slo.ttft_s is None or request.chunks[0][0] - request.planned <= slo.ttft_s)
        and (slo.e2e_s is None or last - request.planned <= slo.e2e_s)
        and (slo.tpot_s is None or not later or (last - request.chunks[0][0]) / later <= slo.tpot_s)
    )
