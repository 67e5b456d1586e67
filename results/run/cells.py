"""Trials of a run with their metrics, and cells: the repeats of one engine at one load."""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec

from bakeoff.results.metrics import CATALOGUE, Value, client_error
from bakeoff.results.metrics.catalogue import LATENCIES
from bakeoff.results.metrics.declaration import QUANTILES
from bakeoff.results.metrics.quality import QualityRecord, QualitySummary, pooled, why_unchecked
from bakeoff.results.metrics.relaxation import MIN_STATES, needed_window_s, relaxation_of
from bakeoff.results.records import (
    ClientError,
    TelemetryRecord,
    TrialPlan,
    TrialRecord,
    Verdict,
    Window,
)
from bakeoff.results.requests import Requests
from bakeoff.results.run.work import Work
from bakeoff.results.server_view import ServerCell, server_cell
from bakeoff.results.statistics.interval import Interval, interval_of, wilson_interval
from bakeoff.results.statistics.queue_intervals import queue_interval

_WITH_WAIT = ("ttft", "ttft_from_send", "e2e", "normalized_latency")
"""Latencies that contain the wait in an engine's queue."""


class Trial(msgspec.Struct, frozen=True, dict=True):
    """One finished trial with its metrics.

    Attributes:
        record: verdict, counts and engine.
        requests: decoded requests, in planned order.
        telemetry: samples.
        metrics: one value per metric of the catalogue, over the window.
        load_metrics: request metrics over the whole load, ramp and tail included.
        server: server-side metrics, one value per name of :data:`bakeoff.results.server_view.SEEN`.
        quality: comparison of answers with a reference's; None without one.
        work: work of its measured requests.
    """

    record: TrialRecord
    requests: Requests
    telemetry: list[TelemetryRecord]
    metrics: dict[str, Value]
    load_metrics: dict[str, Value]
    server: dict[str, Value]
    quality: QualityRecord | None = None
    work: Work = Work()

    @property
    def window(self) -> Window:
        """Measured window."""
        return self.record.window

    @cached_property
    def load(self) -> Requests:
        """Requests under load, without warm-up."""
        return self.requests.under_load

    @cached_property
    def inside(self) -> Requests:
        """Requests under load that were planned inside the window."""
        return self.load.planned_inside(self.window)

    @cached_property
    def answered(self) -> Requests:
        """Successful requests planned inside the window."""
        return self.inside.ok


class Cell(msgspec.Struct, frozen=True):
    """One engine at one load of one workload, over its valid repeats.

    Attributes:
        engine: label.
        workload: name.
        load: label of the load.
        valid: number of valid trials.
        planned: number of planned trials; one that was measured again counts once.
        failures: failed requests and all requests planned inside the windows of all finished trials.
        intervals: metric → 95 % interval over the valid trials; absent metrics have no entry.
        reasons: metric → why it has no entry.
        client_error: the client's own error, the largest over all finished trials.
        uncalibrated: why ``client_error`` is None.
        server: server-side metrics over the valid trials.
        quality: comparison of answers with a reference's, over all finished trials.
        unchecked: why ``quality`` is None.
        unjudged: metric → mean over its INVALID trials, if none is valid: shown as such, and never compared.
    """

    engine: str
    workload: str
    load: str
    valid: int
    planned: int
    failures: tuple[int, int]
    intervals: dict[str, Interval]
    reasons: dict[str, str]
    client_error: ClientError | None = None
    uncalibrated: str | None = None
    server: ServerCell = ServerCell()
    quality: QualitySummary | None = None
    unchecked: str | None = None
    unjudged: dict[str, float] = {}

    def holds(self, trial: Trial) -> bool:
        """Whether a trial belongs to the cell."""
        return key_of(trial.record) == (self.engine, self.workload, self.load)

    def error_s(self, metric: str) -> float | None:
        """Client error of a latency metric in seconds; None if unknown, or for other metrics."""
        return client_error.error_s(metric, self.client_error)


def repeated_trials(plans: Sequence[TrialPlan]) -> set[str]:
    """Ids of the trials that the client or the machine spoilt, and that were planned again."""
    return {plan.replaces for plan in plans if plan.replaces is not None}


def _score_interval(scores: Interval, valid: Sequence[Trial]) -> Interval:
    """Interval of a share of right answers, over the questions: every repeat asks the same ones."""
    questions = round(sum(trial.work.scored for trial in valid) / len(valid))
    of_questions = wilson_interval(round(scores.centre * questions), questions)
    return msgspec.structs.replace(of_questions, centre=scores.centre, n=scores.n)


def cell_of(key: tuple[str, str, str], plans: Sequence[TrialPlan], trials: Sequence[Trial]) -> Cell:
    """The cell of some trials.

    Args:
        key: of the cell, as by :func:`key_of`.
        plans: planned trials of the run.
        trials: finished trials of the run.
    """
    repeated = repeated_trials(plans)
    planned = [plan for plan in plans if key_of(plan) == key and plan.id not in repeated]
    finished = [trial for trial in trials if key_of(trial.record) == key and trial.record.id not in repeated]
    valid = [trial for trial in finished if trial.record.verdict is Verdict.VALID]
    intervals: dict[str, Interval] = {}
    reasons: dict[str, str] = {}
    for name, metric in CATALOGUE.items():
        values = [trial.metrics[name] for trial in valid]
        if (reason := why_absent(values)) is not None:
            reasons[name] = reason
        elif interval := interval_of(metric.unit, [value.value for value in values if value.value is not None]):
            intervals[name] = interval
    intervals |= queue_intervals(intervals, valid)
    if (scores := intervals.get("right_share")) is not None:
        intervals["right_share"] = _score_interval(scores, valid)
    failed = int(sum(trial.metrics["failures"].value or 0 for trial in finished))
    requests = sum(len(trial.inside) for trial in finished)
    error = client_error.largest([e for trial in finished if (e := trial.record.client_error) is not None])
    checked = [trial.quality for trial in finished]
    quality = pooled(sample for record in checked if record for sample in record.samples)
    return Cell(
        *key,
        valid=len(valid),
        planned=len(planned),
        failures=(failed, requests),
        intervals=intervals,
        reasons=reasons,
        client_error=error,
        uncalibrated=_why_uncalibrated(finished) if error is None else None,
        server=server_cell([trial.server for trial in valid]),
        quality=quality,
        unchecked=why_unchecked(checked) if quality is None else None,
        unjudged={} if valid else _means(finished),
    )


def _means(trials: Sequence[Trial]) -> dict[str, float]:
    """Metric → mean over the trials that have it."""
    values = {name: [v for trial in trials if (v := trial.metrics[name].value) is not None] for name in CATALOGUE}
    return {name: statistics.fmean(own) for name, own in values.items() if own}


def queue_intervals(intervals: Mapping[str, Interval], valid: Sequence[Trial]) -> dict[str, Interval]:
    """Intervals of the latencies that contain a wait, where requests of an open loop pile up and decay slowly.

    They include the error of the window, or are without bounds where the window is too short to know it.

    Args:
        intervals: metric → interval over the trials.
        valid: the trials of one cell.
    """
    relaxed = [relaxation_of(trial.record, trial.load) for trial in valid]
    states = statistics.median(relaxation.states if relaxation else math.inf for relaxation in relaxed) if valid else 0
    if len(valid) < 2 or math.isinf(states):
        return {}
    needed_s = max(needed_window_s(relaxation) for relaxation in relaxed if relaxation)
    too_short = f"the window is too short for requests that pile up; raise trial.duration_s to {needed_s:,.0f}"
    found: dict[str, Interval] = {}
    for family in _WITH_WAIT:
        observed = [LATENCIES[family].by_request(trial.load, trial.window).values for trial in valid]
        for label, q in QUANTILES:
            name = f"{family}_{label}_s"
            if (interval := intervals.get(name)) is None:
                continue
            if states >= MIN_STATES:
                found[name] = queue_interval(interval, q, observed, states)
            else:
                found[name] = msgspec.structs.replace(interval, low=None, high=None, reason=too_short)
    return found


def why_absent(values: Sequence[Value]) -> str | None:
    """Why a metric is absent over several trials; None if all of them have it.

    One trial without the metric suffices. Using only the others would be biased: the trials with a p99 are those with
    the most requests, which were the fastest.
    """
    reasons = [value.reason for value in values if value.reason is not None]
    if not reasons:
        return None if values else "no valid trial"
    few = f"absent in {len(reasons)} of {len(values)} valid trials: " if len(reasons) < len(values) else ""
    return few + reasons[0]


def _why_uncalibrated(trials: Sequence[Trial]) -> str:
    if not trials:
        return "no trial ended"
    return next((trial.record.uncalibrated for trial in trials if trial.record.uncalibrated), "it was not measured")


def key_of(trial: TrialPlan | TrialRecord) -> tuple[str, str, str]:
    """Key of a trial's cell: engine, workload and load."""
    return trial.engine, trial.workload, trial.load.label
