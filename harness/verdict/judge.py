"""Whether a trial may be used as evidence, and what was found out about it. Pure functions over its log."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec

from harness.traffic.steady import TURNOVERS
from harness.verdict.machine_state import machine_findings
from harness.verdict.punctuality import off_schedule, stalled
from results.client_error import widest_s
from results.findings import Finding, FindingCode, Severity, invalid, warning
from results.metrics import has_failed, latency, under_load
from results.metrics.percentiles import percentile
from results.metrics.prefix_cache import prompt_tokens
from results.metrics.steadiness import growth, in_flight, throughput_change
from results.metrics.throughput import planned_inside
from results.records import (
    Cache,
    ClientError,
    Load,
    Outcome,
    RampRecord,
    RequestRecord,
    TelemetryRecord,
    TokenSource,
    TrafficRecord,
    Verdict,
    Window,
    WindowKind,
)
from results.server_view import fall, readings, tokens_disagree

MAX_SEND_LAG_S = 0.020
"""A client that sends its 90th-percentile request later than this, and later than a tenth of the TTFT, is saturated."""


_CALIBRATED_UP_TO = 1.5
"""A trial may have this many times the chunks per second at which the client's error was measured."""


_WARM_SHARE = 0.5
"""A cache that hits less than this share of prompts that it has seen before is not warm."""


_LEAST_TURNS, _TURNS_OFF = 20, 0.15
"""A mix of turns is judged from so many requests on; its mean may be off by this share."""
_ROUNDING = 1e-6
_MIN_STOPPED_S = 0.25
"""The sampling at 10 Hz cannot tell a shorter stop of the engine's processes from none."""


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
    ramp: RampRecord | None = None
    """How the ramp went; None of a load that is meant to change."""
    max_foreign_share: float = 1.0
    """Share of the cores that other processes may use."""
    max_window_s: float = math.inf
    """The longest window that was allowed."""


def judge(evidence: Evidence) -> tuple[Verdict, list[Finding]]:
    """The verdict and its findings, the most damning first; warnings stand last."""
    found = list(_invalidating(evidence))
    return (Verdict.INVALID if found else Verdict.VALID), [*found, *_warnings(evidence)]


def _invalidating(evidence: Evidence) -> Iterator[Finding]:
    load = under_load(evidence.requests)
    inside = planned_inside(load, evidence.window)
    if evidence.engine_death:
        yield invalid(FindingCode.ENGINE_DIED, detail=evidence.engine_death)
    yield from _restarted(evidence.telemetry)
    yield from _stopped(evidence.telemetry, load)
    if evidence.planned is not None and evidence.planned != len(load):
        yield invalid(FindingCode.REQUESTS_LOST, planned_requests=evidence.planned, logged_requests=len(load))
    yield from _failed(inside, evidence.max_failure_share)
    yield from _unsteady(evidence, load)
    yield from (finding for finding in _length(evidence) if finding.severity is Severity.INVALID)
    yield from _late(inside)
    if evidence.load.concurrency is None:
        yield from off_schedule(inside)
    yield from _stalled(evidence, load, inside)
    yield from client_faults(evidence)
    yield from _not_cold(evidence, load)
    yield from (finding for finding in _of_machine(evidence) if finding.severity is Severity.INVALID)


def _warnings(evidence: Evidence) -> Iterator[Finding]:
    load = under_load(evidence.requests)
    inside = planned_inside(load, evidence.window)
    yield from (finding for finding in _length(evidence) if finding.severity is Severity.WARNING)
    yield from (finding for finding in _of_machine(evidence) if finding.severity is Severity.WARNING)
    yield from _of_answers([request for request in inside if request.outcome is Outcome.OK])
    yield from _turn_mix(evidence, inside)
    yield from _off_length(evidence.traffic)
    yield from _unfilled(evidence, load)
    yield from _uncalibrated(evidence, load)
    yield from _of_counters(evidence)


def _length(evidence: Evidence) -> Iterator[Finding]:
    """Whether the window is as long as it had to be; a plan that ended early may leave one that is long enough."""
    length_s, ramp = evidence.window.length_s, evidence.ramp
    needed_s = ramp.window_s if ramp else 0.0
    if evidence.engine_death or (length_s > 0 and length_s >= needed_s * (1 - _ROUNDING)):
        return
    turnovers_s = TURNOVERS * (ramp.turnover_s or 0.0) if ramp else 0.0
    if length_s <= 0 or length_s < turnovers_s or length_s >= evidence.max_window_s * (1 - _ROUNDING):
        yield invalid(FindingCode.WINDOW_TOO_SHORT, window_s=length_s, needed_window_s=needed_s)
    else:
        yield warning(FindingCode.PLAN_ENDED_EARLY, planned_s=length_s, needed_window_s=needed_s)


def _turn_mix(evidence: Evidence, inside: Sequence[RequestRecord]) -> Iterator[Finding]:
    """Whether early turns are over-represented: sessions that began with the load are young."""
    planned = evidence.traffic.mean_turn if evidence.traffic else 0.0
    if evidence.window.kind is not WindowKind.STEADY or not planned or len(inside) < _LEAST_TURNS:
        return
    mean = statistics.fmean(request.turn for request in inside)
    if abs(mean - planned) > _TURNS_OFF * planned:
        yield warning(FindingCode.TURN_MIX, window_turn=mean + 1, workload_turn=planned + 1)


def _stopped(telemetry: Sequence[TelemetryRecord], measured: Sequence[RequestRecord]) -> Iterator[Finding]:
    """Whether the engine's processes were stopped (state T) between the first request's plan and the last one's end.

    Such an engine has not failed, but the trial says nothing of its speed.
    """
    if not measured:
        return
    start_ns = min(request.planned_ns for request in measured)
    end_ns = max(request.ended_ns for request in measured)
    samples = [record for record in telemetry if record.source == "engine" and start_ns <= record.t_ns <= end_ns]
    held = [(later.t_ns - sample.t_ns, sample) for sample, later in pairwise(samples) if _count(sample, "stopped")]
    stopped_s = sum(length_ns for length_ns, _ in held) / 1e9
    if stopped_s >= _MIN_STOPPED_S:
        stopped, processes = max((_count(sample, "stopped"), _count(sample, "processes")) for _, sample in held)
        yield invalid(FindingCode.ENGINE_STOPPED, stopped_processes=stopped, processes=processes, stopped_s=stopped_s)


def _count(record: TelemetryRecord, name: str) -> int:
    value = record.values.get(name)
    return value if isinstance(value, int) else 0


def _failed(measured: Sequence[RequestRecord], max_share: float) -> Iterator[Finding]:
    failed = [request for request in measured if has_failed(request)]
    if len(failed) <= max_share * len(measured):
        return
    ((outcome, count),) = Counter(request.outcome for request in failed).most_common(1)
    first = next(request for request in failed if request.outcome is outcome)
    yield invalid(
        FindingCode.FAILED_REQUESTS,
        failed_requests=len(failed),
        measured_requests=len(measured),
        outcome=outcome.value,
        outcome_requests=count,
        error=first.error or "no further detail",
    )


def _late(measured: Sequence[RequestRecord]) -> Iterator[Finding]:
    lags = [lag for request in measured if (lag := latency.send_lag_s(request)) is not None]
    ttfts = [ttft for request in measured if (ttft := latency.ttft_s(request)) is not None]
    if not lags or not ttfts:
        return
    lag = sorted(lags)[int(0.9 * (len(lags) - 1))]
    ttft = percentile(ttfts, 0.5).value or max(ttfts)
    if lag > MAX_SEND_LAG_S and lag > 0.1 * ttft:
        yield invalid(FindingCode.CLIENT_LATE, late_share=0.1, send_lag_s=lag)


def _stalled(evidence: Evidence, load: Sequence[RequestRecord], inside: Sequence[RequestRecord]) -> Iterator[Finding]:
    ttfts_s = [ttft for request in inside if (ttft := latency.ttft_s(request)) is not None]
    gaps_s = latency.chunk_gaps_s(load, evidence.window)
    typical_s = (statistics.median(ttfts_s) if ttfts_s else None, statistics.fmean(gaps_s) if gaps_s else None)
    if finding := stalled(evidence.telemetry, typical_s, evidence.max_error_share):
        yield finding


def client_faults(evidence: Evidence) -> list[Finding]:
    """A figure that is as small as the error of the client that measured it is no figure.

    The pace is judged by the mean gap: an engine whose chunks come in bursts has a median gap of nothing.
    """
    error = evidence.client_error
    if error is None:
        return []
    load = under_load(evidence.requests)
    inside = planned_inside(load, evidence.window)
    ttfts_s = [ttft for request in inside if (ttft := latency.ttft_s(request)) is not None]
    gaps_s = latency.chunk_gaps_s(load, evidence.window)
    pairs = (
        ("ttft", widest_s("ttft", error), statistics.median(ttfts_s) if ttfts_s else None),
        ("chunk_gap", widest_s("chunk_gap", error), statistics.fmean(gaps_s) if gaps_s else None),
    )
    max_share = evidence.max_error_share
    return [
        invalid(FindingCode.CLIENT_ERROR, latency=name, error_s=error_s, typical_s=typical_s, max_error_share=max_share)
        for name, error_s, typical_s in pairs
        if error_s is not None and typical_s is not None and error_s > max_share * typical_s
    ]


def _restarted(telemetry: Sequence[TelemetryRecord]) -> Iterator[Finding]:
    fell = fall(telemetry)
    if fell is not None and not fell.several:
        yield invalid(FindingCode.ENGINE_RESTARTED, counter=fell.name, before=fell.before, after=fell.after)


def _of_counters(evidence: Evidence) -> Iterator[Finding]:
    """What the engine's own counters say against themselves, or against the client's count."""
    fell = fall(evidence.telemetry)
    if fell is not None and fell.several:
        yield warning(FindingCode.SEVERAL_SERVERS, counter=fell.name, before=fell.before, after=fell.after)
    elif disagreement := tokens_disagree(evidence.telemetry, evidence.requests):
        yield disagreement


def _hits(evidence: Evidence, load: Sequence[RequestRecord]) -> tuple[int, int] | None:
    """Prompt tokens that came from the engine's prefix cache, and all of them; None where it does not count.

    As its answers say; where they do not, as its own counters moved while the load was on.
    """
    if tokens := prompt_tokens(load):
        return tokens
    hit = readings(evidence.telemetry).increase("prefix_hits_tokens_total").value
    if hit is None:
        return None
    return round(hit), sum(request.prompt_tokens or request.wanted_input_tokens or 0 for request in load)


def _not_cold(evidence: Evidence, load: Sequence[RequestRecord]) -> Iterator[Finding]:
    """A cold trial may hit what it repeats itself, in blocks of any size, and nothing else."""
    traffic, hits = evidence.traffic, _hits(evidence, load)
    if traffic is None or traffic.cache is not Cache.COLD or hits is None:
        return
    sent_again = sum(request.wanted_input_tokens or 0 for request in load if request.cycle)
    allowed = traffic.repeated_tokens + sent_again + traffic.block_tokens * len(load)
    if hits[0] > allowed:
        yield invalid(FindingCode.CACHE_NOT_COLD, cached_tokens=hits[0], prompt_tokens=hits[1], repeated_tokens=allowed)


def _unfilled(evidence: Evidence, measured: Sequence[RequestRecord]) -> Iterator[Finding]:
    """Whether a cache that was filled on purpose was hit."""
    traffic = evidence.traffic
    if traffic is None or traffic.cache is Cache.COLD:
        return
    hits = _hits(evidence, measured)
    if hits is None:
        yield warning(FindingCode.CACHE_UNKNOWN, cache=traffic.cache.value)
    elif not hits[0] or (traffic.cache is Cache.WARM and hits[0] < _WARM_SHARE * hits[1]):
        yield warning(FindingCode.CACHE_UNUSED, cache=traffic.cache.value, cached_tokens=hits[0], prompt_tokens=hits[1])


def _off_length(traffic: TrafficRecord | None) -> Iterator[Finding]:
    if traffic is not None and traffic.off_length:
        yield warning(
            FindingCode.PROMPT_LENGTH,
            wrong_requests=traffic.off_length,
            planned_requests=traffic.requests,
            example=traffic.off_example or "unknown",
        )


def _unsteady(evidence: Evidence, load: Sequence[RequestRecord]) -> Iterator[Finding]:
    """An open loop whose backlog grew, or a closed loop whose throughput has a trend."""
    window = evidence.window
    if window.kind is not WindowKind.STEADY or window.length_s <= 0:
        return
    if evidence.load.concurrency is None:
        backlog = growth(in_flight(load, window))
        if backlog.is_saturation:
            yield invalid(FindingCode.SATURATED, first_in_flight=backlog.first, last_in_flight=backlog.last)
        return
    turnover_s = (evidence.ramp.turnover_s if evidence.ramp else None) or 0.0
    if (change := throughput_change(load, window, turnover_s)) is not None:
        yield invalid(FindingCode.NOT_STEADY, change_share=change)


def _of_machine(evidence: Evidence) -> Sequence[Finding]:
    return list(machine_findings(evidence.telemetry, evidence.window, evidence.max_foreign_share))


def _of_answers(done: Sequence[RequestRecord]) -> Iterator[Finding]:
    """Lengths and token counts of answers that are not what they should be."""
    if wrong := _unequal((r.output_tokens, r.requested_output_tokens) for r in done):
        output, asked = wrong[0]
        yield warning(
            FindingCode.OUTPUT_LENGTH, wrong_requests=len(wrong), ok_requests=len(done), output_tokens=output,
            asked_tokens=asked,
        )  # fmt: skip
    if wrong := _unequal((r.prompt_tokens, r.wanted_input_tokens) for r in done):
        counted, planned = wrong[0]
        yield warning(
            FindingCode.INPUT_LENGTH, wrong_requests=len(wrong), ok_requests=len(done), engine_tokens=counted,
            planned_tokens=planned,
        )  # fmt: skip
    sources = Counter(request.token_source for request in done)
    if apportioned := sources[TokenSource.APPORTIONED]:
        yield warning(FindingCode.TOKENS_APPORTIONED, apportioned_requests=apportioned, ok_requests=len(done))
    if assumed := sources[TokenSource.ASSUMED]:
        yield warning(FindingCode.TOKENS_ASSUMED, assumed_requests=assumed, ok_requests=len(done))


def _unequal(pairs: Iterable[tuple[int | None, int | None]]) -> list[tuple[int, int]]:
    """Those of which both are known and differ."""
    return [(seen, asked) for seen, asked in pairs if seen is not None and asked is not None and seen != asked]


def _uncalibrated(evidence: Evidence, measured: Sequence[RequestRecord]) -> Iterator[Finding]:
    """The error was measured at one pace; a trial that was much faster may have a larger one."""
    error = evidence.client_error
    if error is None or evidence.window.length_s <= 0:
        return
    chunks = sum(evidence.window.holds(t_ns) for request in measured for t_ns, _ in latency.arrivals(request))
    rate = chunks / evidence.window.length_s
    if rate > _CALIBRATED_UP_TO * error.chunks_per_s:
        yield warning(
            FindingCode.UNCALIBRATED_PACE, calibrated_chunks_per_s=error.chunks_per_s, trial_chunks_per_s=rate
        )
