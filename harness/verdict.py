"""Whether a trial may be used as evidence: VALID, or INVALID with named reasons. Pure functions over its log."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from harness.stopped import stopped
from harness.telemetry.gpu import THERMAL_REASONS
from results.metrics import latency, measured_only
from results.metrics.percentiles import percentile
from results.metrics.window import Window
from results.records import Cache, ClientError, Load, Outcome, RequestRecord, TelemetryRecord, TrafficRecord, Verdict
from results.server_view import fall, readings, tokens_disagree

MIN_WINDOW_S = 1.0
MAX_SEND_LAG_S = 0.020
"""A client that sends its 90th-percentile request later than this, and later than a tenth of the TTFT, is saturated."""


MAX_OPEN_LAG_S = 0.005
"""An open loop whose 99th-percentile request is later than this did not keep its schedule."""
MAX_RATE_ERROR = 0.005
"""Nor did one whose rate is off by more than this share."""
_CALIBRATED_UP_TO = 1.5
"""A trial may have this many times the chunks per second at which the client's error was measured."""


_WARM_SHARE = 0.5
"""A cache that hits less than this share of prompts that it has seen before is not warm."""


class Evidence(msgspec.Struct, frozen=True):
    """All that a verdict rests on."""

    requests: Sequence[RequestRecord]
    telemetry: Sequence[TelemetryRecord]
    load: Load
    window: Window
    max_failure_share: float
    engine_death: str | None = None
    planned: int | None = None
    """Measured requests that the driver planned; they must all be in the log."""
    client_error: ClientError | None = None
    """The client's own error under this shape of load."""
    max_error_share: float = 0.1
    """Of the median TTFT, and of the mean gap between chunks, that it may reach."""
    traffic: TrafficRecord | None = None
    """What was to be sent, and what the cache was declared to hold."""


def judge(evidence: Evidence) -> tuple[Verdict, list[str]]:
    """The verdict and its reasons, most damning first."""
    reasons = list(_reasons(evidence))
    return (Verdict.INVALID if reasons else Verdict.VALID), reasons


def warnings(evidence: Evidence) -> list[str]:
    """What a reader should know of a trial that may still be valid; each says what was seen and what to do."""
    measured = measured_only(evidence.requests)
    traffic = [*_off_length(evidence.traffic), *_unfilled(evidence, measured)]
    return [*_warnings(measured), *traffic, *_uncalibrated(evidence, measured), *_of_the_engine(evidence)]


def _reasons(evidence: Evidence) -> Iterator[str]:
    measured = measured_only(evidence.requests)
    if evidence.engine_death:
        yield f"engine died: {evidence.engine_death}"
    yield from _restarted(evidence.telemetry)
    if halt := stopped(evidence.telemetry, measured):
        yield halt
    if evidence.planned is not None and evidence.planned != len(measured):
        yield f"requests lost: {evidence.planned} were planned, {len(measured)} are in the log; this is our bug"
    failed = Counter(request.outcome.value for request in measured if request.outcome is not Outcome.OK)
    if failed.total() > evidence.max_failure_share * len(measured):
        parts = ", ".join(f"{count} {outcome}" for outcome, count in failed.most_common())
        example = next(request.error for request in measured if request.outcome is not Outcome.OK)
        yield f"errors: {failed.total()} of {len(measured)} requests failed ({parts}); first: {example}"
    if evidence.window.length_s < MIN_WINDOW_S:
        yield f"too short: the steady window is {evidence.window.length_s:.2f} s, needed is {MIN_WINDOW_S:g} s"
    yield from _saturated(measured)
    if evidence.load.concurrency is None:
        yield from _off_schedule(measured)
    yield from client_faults(evidence)
    yield from _not_cold(evidence, measured)
    if evidence.load.concurrency is None and _queue_grew(measured, evidence.window):
        yield "not steady: the queue was still growing when the arrivals ended; lower rate_per_s"
    if _throttled(evidence):
        yield "throttled: a GPU lowered its clocks for heat or a power brake inside the window; cool it and repeat"


def _saturated(measured: Sequence[RequestRecord]) -> Iterator[str]:
    lags = [lag for request in measured if (lag := latency.send_lag_s(request)) is not None]
    ttfts = [ttft for request in measured if (ttft := latency.ttft_s(request)) is not None]
    if not lags or not ttfts:
        return
    lag = sorted(lags)[int(0.9 * (len(lags) - 1))]
    ttft = percentile(ttfts, 0.5).value or max(ttfts)
    if lag > MAX_SEND_LAG_S and lag > 0.1 * ttft:
        yield f"client saturated: 10 % of the requests were sent over {lag * 1000:.0f} ms late; use a faster client"


def _off_schedule(measured: Sequence[RequestRecord]) -> Iterator[str]:
    """An open loop keeps its schedule, or it is none; both rules need enough requests to tell."""
    sent = [request for request in measured if request.sent_ns is not None]
    lag = percentile([latency.send_lag_s(request) or 0.0 for request in sent], 0.99).value
    if lag is None:
        return
    if lag > MAX_OPEN_LAG_S:
        yield f"client saturated: 1 % of the requests were sent over {lag * 1000:.1f} ms late; add client.workers"
    due_ns = sorted(request.planned_ns if request.due_ns is None else request.due_ns for request in sent)
    sent_ns = sorted(request.sent_ns or 0 for request in sent)
    share = (due_ns[-1] - due_ns[0]) / max(1, sent_ns[-1] - sent_ns[0])
    if abs(share - 1) > MAX_RATE_ERROR:
        yield f"client saturated: requests were sent at {share:.2%} of the planned rate; add client.workers"


def client_faults(evidence: Evidence) -> list[str]:
    """A figure that is as small as the error of the client that measured it is no figure.

    The pace is judged by the mean gap: an engine whose chunks come in bursts has a median gap of nothing.
    """
    error = evidence.client_error
    if error is None:
        return []
    measured = measured_only(evidence.requests)
    ttfts_s = [ttft for request in measured if (ttft := latency.ttft_s(request)) is not None]
    gaps_s = latency.chunk_gaps_s(measured, evidence.window)
    pairs = (
        ("TTFT", error.ttft_s, "median", statistics.median(ttfts_s) if ttfts_s else None),
        ("the gap between chunks", error.itl_s, "mean", statistics.fmean(gaps_s) if gaps_s else None),
    )
    return [
        f"client error: {name} is known to ± {_ms(error_s)} ms, more than {evidence.max_error_share:.0%} of its "
        f"{centre} {_ms(typical_s)} ms; give the client a core of its own (client.cores) or more client.workers"
        for name, error_s, centre, typical_s in pairs
        if error_s is not None and typical_s is not None and error_s > evidence.max_error_share * typical_s
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:,.0f}"


def _restarted(telemetry: Sequence[TelemetryRecord]) -> Iterator[str]:
    fell = fall(telemetry)
    if fell is not None and not fell.several:
        yield (
            f"engine restarted: its counters fell from {fell.height:,.0f} to {fell.floor:,.0f} during the trial "
            f"({fell.name}); see why it ends by itself"
        )


def _of_the_engine(evidence: Evidence) -> Iterator[str]:
    """What the engine's own counters say against the trial, and what they say against themselves."""
    fell = fall(evidence.telemetry)
    if fell is not None and fell.several:
        yield (
            f"engine's metrics: its counters fell from {fell.height:,.0f} to {fell.floor:,.0f} and rose again at once "
            f"({fell.name}): several servers answer there in turn, so its own view means nothing; measure one of them"
        )
    elif disagreement := tokens_disagree(evidence.telemetry, evidence.requests):
        yield disagreement


def _hits(evidence: Evidence, measured: Sequence[RequestRecord]) -> tuple[int, int] | None:
    """Prompt tokens that came from the engine's prefix cache, and all of them; None where it does not count.

    As its answers say; where they do not, as its own counters moved while the load was on.
    """
    counted = [request for request in measured if request.cached_tokens is not None]
    if counted:
        hits = sum(request.cached_tokens or 0 for request in counted)
        return hits, sum(request.prompt_tokens or 0 for request in counted)
    hit = readings(evidence.telemetry).moved("prefix_hits_tokens_total").value
    if hit is None:
        return None
    return round(hit), sum(request.prompt_tokens or request.wanted_input_tokens or 0 for request in measured)


def _not_cold(evidence: Evidence, measured: Sequence[RequestRecord]) -> Iterator[str]:
    """A cold trial may hit what it repeats itself, in blocks of any size, and nothing else."""
    traffic, hits = evidence.traffic, _hits(evidence, measured)
    if traffic is None or traffic.cache is not Cache.COLD or hits is None:
        return
    allowed = traffic.repeated_tokens + traffic.block_tokens * len(measured)
    if hits[0] > allowed:
        yield (
            f"cache not cold: {hits[0]} of {hits[1]} prompt tokens came from the prefix cache, but the trial itself "
            f"repeats at most {allowed}; restart the engine or change seed"
        )


def _unfilled(evidence: Evidence, measured: Sequence[RequestRecord]) -> Iterator[str]:
    """Whether a cache that was filled on purpose was hit."""
    traffic = evidence.traffic
    if traffic is None or traffic.cache is Cache.COLD:
        return
    hits = _hits(evidence, measured)
    if hits is None:
        yield f"cache: {traffic.cache.value} as asked, but the engine does not say what it hit"
    elif not hits[0] or (traffic.cache is Cache.WARM and hits[0] < _WARM_SHARE * hits[1]):
        yield (
            f"cache: {traffic.cache.value} as asked, but only {hits[0]} of {hits[1]} prompt tokens came from the "
            "prefix cache; it is switched off or too small"
        )


def _off_length(traffic: TrafficRecord | None) -> Iterator[str]:
    if traffic is not None and traffic.off_length:
        yield (
            f"prompts: {traffic.off_length} of {traffic.requests} planned prompts are not as long as the workload says "
            f"(first: {traffic.off_example})"
        )


def _queue_grew(measured: Sequence[RequestRecord], window: Window) -> bool:
    """Whether the mean number in flight of the last third exceeds twice that of the first third, by 4 or more."""
    third_ns = (window.end_ns - window.start_ns) / 3
    if third_ns <= 0:
        return False

    def mean_in_flight(start_ns: float, end_ns: float) -> float:
        busy = sum(max(0.0, min(r.ended_ns, end_ns) - max(r.planned_ns, start_ns)) for r in measured)
        return busy / (end_ns - start_ns)

    first = mean_in_flight(window.start_ns, window.start_ns + third_ns)
    last = mean_in_flight(window.end_ns - third_ns, window.end_ns)
    return last > 2 * first and last - first >= 4


def _throttled(evidence: Evidence) -> bool:
    return any(
        isinstance(mask := record.values.get("throttle_reasons"), int) and mask & THERMAL_REASONS
        for record in evidence.telemetry
        if evidence.window.holds(record.t_ns)
    )


def _warnings(measured: Sequence[RequestRecord]) -> Iterator[str]:
    done = [request for request in measured if request.outcome is Outcome.OK]
    wrong = [r for r in done if r.output_tokens is not None and r.output_tokens != r.wanted_output_tokens]
    if wrong:
        yield (
            f"output length: {len(wrong)} of {len(done)} answers are not as long as asked "
            f"(first: {wrong[0].output_tokens} instead of {wrong[0].wanted_output_tokens} tokens)"
        )
    off = [r for r in done if r.prompt_tokens is not None and r.prompt_tokens != r.wanted_input_tokens]
    if off:
        yield (
            f"input length: the engine counted {off[0].prompt_tokens} prompt tokens where {off[0].wanted_input_tokens} "
            f"were meant, in {len(off)} of {len(done)} requests; check that tokenizer and template are the model's own"
        )
    sources = Counter(request.token_source.value for request in done if request.token_source)
    if sources.get("apportioned"):
        yield (
            f"token counts: in {sources['apportioned']} of {len(done)} answers only the sum is known; "
            "their ITL is apportioned over the chunks"
        )
    if sources.get("assumed"):
        yield f"token counts: in {sources['assumed']} of {len(done)} answers one token per chunk is a guess"


def _uncalibrated(evidence: Evidence, measured: Sequence[RequestRecord]) -> Iterator[str]:
    """The error was found at one pace; a trial that was much faster may have a larger one."""
    error = evidence.client_error
    if error is None or evidence.window.length_s <= 0:
        return
    chunks = sum(evidence.window.holds(t_ns) for request in measured for t_ns in request.chunk_ns)
    rate = chunks / evidence.window.length_s
    if rate > _CALIBRATED_UP_TO * error.chunks_per_s:
        yield (
            f"client error: found at {error.chunks_per_s:.0f} chunks/s, the trial had {rate:.0f}; "
            "what is printed as ± may be too small"
        )
