"""All metrics of one trial."""

from collections.abc import Iterable, Sequence

from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.metric import Role
from bakeoff.results.metrics import sessions, throughput
from bakeoff.results.metrics.catalogue import CATALOGUE, FAMILIES
from bakeoff.results.metrics.declaration import Needs, ShareOf, TrialData
from bakeoff.results.metrics.values import Absence, Value, absent
from bakeoff.results.records import RequestRecord, Slo, TelemetryRecord, TrialRecord, Window, WindowKind
from bakeoff.results.requests import Requests

_QUEUED = {FindingCode.SATURATED, FindingCode.HELD_BACK, FindingCode.BACKLOG_GREW, FindingCode.CAPACITY_UNCLEAR}
_SATURATED = absent("the engine fell behind the load", Absence.SATURATED)


def trial_metrics(
    trial: TrialRecord, requests: Iterable[RequestRecord], telemetry: Sequence[TelemetryRecord], slo: Slo
) -> dict[str, Value]:
    """Compute the values of :data:`~bakeoff.results.metrics.catalogue.CATALOGUE` for a trial.

    Args:
        trial: record of the trial.
        requests: decoded requests; warm-up is excluded here.
        telemetry: samples of the trial.
        slo: SLO of the experiment.

    Returns:
        one value per name of the catalogue; for a saturated trial those that need capacity are absent.
    """
    data = _data(trial, requests, telemetry, slo)
    is_saturated = FindingCode.SATURATED in {finding.code for finding in trial.findings}
    return {
        name: _SATURATED if is_saturated and Role.NEEDS_CAPACITY in metric.roles else metric.of(data)
        for name, metric in CATALOGUE.items()
    }


def observation_counts(
    trial: TrialRecord, requests: Iterable[RequestRecord], telemetry: Sequence[TelemetryRecord]
) -> dict[str, int]:
    """Count a trial's observations of each metric family; arguments as of :func:`trial_metrics`."""
    data = _data(trial, requests, telemetry, Slo())
    return {family: metric.count(data) for family, metric in FAMILIES.items()}


def whole_load_metrics(trial: TrialRecord, requests: Iterable[RequestRecord], slo: Slo) -> dict[str, Value]:
    """Compute request metrics over the whole load, including ramp and tail, as other tools and engines do."""
    load = Requests(requests).under_load
    end_ns = int(load.ints("ended_ns").max(initial=trial.issue_start_ns)) + 1
    whole = Window(trial.issue_start_ns, end_ns, WindowKind.MAKESPAN)
    data = TrialData(load, whole, slo, throughput.share_inside, trial=trial)
    return {name: metric.of(data) for name, metric in CATALOGUE.items() if metric.needs is not Needs.TELEMETRY}


def request_metrics(requests: Iterable[RequestRecord], slo: Slo) -> dict[str, Value]:
    """Compute the metrics with one observation per request: latencies, attainment and failures.

    Args:
        requests: those that count.
        slo: SLO of the experiment.
    """
    counted = Requests(requests)
    data = TrialData(counted, Window(0, 0), slo, throughput.share_inside, planned=counted)
    return {name: metric.of(data) for name, metric in CATALOGUE.items() if metric.needs is Needs.PLANNED}


def data_over(trial: TrialRecord, load: Requests, requests: Requests, slo: Slo) -> TrialData:
    """A trial of which some requests count.

    Args:
        trial: its record.
        load: all its requests under load.
        requests: those that count.
        slo: SLO of the experiment.
    """
    return TrialData(load, trial.window, slo, throughput.share_inside, planned=requests, trial=trial)


def long_run_metrics(data: TrialData, *, with_rates: bool) -> dict[str, Value]:
    """Compute the metrics of sessions, and the rates of a closed loop.

    Args:
        data: from :func:`data_over`.
        with_rates: whether the rates are known (:func:`~bakeoff.results.metrics.closed_loop.is_in_long_run`).
    """
    rates = [metric for metric in throughput.METRICS if metric.name in throughput.RATES and with_rates]
    return {metric.name: metric.of(data) for metric in (*sessions.METRICS, *rates)}


def share_of(trial: TrialRecord) -> ShareOf:
    """How much of a request counts in the rates of a trial: while a backlog grew, a share would count time in it."""
    grew = any(finding.code in _QUEUED for finding in trial.findings)
    return throughput.ended_inside if grew else throughput.share_inside


def _data(
    trial: TrialRecord, requests: Iterable[RequestRecord], telemetry: Sequence[TelemetryRecord], slo: Slo
) -> TrialData:
    every = Requests(requests)
    idle = _idle_window(trial, every, telemetry)
    return TrialData(every.under_load, trial.window, slo, share_of(trial), telemetry=telemetry, idle=idle, trial=trial)


def _idle_window(trial: TrialRecord, requests: Requests, telemetry: Sequence[TelemetryRecord]) -> Window | None:
    """From the trial's first GPU sample, when the engine is ready, to the first request, warm-up included."""
    samples = (record.t_ns for record in telemetry if record.source.startswith("gpu"))
    # Samples of a trial begin a little after the trial does.
    start_ns = max(trial.started_ns, min(samples, default=trial.started_ns))
    idle = Window(start_ns, int(requests.ints("planned_ns").min(initial=trial.issue_start_ns)))
    return idle if idle.length_s > 0 else None
