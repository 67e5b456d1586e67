"""Judges trials: VALID or INVALID, with the findings. Pure functions over a trial's log."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus
from itertools import pairwise

import msgspec

from bakeoff.harness.client.plausibility import is_miscounted
from bakeoff.harness.host.machine_state import machine_findings, sampler_lost
from bakeoff.harness.traffic.steady import TURNOVERS
from bakeoff.harness.verdict.addresses import address_findings
from bakeoff.harness.verdict.punctuality import off_schedule, stalled
from bakeoff.results.findings import Finding, FindingCode, Severity, invalid, warning
from bakeoff.results.log.consistency import impossible_times
from bakeoff.results.metrics import has_failed, latency, under_load
from bakeoff.results.metrics.backlog import Pressure, backlog
from bakeoff.results.metrics.client_error import widest_s
from bakeoff.results.metrics.kinds import first_visible_ns
from bakeoff.results.metrics.mixture import clustered_mean
from bakeoff.results.metrics.percentiles import percentile
from bakeoff.results.metrics.prefix_cache import prompt_tokens
from bakeoff.results.metrics.relaxation import needed_window_s, relaxation
from bakeoff.results.metrics.requests import planned_inside
from bakeoff.results.metrics.silence import unusual_silence
from bakeoff.results.metrics.steadiness import throughput_change
from bakeoff.results.records import (
    Cache,
    ClientError,
    Load,
    Outcome,
    Phase,
    RampRecord,
    RequestRecord,
    TelemetryRecord,
    TokenSource,
    TrafficRecord,
    Verdict,
    Window,
    WindowKind,
)
from bakeoff.results.server_view import fall, readings, tokens_disagree
from bakeoff.results.units import NS_PER_S

MAX_SEND_LAG_S = 0.020
"""Largest tolerable 90th-percentile send lag; a tenth of the TTFT is tolerated too."""
_CODES: dict[int, FindingCode] = {
    HTTPStatus.UNAUTHORIZED: FindingCode.NOT_AUTHORISED,
    HTTPStatus.FORBIDDEN: FindingCode.NOT_AUTHORISED,
    HTTPStatus.NOT_FOUND: FindingCode.NOT_FOUND,
    HTTPStatus.BAD_REQUEST: FindingCode.REQUEST_REFUSED,
    HTTPStatus.UNPROCESSABLE_ENTITY: FindingCode.REQUEST_REFUSED,
}
_MAX_PACE_RATIO = 1.5
"""Largest ratio of a trial's chunks per second to those at which the client's error was measured."""
_MIN_WARM_HITS = 0.5
"""A warm cache hits at least this share of prompt tokens."""
_MIN_MIX_REQUESTS, _MAX_MIX_ERROR, _MAX_SE = 20, 0.15, 4.0
"""Mean turn and mean length are checked from this many requests up; they may differ from those of the long run by this
share, and by this many standard errors."""
_MAX_DRAIN_SHARE = 0.1
"""Largest share of a makespan after the last planned request."""
_ROUNDING = 1e-6
_THINKING_BEGINS = ("<think>", "<thinking>", "<|channel|>analysis", "[THINK]")
_THINKING_ENDS = ("</think>", "</thinking>", "[/THINK]")
"""Tags of DeepSeek and Qwen, older models, gpt-oss and Mistral."""
_MIN_BUFFERED_TOKENS, _ONE_PIECE_SHARE, _MAX_BUFFERED_SHARE = 8, 0.8, 0.5
"""Answers of at least so many tokens arrive in one piece if the first read has this share of them; a finding if more
than this share of them do."""
_MIN_STOPPED_S = 0.25
"""Shorter stops of the engine's processes are not visible at 10 samples per second."""


class Evidence(msgspec.Struct, frozen=True):
    """Everything that a verdict depends on."""

    requests: Sequence[RequestRecord]
    telemetry: Sequence[TelemetryRecord]
    load: Load
    window: Window
    max_failure_share: float
    engine_death: str | None = None
    client_loss: str | None = None
    """Why a worker of the client was lost."""
    planned: int | None = None
    """Requests under load that the client planned; all of them must be in the log."""
    client_error: ClientError | None = None
    """The client's own error under this shape of load."""
    max_error_share: float = 0.1
    """Largest client error, as a share of the median TTFT and of the mean gap between chunks."""
    replica_header: str | None = None
    """Header of answers that names the replica; None if requests need not say who answered."""
    traffic: TrafficRecord | None = None
    """The planned traffic and the declared state of the prefix cache."""
    ramp: RampRecord | None = None
    """The result of the ramp; None for varying loads and recorded arrivals."""
    max_foreign_share: float = 1.0
    """Largest share of all CPU time that other processes may use."""
    max_window_s: float = math.inf
    """Longest allowed window."""
    sample_interval_ns: int | None = None
    """Time between two samples of the host; None if nothing samples it."""


def judge(evidence: Evidence) -> tuple[Verdict, list[Finding]]:
    """The verdict and its findings: invalidating ones first, the most serious on top, then warnings and notes."""
    findings = sorted(_findings(evidence), key=lambda finding: finding.severity is not Severity.INVALID)
    is_invalid = bool(findings) and findings[0].severity is Severity.INVALID
    return (Verdict.INVALID if is_invalid else Verdict.VALID), findings


def _findings(evidence: Evidence) -> Iterator[Finding]:
    load = under_load(evidence.requests)
    inside = planned_inside(load, evidence.window)
    if evidence.engine_death:
        yield invalid(FindingCode.ENGINE_DIED, detail=evidence.engine_death)
    if evidence.client_loss:
        yield invalid(FindingCode.CLIENT_LOST, detail=evidence.client_loss)
        return
    yield from _restarted(evidence.telemetry)
    stops = list(_stopped(evidence.telemetry, load))
    yield from stops
    if evidence.planned is not None and evidence.planned != len(load):
        yield invalid(FindingCode.REQUESTS_LOST, planned_requests=evidence.planned, logged_requests=len(load))
    if odd := sum(map(impossible_times, load)):
        yield invalid(FindingCode.IMPOSSIBLE_TIMES, odd_requests=odd)
    yield from _failed(inside, evidence)
    yield from _miscounted(inside, evidence.max_failure_share)
    if _has_failed_ramp(evidence):
        return  # there is no window to judge
    yield from _ramp_failures(load, evidence)
    yield from _unsteady(evidence, load)
    yield from _length(evidence)
    if evidence.window.length_s > 0 and not inside and not evidence.engine_death:
        yield invalid(FindingCode.WINDOW_EMPTY, window_s=evidence.window.length_s)
    yield from _late(inside)
    if evidence.load.concurrency is None:
        yield from off_schedule(inside)
    stalls = list(_stalled(evidence, load, inside))
    yield from stalls
    if not stalls and not stops:
        yield from _froze(evidence, load)
    yield from _drain(evidence, inside)
    yield from client_faults(evidence)
    yield from _not_cold(evidence, load)
    if evidence.sample_interval_ns is not None:
        yield from sampler_lost(evidence.telemetry, evidence.window, evidence.sample_interval_ns)
    yield from machine_findings(evidence.telemetry, evidence.window, evidence.max_foreign_share)
    yield from _of_answers([request for request in inside if request.outcome is Outcome.OK])
    yield from _resent(inside)
    yield from _mix(evidence, inside)
    yield from _off_length(evidence.traffic)
    yield from _unfilled(evidence, load)
    yield from _uncalibrated(evidence, load)
    yield from _of_counters(evidence)
    yield from address_findings(inside, evidence.telemetry, evidence.window, evidence.replica_header)


def _length(evidence: Evidence) -> Iterator[Finding]:
    """A window that is shorter than needed: INVALID, or a warning if only the plan ended early."""
    length_s, ramp = evidence.window.length_s, evidence.ramp
    needed_s = ramp.window_s if ramp else 0.0
    if evidence.engine_death or (length_s > 0 and length_s >= needed_s * (1 - _ROUNDING)):
        return
    turnovers_s = TURNOVERS * (ramp.turnover_s or 0.0) if ramp else 0.0
    if length_s <= 0 or length_s < turnovers_s or length_s >= evidence.max_window_s * (1 - _ROUNDING):
        yield invalid(FindingCode.WINDOW_TOO_SHORT, window_s=length_s, needed_window_s=needed_s)
    else:
        yield warning(FindingCode.PLAN_ENDED_EARLY, planned_s=length_s, needed_window_s=needed_s)


def _mix(evidence: Evidence, inside: Sequence[RequestRecord]) -> Iterator[Finding]:
    """Requests unlike those of the load in the long run: in their turns or, in a closed loop, their lengths."""
    traffic = evidence.traffic
    if evidence.window.kind is not WindowKind.STEADY or traffic is None or len(inside) < _MIN_MIX_REQUESTS:
        return
    mean, error = clustered_mean((request.session, request.turn) for request in inside)
    if traffic.mean_turn and abs(mean - traffic.mean_turn) > max(_MAX_MIX_ERROR * traffic.mean_turn, _MAX_SE * error):
        yield invalid(FindingCode.TURN_MIX, window_turn=mean + 1, workload_turn=traffic.mean_turn + 1)
    whole = [request.requested_output_tokens for request in inside if request.part == 1]
    lengths = [tokens for tokens in whole if tokens is not None]
    expected = traffic.mean_output_tokens
    if evidence.load.concurrency is None or not expected or len(lengths) < _MIN_MIX_REQUESTS:
        return
    mean, error = statistics.fmean(lengths), traffic.output_tokens_sd / math.sqrt(len(lengths))
    if abs(mean - expected) > max(_MAX_MIX_ERROR * expected, _MAX_SE * error):
        yield invalid(FindingCode.LENGTH_MIX, window_tokens=mean, workload_tokens=expected)


def _stopped(telemetry: Sequence[TelemetryRecord], measured: Sequence[RequestRecord]) -> Iterator[Finding]:
    """Engine processes that were stopped (state T) between the first request's planned start and the last one's end.

    Such an engine has not failed, but the trial does not show its speed.
    """
    if not measured:
        return
    start_ns = min(request.planned_ns for request in measured)
    end_ns = max(request.ended_ns for request in measured)
    samples = [record for record in telemetry if record.source == "engine" and start_ns <= record.t_ns <= end_ns]
    stops = [(later.t_ns - sample.t_ns, sample) for sample, later in pairwise(samples) if _count(sample, "stopped")]
    stopped_s = sum(length_ns for length_ns, _ in stops) / 1e9
    if stopped_s >= _MIN_STOPPED_S:
        stopped, processes = max((_count(sample, "stopped"), _count(sample, "processes")) for _, sample in stops)
        yield invalid(FindingCode.ENGINE_STOPPED, stopped_processes=stopped, processes=processes, stopped_s=stopped_s)


def _count(record: TelemetryRecord, name: str) -> int:
    value = record.values.get(name)
    return value if isinstance(value, int) else 0


def _has_failed_ramp(evidence: Evidence) -> bool:
    return evidence.ramp is not None and evidence.ramp.has_failed


def _failed(measured: Sequence[RequestRecord], evidence: Evidence) -> Iterator[Finding]:
    is_ramp = _has_failed_ramp(evidence)
    failed = [request for request in measured if has_failed(request)]
    if is_ramp:  # what the client cancelled when it gave up is neither
        measured = [request for request in measured if request.outcome is not Outcome.CANCELLED]
    if not failed or (not is_ramp and len(failed) <= evidence.max_failure_share * len(measured)):
        return
    ((outcome, count),) = Counter(request.outcome for request in failed).most_common(1)
    first = next(request for request in failed if request.outcome is outcome)
    yield invalid(
        _failure_code(first.status or 0, is_ramp=is_ramp),
        failed_requests=len(failed),
        measured_requests=len(measured),
        outcome=outcome.value,
        outcome_requests=count,
        error=(first.error or "no further detail").removesuffix("."),
    )


def _failure_code(status: int, *, is_ramp: bool) -> FindingCode:
    if 300 <= status < 400:
        return FindingCode.REDIRECTED
    return _CODES.get(status, FindingCode.RAMP_FAILED if is_ramp else FindingCode.FAILED_REQUESTS)


def _ramp_failures(load: Sequence[RequestRecord], evidence: Evidence) -> Iterator[Finding]:
    ramp = [request for request in load if request.phase is Phase.RAMP]
    failed = [request for request in ramp if has_failed(request)]
    if len(failed) > evidence.max_failure_share * len(ramp):
        yield warning(
            FindingCode.RAMP_FAILURES,
            failed_requests=len(failed),
            ramp_requests=len(ramp),
            outcome=failed[0].outcome.value,
            error=failed[0].error or "no further detail",
        )


def _miscounted(measured: Sequence[RequestRecord], max_share: float) -> Iterator[Finding]:
    answered = [request for request in measured if request.outcome is Outcome.OK]
    wrong = [request for request in answered if is_miscounted(request)]
    if len(wrong) > max_share * len(answered):
        first = wrong[0]
        yield invalid(
            FindingCode.TOKENS_MISCOUNTED, miscounted_requests=len(wrong), ok_requests=len(answered),
            claimed_tokens=first.output_tokens or 0, text_bytes=len(first.text.encode()),
            asked_tokens=first.requested_output_tokens or 0,
        )  # fmt: skip


def _late(measured: Sequence[RequestRecord]) -> Iterator[Finding]:
    lags = [lag for request in measured if (lag := latency.send_lag_s(request)) is not None]
    ttfts = [ttft for request in measured if (ttft := latency.ttft_s(request)) is not None]
    if not lags or not ttfts:
        return
    lag = sorted(lags)[int(0.9 * (len(lags) - 1))]
    ttft = percentile(ttfts, 0.5).value or max(ttfts)  # too few requests for a median
    if lag > MAX_SEND_LAG_S and lag > 0.1 * ttft:
        yield invalid(FindingCode.CLIENT_LATE, late_share=0.1, send_lag_s=lag)


def _stalled(evidence: Evidence, load: Sequence[RequestRecord], inside: Sequence[RequestRecord]) -> Iterator[Finding]:
    ttfts_s = [ttft for request in inside if (ttft := latency.ttft_s(request)) is not None]
    gaps_s = latency.chunk_gaps_s(load, evidence.window)
    typical_s = (statistics.median(ttfts_s) if ttfts_s else None, statistics.fmean(gaps_s) if gaps_s else None)
    if finding := stalled(evidence.telemetry, typical_s, evidence.max_error_share):
        yield finding


def client_faults(evidence: Evidence) -> list[Finding]:
    """Latencies that are too small for the error of the client that measured them.

    Uses the mean gap between chunks, because the median gap is 0 for an engine that sends chunks in bursts.
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


def _froze(evidence: Evidence, load: Sequence[RequestRecord]) -> Iterator[Finding]:
    """A silence of the engine that neither the client nor a stop of its processes explains."""
    if silence := unusual_silence(load, evidence.window):
        share = silence.length_s / evidence.window.length_s
        yield warning(
            FindingCode.ENGINE_FROZE, silent_s=silence.length_s, window_share=share, in_flight=silence.in_flight,
            usual_s=silence.usual_s,
        )  # fmt: skip


def _drain(evidence: Evidence, inside: Sequence[RequestRecord]) -> Iterator[Finding]:
    """Rates over a makespan of which a fair part came after the last request was planned."""
    window = evidence.window
    if window.kind is not WindowKind.MAKESPAN or not inside:
        return
    drain_s = (window.end_ns - max(request.planned_ns for request in inside)) / NS_PER_S
    if drain_s > _MAX_DRAIN_SHARE * window.length_s:
        yield warning(FindingCode.DRAIN_IN_RATES, drain_s=drain_s, window_s=window.length_s)


def _restarted(telemetry: Sequence[TelemetryRecord]) -> Iterator[Finding]:
    """A counter that fell and stayed low: the engine was restarted."""
    reset = fall(telemetry)
    if reset is not None and not reset.several:
        yield invalid(FindingCode.ENGINE_RESTARTED, counter=reset.name, before=reset.before, after=reset.after)


def _of_counters(evidence: Evidence) -> Iterator[Finding]:
    """A counter that fell and recovered (several servers behind one address), or token counts unlike the client's."""
    reset = fall(evidence.telemetry)
    if reset is not None and reset.several:
        yield warning(FindingCode.SEVERAL_SERVERS, counter=reset.name, before=reset.before, after=reset.after)
    elif disagreement := tokens_disagree(evidence.telemetry, evidence.requests):
        yield disagreement


def _hits(evidence: Evidence, load: Sequence[RequestRecord]) -> tuple[int, int] | None:
    """Prompt tokens from the engine's prefix cache, and all prompt tokens; None if the engine reports no hits.

    Counts from the engine's answers, or from its metrics endpoint if the answers have none.
    """
    if tokens := prompt_tokens(load):
        return tokens
    hit = readings(evidence.telemetry).increase("prefix_hits_tokens_total").value
    if hit is None:
        return None
    return round(hit), sum(request.prompt_tokens or request.requested_input_tokens or 0 for request in load)


def _not_cold(evidence: Evidence, load: Sequence[RequestRecord]) -> Iterator[Finding]:
    """Cache hits beyond the prompts that a cold trial itself repeats."""
    traffic, hits = evidence.traffic, _hits(evidence, load)
    if traffic is None or traffic.cache is not Cache.COLD or hits is None:
        return
    sent_again = sum(request.requested_input_tokens or 0 for request in load if request.cycle)
    # one block more per request: an engine with smaller blocks hits more of a prefix than the simulated cache
    allowed = traffic.repeated_tokens + sent_again + traffic.block_tokens * len(load)
    if hits[0] > allowed:
        yield invalid(FindingCode.CACHE_NOT_COLD, cached_tokens=hits[0], prompt_tokens=hits[1], repeated_tokens=allowed)


def _unfilled(evidence: Evidence, measured: Sequence[RequestRecord]) -> Iterator[Finding]:
    """A primed or warm cache that has few or no hits."""
    traffic = evidence.traffic
    if traffic is None or traffic.cache is Cache.COLD:
        return
    hits = _hits(evidence, measured)
    if hits is None:
        yield warning(FindingCode.CACHE_UNKNOWN, cache=traffic.cache.value)
    elif not hits[0] or (traffic.cache is Cache.WARM and hits[0] < _MIN_WARM_HITS * hits[1]):
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
    """An open loop that the engine does not sustain, or a closed loop with a trend in its throughput."""
    window = evidence.window
    if window.kind is not WindowKind.STEADY or window.length_s <= 0:
        return
    if evidence.load.concurrency is None:
        yield from _pressure(evidence, load)
        return
    turnover_s = (evidence.ramp.turnover_s if evidence.ramp else None) or 0.0
    if (change := throughput_change(load, window, turnover_s)) is not None:
        yield invalid(FindingCode.NOT_STEADY, change_share=change)


def _pressure(evidence: Evidence, load: Sequence[RequestRecord]) -> Iterator[Finding]:
    rate_per_s = (evidence.load.rate_per_s or 0.0) * (evidence.traffic.turns if evidence.traffic else 1.0)
    found = backlog(load, evidence.window, rate_per_s)
    if found.pressure is Pressure.SATURATED:
        yield invalid(
            FindingCode.SATURATED, first_in_flight=found.first_in_flight, last_in_flight=found.last_in_flight
        )  # fmt: skip
    elif found.pressure is Pressure.UNCLEAR and found.utilisation is not None and found.needed_requests is not None:
        yield warning(
            FindingCode.CAPACITY_UNCLEAR, utilisation=found.utilisation, planned_requests=found.requests,
            needed_requests=found.needed_requests,
        )  # fmt: skip
    elif found.pressure is Pressure.UNCLEAR:
        yield warning(
            FindingCode.BACKLOG_GREW, first_in_flight=found.first_in_flight, last_in_flight=found.last_in_flight
        )  # fmt: skip
    elif (relaxed := relaxation(load, evidence.window, rate_per_s)) and relaxed.is_window_short:
        yield warning(
            FindingCode.WINDOW_SHORT_FOR_QUEUE, window_s=relaxed.window_s, needed_window_s=needed_window_s(relaxed)
        )  # fmt: skip


def _resent(measured: Sequence[RequestRecord]) -> Iterator[Finding]:
    if resent := sum(request.is_resent for request in measured):
        yield warning(FindingCode.RESENT, resent_requests=resent, measured_requests=len(measured))


def _of_answers(answered: Sequence[RequestRecord]) -> Iterator[Finding]:
    """Answers of the wrong length, and token counts that differ from the plan or are estimates."""
    if wrong := _unequal((r.output_tokens, r.requested_output_tokens) for r in filter(_is_forced, answered)):
        output, requested = wrong[0]
        yield warning(
            FindingCode.OUTPUT_LENGTH, wrong_requests=len(wrong), ok_requests=len(answered), output_tokens=output,
            asked_tokens=requested,
        )  # fmt: skip
    if wrong := _unequal((r.prompt_tokens, r.requested_input_tokens) for r in answered):
        counted, planned = wrong[0]
        yield warning(
            FindingCode.INPUT_LENGTH, wrong_requests=len(wrong), ok_requests=len(answered), engine_tokens=counted,
            planned_tokens=planned,
        )  # fmt: skip
    yield from _guessed_counts(answered)
    if hidden := [request.hidden_tokens for request in answered if request.hidden_tokens]:
        yield warning(
            FindingCode.HIDDEN_REASONING, hidden_requests=len(hidden), ok_requests=len(answered),
            hidden_tokens=round(sum(hidden) / len(hidden)),
        )  # fmt: skip
    if thinking := sum(_thinks_in_text(request) for request in answered):
        yield warning(FindingCode.THINKING_IN_TEXT, thinking_requests=thinking, ok_requests=len(answered))
    if invisible := sum(first_visible_ns(request) is None and "r" in request.chunk_kinds for request in answered):
        yield warning(FindingCode.NOTHING_VISIBLE, invisible_requests=invisible, ok_requests=len(answered))
    streamed = (request for request in answered if request.is_streamed)
    long = [request for request in streamed if sum(request.chunk_tokens) >= _MIN_BUFFERED_TOKENS]
    buffered = sum(_is_in_one_piece(request) for request in long)
    if long and buffered > _MAX_BUFFERED_SHARE * len(long):
        yield warning(FindingCode.BUFFERED, buffered_requests=buffered, ok_requests=len(answered))


def _is_forced(request: RequestRecord) -> bool:
    """Whether an answer should be as long as asked; those that are scored or call tools end by themselves."""
    is_counted = request.token_source is not TokenSource.ESTIMATED
    return request.check is None and "c" not in request.chunk_kinds and is_counted


def _guessed_counts(answered: Sequence[RequestRecord]) -> Iterator[Finding]:
    sources = Counter(request.token_source for request in answered)
    if apportioned := sources[TokenSource.APPORTIONED]:
        yield warning(FindingCode.TOKENS_APPORTIONED, apportioned_requests=apportioned, ok_requests=len(answered))
    if unplaced := sources[TokenSource.UNPLACED]:
        yield warning(FindingCode.TOKENS_UNPLACED, unplaced_requests=unplaced, ok_requests=len(answered))
    if estimated := sources[TokenSource.ESTIMATED]:
        yield warning(FindingCode.TOKENS_ESTIMATED, estimated_requests=estimated, ok_requests=len(answered))
    if assumed := sources[TokenSource.ASSUMED]:
        yield warning(FindingCode.TOKENS_ASSUMED, assumed_requests=assumed, ok_requests=len(answered))


def _thinks_in_text(request: RequestRecord) -> bool:
    """Whether no chunk is reasoning, but the text begins with it or has the tag that ends it."""
    if "r" in request.chunk_kinds:
        return False
    return request.text.lstrip().startswith(_THINKING_BEGINS) or any(tag in request.text for tag in _THINKING_ENDS)


def _is_in_one_piece(request: RequestRecord) -> bool:
    """Whether most tokens of an answer arrived with its first ones."""
    (_, at_once), *_ = latency.arrivals(request)
    return at_once >= _ONE_PIECE_SHARE * sum(request.chunk_tokens)


def _unequal(pairs: Iterable[tuple[int | None, int | None]]) -> list[tuple[int, int]]:
    """The pairs in which both numbers are known and differ."""
    return [(a, b) for a, b in pairs if a is not None and b is not None and a != b]


def _uncalibrated(evidence: Evidence, measured: Sequence[RequestRecord]) -> Iterator[Finding]:
    """A trial that was much faster than the calibration: its client error may be larger than measured."""
    error = evidence.client_error
    if error is None or evidence.window.length_s <= 0:
        return
    chunks = sum(evidence.window.holds(t_ns) for request in measured for t_ns, _ in latency.arrivals(request))
    rate = chunks / evidence.window.length_s
    if rate > _MAX_PACE_RATIO * error.chunks_per_s:
        yield warning(
            FindingCode.UNCALIBRATED_PACE, calibrated_chunks_per_s=error.chunks_per_s, trial_chunks_per_s=rate
        )
