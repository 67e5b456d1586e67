"""Judges trials: VALID or INVALID, with the findings. Pure functions over a trial's log."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bakeoff.harness.host.machine_state import machine_findings, sampler_lost
from bakeoff.harness.host.threads import check_cancelled
from bakeoff.harness.traffic.window_length import TURNOVERS
from bakeoff.harness.verdict.addresses import address_findings
from bakeoff.harness.verdict.answers import OF_ANSWERS, answer_findings, miscounted, resent
from bakeoff.harness.verdict.client import client_faults, fewer_workers, sent_late, stalled_client, uncalibrated
from bakeoff.harness.verdict.evidence import Evidence
from bakeoff.harness.verdict.failures import failed_requests, has_failed_ramp, ramp_failures
from bakeoff.harness.verdict.pressure import planned_per_s, pressure_findings
from bakeoff.harness.verdict.punctuality import off_schedule
from bakeoff.results.columns import UNKNOWN
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, Severity, invalid, warning
from bakeoff.results.log.consistency import impossible_times
from bakeoff.results.metrics.backlog import backlog
from bakeoff.results.metrics.drift import latency_drift, memory_growth
from bakeoff.results.metrics.mixture import clustered_mean
from bakeoff.results.metrics.prefix_cache import prompt_tokens
from bakeoff.results.metrics.requests import prompt_lengths
from bakeoff.results.metrics.silence import unusual_silence
from bakeoff.results.metrics.steadiness import change_of_state
from bakeoff.results.records import (
    Cache,
    FaultRecord,
    Phase,
    RampRecord,
    TelemetryRecord,
    TrafficRecord,
    Verdict,
    WindowKind,
)
from bakeoff.results.requests import Requests
from bakeoff.results.server_view import fall, readings, tokens_disagree
from bakeoff.results.units import NS_PER_S

_MIN_WARM_HITS = 0.5
"""A warm cache hits at least this share of prompt tokens."""
_MIN_MIX_REQUESTS, _MAX_MIX_ERROR, _MAX_SE = 20, 0.15, 4.0
"""Mean turn and mean length are checked from this many requests up; they may differ from those of the long run by this
share, and by this many standard errors."""
_MAX_DRAIN_SHARE = 0.1
"""Largest share of a makespan after the last planned request."""
_MAX_QUEUED_SHARE = 0.05
"""Share of the time in which a queue is seen, up to which TTFT is that of requests that need not wait."""
_ROUNDING = 1e-6
_MIN_STOPPED_S = 0.25
"""Shorter stops of the engine's processes are not visible at 10 samples per second."""

_FOREIGN = frozenset({FindingCode.FOREIGN_LOAD, FindingCode.SOME_FOREIGN_LOAD})


def judge(evidence: Evidence) -> tuple[Verdict, list[Finding]]:
    """The verdict and its findings: invalidating ones first, the most serious on top, then warnings and notes."""
    found = _findings(evidence)
    if evidence.faults:
        effects = {code for code in FindingCode if code.of_faults}
        if any(fault.ready_ns is not None for fault in evidence.faults):
            effects |= _FOREIGN  # the processes of a server that was started again are not known to be the engine's
        found = itertools.chain((each for each in found if each.code not in effects), _of_faults(evidence.faults))
    return _verdict(_unless_cancelled(found))


def judge_again(
    findings: Sequence[Finding], inside: Requests, max_failure_share: float
) -> tuple[Verdict, list[Finding]]:
    """The same of a trial whose answers were decoded again, by the rules of another version.

    Args:
        findings: as stored; those about answers are looked for again, and the others hold.
        inside: its requests of the window.
        max_failure_share: as in the evidence.
    """
    others = (each for each in findings if each.code not in OF_ANSWERS)
    return _verdict([*others, *miscounted(inside, max_failure_share), *answer_findings(inside.ok)])


def _verdict(found: Iterable[Finding]) -> tuple[Verdict, list[Finding]]:
    findings = sorted(found, key=lambda finding: finding.severity is not Severity.INVALID)
    is_invalid = bool(findings) and findings[0].severity is Severity.INVALID
    return (Verdict.INVALID if is_invalid else Verdict.VALID), findings


def _unless_cancelled(found: Iterable[Finding]) -> Iterator[Finding]:
    """The findings, each looked for only while somebody waits for the verdict."""
    for finding in found:
        check_cancelled()
        yield finding


def _findings(evidence: Evidence) -> Iterator[Finding]:
    load = Requests(evidence.requests).under_load
    inside = load.planned_inside(evidence.window)
    if evidence.engine_death:
        yield invalid(FindingCode.ENGINE_DIED, detail=evidence.engine_death)
    if evidence.client_loss:
        yield invalid(FindingCode.CLIENT_LOST, detail=evidence.client_loss)
        return
    yield from fewer_workers(evidence)
    yield from _restarted(evidence.telemetry)
    stops = list(_stopped(evidence.telemetry, load))
    yield from stops
    if evidence.planned is not None and evidence.planned != len(load):
        yield invalid(FindingCode.REQUESTS_LOST, planned_requests=evidence.planned, logged_requests=len(load))
    if odd := sum(map(impossible_times, load)):
        yield invalid(FindingCode.IMPOSSIBLE_TIMES, odd_requests=odd)
    yield from failed_requests(inside, evidence)
    yield from miscounted(inside, evidence.max_failure_share)
    if has_failed_ramp(evidence):
        return  # there is no window to judge
    yield from ramp_failures(load, evidence)
    yield from _unsteady(evidence, load)
    yield from _drifts(evidence, inside)
    yield from _length(evidence)
    yield from _cut(evidence.ramp)
    if evidence.window.length_s > 0 and not len(inside) and not evidence.engine_death:
        yield invalid(FindingCode.WINDOW_EMPTY, window_s=evidence.window.length_s)
    yield from sent_late(inside)
    if evidence.load.concurrency is None:
        yield from off_schedule(inside)
    stalls = list(stalled_client(evidence, load, inside))
    yield from stalls
    if not stalls and not stops:
        yield from _froze(evidence, load)
    yield from _drain(evidence, inside)
    yield from client_faults(evidence)
    yield from _not_cold(evidence, load)
    if evidence.sample_interval_ns is not None:
        yield from sampler_lost(evidence.telemetry, evidence.window, evidence.sample_interval_ns)
    yield from machine_findings(evidence.telemetry, evidence.window, evidence.max_foreign_share)
    yield from answer_findings(inside.ok)
    yield from resent(inside, evidence.max_failure_share)
    yield from _mix(evidence, inside)
    yield from _off_length(evidence.traffic)
    yield from _unfilled(evidence, load)
    yield from uncalibrated(evidence, load)
    yield from _of_counters(evidence)
    yield from address_findings(inside, evidence.telemetry, evidence.window, evidence.replica_header)


def _of_faults(faults: Sequence[FaultRecord]) -> Iterator[Finding]:
    """Faults that were not caused or ended as the experiment says."""
    for fault in faults:
        if fault.error:
            yield invalid(FindingCode.FAULT_FAILED, fault=fault.action.value, error=fault.error)


def _length(evidence: Evidence) -> Iterator[Finding]:
    """A window that is shorter than needed: INVALID, or a warning if only the plan ended early."""
    length_s, ramp = evidence.window.length_s, evidence.ramp
    needed_s = ramp.window_s if ramp else 0.0
    if evidence.engine_death or (length_s > 0 and length_s >= needed_s * (1 - _ROUNDING)):
        return
    turnovers_s = TURNOVERS * (ramp.turnover_s or 0.0) if ramp else 0.0
    is_capped = length_s >= evidence.max_window_s * (1 - _ROUNDING)
    if length_s <= 0 or length_s < turnovers_s or is_capped:
        least_s = turnovers_s if length_s > 0 and not is_capped else needed_s
        yield invalid(FindingCode.WINDOW_TOO_SHORT, window_s=length_s, needed_window_s=least_s)
    else:
        yield warning(FindingCode.PLAN_ENDED_EARLY, planned_s=length_s, needed_window_s=needed_s)


def _cut(ramp: RampRecord | None) -> Iterator[Finding]:
    """Sessions in progress that may have ended before the window did."""
    if ramp is not None and ramp.unwritten_s > 0:
        yield invalid(FindingCode.SESSIONS_CUT, unwritten_s=ramp.unwritten_s)


def _mix(evidence: Evidence, inside: Requests) -> Iterator[Finding]:
    """Requests unlike those of the load in the long run: in their turns or, in a closed loop, their lengths."""
    traffic = evidence.traffic
    if evidence.window.kind is not WindowKind.STEADY or traffic is None or len(inside) < _MIN_MIX_REQUESTS:
        return
    mean, error = clustered_mean(zip(inside.values("session"), inside.values("turn"), strict=True))
    if traffic.mean_turn and abs(mean - traffic.mean_turn) > max(_MAX_MIX_ERROR * traffic.mean_turn, _MAX_SE * error):
        yield invalid(FindingCode.TURN_MIX, window_turn=mean + 1, workload_turn=traffic.mean_turn + 1)
    lengths = inside.take(inside.numbers("part") == 1).ints("requested_output_tokens")
    lengths = lengths[lengths != UNKNOWN]
    expected = traffic.mean_output_tokens
    if evidence.load.concurrency is None or not expected or len(lengths) < _MIN_MIX_REQUESTS:
        return
    mean, error = float(lengths.mean()), traffic.output_tokens_sd / math.sqrt(len(lengths))
    if abs(mean - expected) > max(_MAX_MIX_ERROR * expected, _MAX_SE * error):
        yield invalid(FindingCode.LENGTH_MIX, window_tokens=mean, workload_tokens=expected)


def _stopped(telemetry: Sequence[TelemetryRecord], measured: Requests) -> Iterator[Finding]:
    """Engine processes that were stopped (state T) between the first request's planned start and the last one's end.

    Such an engine has not failed, but the trial does not show its speed.
    """
    if not len(measured):
        return
    start_ns, end_ns = int(measured.ints("planned_ns").min()), int(measured.ints("ended_ns").max())
    samples = [record for record in telemetry if record.source == "engine" and start_ns <= record.t_ns <= end_ns]
    stops = [
        (later.t_ns - sample.t_ns, sample) for sample, later in itertools.pairwise(samples) if _count(sample, "stopped")
    ]
    stopped_s = sum(length_ns for length_ns, _ in stops) / 1e9
    if stopped_s >= _MIN_STOPPED_S:
        stopped, processes = max((_count(sample, "stopped"), _count(sample, "processes")) for _, sample in stops)
        yield invalid(FindingCode.ENGINE_STOPPED, stopped_processes=stopped, processes=processes, stopped_s=stopped_s)


def _count(record: TelemetryRecord, name: str) -> int:
    value = record.values.get(name)
    return value if isinstance(value, int) else 0


def _froze(evidence: Evidence, load: Requests) -> Iterator[Finding]:
    """A silence of the engine that neither the client nor a stop of its processes explains."""
    if silence := unusual_silence(load, evidence.window):
        share = silence.length_s / evidence.window.length_s
        yield warning(
            FindingCode.ENGINE_FROZE, silent_s=silence.length_s, window_share=share, in_flight=silence.in_flight,
            usual_s=silence.usual_s,
        )  # fmt: skip


def _drain(evidence: Evidence, inside: Requests) -> Iterator[Finding]:
    """Rates over a makespan of which a fair part came after the last request was planned."""
    window = evidence.window
    if window.kind is not WindowKind.MAKESPAN or not len(inside):
        return
    drain_s = (window.end_ns - int(inside.ints("planned_ns").max())) / NS_PER_S
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
    elif disagreement := tokens_disagree(evidence.telemetry, Requests(evidence.requests)):
        yield disagreement


def _hits(evidence: Evidence, load: Requests) -> tuple[int, int] | None:
    """Prompt tokens from all tiers of the engine's cache, and all prompt tokens; None if the engine reports no hits.

    Counts from the engine's answers, or from its metrics endpoint if the answers have none.
    """
    if tokens := prompt_tokens(load):
        return tokens
    samples = readings(evidence.telemetry)
    counted = [samples.increase(name).value for name in ("prefix_hits_tokens_total", "external_hits_tokens_total")]
    known = [hits for hits in counted if hits is not None]
    return (round(sum(known)), int(np.nan_to_num(prompt_lengths(load)).sum())) if known else None


def _not_cold(evidence: Evidence, load: Requests) -> Iterator[Finding]:
    """Cache hits beyond the prompts that a cold trial itself repeats."""
    traffic, hits = evidence.traffic, _hits(evidence, load)
    if traffic is None or traffic.cache is not Cache.COLD or hits is None:
        return
    again = load.take(load.ints("cycle") > 0)
    sent_again = int(np.nan_to_num(again.numbers("requested_input_tokens")).sum())
    in_ramp = int((load.equal("phase", Phase.RAMP) & (load.ints("cycle") == 0)).sum())
    unsent_share = max(0.0, 1 - in_ramp / traffic.ramp_requests) if traffic.ramp_requests else 0.0
    repeated = traffic.repeated_tokens - round(unsent_share * traffic.ramp_repeated_tokens)
    # one block more per request: an engine with smaller blocks hits more of a prefix than the simulated cache
    allowed = repeated + sent_again + traffic.block_tokens * len(load)
    if hits[0] > allowed:
        yield invalid(FindingCode.CACHE_NOT_COLD, cached_tokens=hits[0], prompt_tokens=hits[1], repeated_tokens=allowed)


def _unfilled(evidence: Evidence, measured: Requests) -> Iterator[Finding]:
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


def _unsteady(evidence: Evidence, load: Requests) -> Iterator[Finding]:
    """An open loop that the engine does not sustain, or an engine that changed its pace."""
    window = evidence.window
    if window.kind is not WindowKind.STEADY or window.length_s <= 0:
        return
    found, are_queued = list[Finding](), False
    if evidence.load.concurrency is None:
        rate_per_s = planned_per_s(evidence)
        queue = backlog(load, window, rate_per_s)
        found = list(pressure_findings(evidence, load, queue, rate_per_s))
        are_queued = queue.seen_share > _MAX_QUEUED_SHARE
    yield from found
    codes = {finding.code for finding in found}
    if FindingCode.SATURATED in codes:
        return
    change = change_of_state(
        load.planned_inside(window), are_queued=are_queued,
        may_wander=FindingCode.WINDOW_SHORT_FOR_QUEUE in codes,
        are_sessions=evidence.traffic is not None and evidence.traffic.turns > 1,
    )  # fmt: skip
    if change is not None:
        yield invalid(
            FindingCode.BECAME_SLOWER if change.is_slower else FindingCode.BECAME_FASTER, latency=change.latency,
            at_s=(change.at_ns - window.start_ns) / NS_PER_S, before_s=change.before_s, after_s=change.after_s,
        )  # fmt: skip


def _drifts(evidence: Evidence, inside: Requests) -> Iterator[Finding]:
    """An engine whose memory or latency has a trend through a long window."""
    if evidence.window.kind is not WindowKind.STEADY:
        return
    for grown in memory_growth(evidence.telemetry, evidence.window):
        yield warning(
            FindingCode.MEMORY_GROWS, source=grown.source, grown_mib=round(grown.grown_bytes / 2**20),
            growth_share=grown.share,
        )  # fmt: skip
    for drift in latency_drift(inside, evidence.window):
        direction = "rose" if drift.share > 0 else "fell"
        yield warning(
            FindingCode.LATENCY_DRIFTS, latency=drift.latency, direction=direction, change_share=abs(drift.share)
        )
