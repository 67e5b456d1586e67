"""All metrics of one trial."""

import math
from collections.abc import Callable, Sequence

import msgspec

from bakeoff.results.findings import FindingCode
from bakeoff.results.metrics import latency, memory, throughput
from bakeoff.results.metrics.catalogue import QUANTILES
from bakeoff.results.metrics.energy import energy, per_unit
from bakeoff.results.metrics.machine import foreign_cpu_share
from bakeoff.results.metrics.percentiles import percentile
from bakeoff.results.metrics.values import Absence, Value, absent
from bakeoff.results.records import Outcome, Phase, RequestRecord, Slo, TelemetryRecord, TrialRecord, Window, WindowKind

_QUEUED = {FindingCode.SATURATED, FindingCode.BACKLOG_GREW, FindingCode.CAPACITY_UNCLEAR}


def under_load(requests: Sequence[RequestRecord]) -> list[RequestRecord]:
    """The requests of ramp, window and tail, without warm-up."""
    return [request for request in requests if request.phase is not Phase.WARMUP]


def trial_metrics(
    trial: TrialRecord, requests: Sequence[RequestRecord], telemetry: Sequence[TelemetryRecord], slo: Slo
) -> dict[str, Value]:
    """Compute the values of :data:`~bakeoff.results.metrics.catalogue.CATALOGUE` for a trial.

    Args:
        trial: record of the trial.
        requests: decoded requests; warm-up is excluded here.
        telemetry: samples of the trial.
        slo: SLO of the experiment.

    Returns:
        one value per name of the catalogue; for a saturated trial only rates are present.
    """
    load, window = under_load(requests), trial.window
    values = _of_requests(load, window, slo, share_of(trial))
    if FindingCode.SATURATED in {finding.code for finding in trial.findings}:
        values |= dict.fromkeys((*_percentiles(latency_observations([], window)), *_OF_SLO), _SATURATED)
    values["peak_host_bytes"] = memory.peak_host_bytes(telemetry)
    values["peak_gpu_bytes"] = memory.peak_gpu_bytes(telemetry)
    values["foreign_cpu_share"] = foreign_cpu_share(telemetry, window)
    values.update(_energies(values, telemetry, window, _idle_window(trial, requests, telemetry)))
    return values


def share_of(trial: TrialRecord) -> throughput.ShareOf:
    """How much of a request counts in the rates of a trial: while a backlog grew, a share would count time in it."""
    grew = any(finding.code in _QUEUED for finding in trial.findings)
    return throughput.ended_inside if grew else throughput.share_inside


def whole_load_metrics(trial: TrialRecord, requests: Sequence[RequestRecord], slo: Slo) -> dict[str, Value]:
    """Compute request metrics over the whole load, including ramp and tail, as other tools and engines do."""
    load = under_load(requests)
    end_ns = max((request.ended_ns for request in load), default=trial.issue_start_ns) + 1
    return _of_requests(load, Window(trial.issue_start_ns, end_ns, WindowKind.MAKESPAN), slo, throughput.share_inside)


_OF_SLO = ("goodput_per_s", "attainment")
_SATURATED = absent("the engine fell behind the load", Absence.SATURATED)


def _of_requests(
    load: Sequence[RequestRecord], window: Window, slo: Slo, share_of: throughput.ShareOf
) -> dict[str, Value]:
    inside = throughput.planned_inside(load, window)
    values = request_metrics(inside, slo) | _percentiles(_of_window(load, window))
    values["output_tokens_per_s"] = throughput.output_tokens_per_s(load, window)
    values["prompt_tokens_per_s"] = throughput.prompt_tokens_per_s(load, window, share_of)
    values["uncached_prompt_tokens_per_s"] = throughput.uncached_prompt_tokens_per_s(load, window, share_of)
    values["requests_per_s"] = throughput.requests_per_s(load, window, share_of)
    values["requests_in_flight"] = throughput.requests_in_flight(load, window)
    values["goodput_per_s"] = throughput.goodput_per_s(load, window, slo)
    values["tokens_per_chunk"] = _tokens_per_chunk(inside)
    return values


def request_metrics(requests: Sequence[RequestRecord], slo: Slo) -> dict[str, Value]:
    """Compute the metrics with one observation per request: latencies, attainment and failures.

    Args:
        requests: those that count.
        slo: SLO of the experiment.
    """
    values = _percentiles(_of_each(requests))
    values["attainment"] = throughput.attainment(requests, slo)
    values["failures"] = Value(float(sum(map(has_failed, requests))))
    return values


class Observations(msgspec.Struct, frozen=True):
    """Observations of one latency.

    Attributes:
        values_s: in seconds.
        failures: failed requests, which count as later than any value.
        answers: answers that the observations come from, if one has several; else None.
    """

    values_s: list[float]
    failures: int = 0
    answers: int | None = None

    @property
    def count(self) -> int:
        """Number of observations, failures included."""
        return len(self.values_s) + self.failures


OF_REQUESTS: dict[str, Callable[[RequestRecord], float | None]] = {
    "ttft": latency.ttft_s,
    "ttft_from_send": latency.ttft_from_send_s,
    "tpot": latency.tpot_s,
    "e2e": latency.e2e_s,
    "normalized_latency": latency.normalized_latency_s,
}
"""Latencies per request; a failed request counts as later than every success."""
_OF_GAPS: dict[str, Callable[[Sequence[RequestRecord], Window], list[float]]] = {
    "itl": latency.itl_s,
    "chunk_gap": latency.chunk_gaps_s,
}
"""Latencies per token delivered within the window, whatever the outcome of its request."""
LATENCIES = ("ttft", "ttft_from_send", "itl", "chunk_gap", "tpot", "e2e", "normalized_latency", "send_lag")


def latency_observations(load: Sequence[RequestRecord], window: Window) -> dict[str, Observations]:
    """Collect the observations of each latency.

    Args:
        load: all requests under load.
        window: a request counts by its planned time, a token by its arrival.
    """
    observations = _of_each(throughput.planned_inside(load, window)) | _of_window(load, window)
    return {name: observations[name] for name in LATENCIES}


def _of_each(requests: Sequence[RequestRecord]) -> dict[str, Observations]:
    answered = [request for request in requests if request.outcome is Outcome.OK]
    failures = sum(map(has_failed, requests))
    return {name: Observations(_known(of, answered), failures) for name, of in OF_REQUESTS.items()}


def _of_window(load: Sequence[RequestRecord], window: Window) -> dict[str, Observations]:
    by_request = {name: [of([request], window) for request in load] for name, of in _OF_GAPS.items()}
    observations = {
        name: Observations([gap for own in gaps for gap in own], answers=sum(map(bool, gaps)))
        for name, gaps in by_request.items()
    }
    send_lags_s = _known(latency.send_lag_s, throughput.planned_inside(load, window))
    return {**observations, "send_lag": Observations(send_lags_s)}


def observations_by_request(name: str, load: Sequence[RequestRecord], window: Window) -> list[list[float]]:
    """Return one latency's observations per request, in planned order; a failure is infinite."""
    in_order = sorted(load, key=lambda request: request.planned_ns)
    if name in _OF_GAPS:
        return [_OF_GAPS[name]([request], window) for request in in_order]
    return [
        [math.inf] if has_failed(request) else _known(OF_REQUESTS[name], [request])
        for request in throughput.planned_inside(in_order, window)
        if request.outcome is not Outcome.CANCELLED
    ]


def has_failed(request: RequestRecord) -> bool:
    """Whether a request failed; a request cancelled by the client neither failed nor succeeded."""
    return request.outcome not in {Outcome.OK, Outcome.CANCELLED}


def _known(of: Callable[[RequestRecord], float | None], requests: Sequence[RequestRecord]) -> list[float]:
    return [value for request in requests if (value := of(request)) is not None]


def _percentiles(observations_by_latency: dict[str, Observations]) -> dict[str, Value]:
    return {
        f"{name}_{label}_s": percentile(observations.values_s, q, observations.failures, answers=observations.answers)
        for name, observations in observations_by_latency.items()
        for label, q in QUANTILES
    }


def _tokens_per_chunk(inside: Sequence[RequestRecord]) -> Value:
    chunks = sum(len(latency.arrivals(request)) for request in inside)
    return Value(sum(r.total_chunk_tokens for r in inside) / chunks) if chunks else absent("no token arrived")


def _idle_window(
    trial: TrialRecord, requests: Sequence[RequestRecord], telemetry: Sequence[TelemetryRecord]
) -> Window | None:
    """From the trial's first GPU sample, when the engine is ready, to the first request, warm-up included."""
    samples = (record.t_ns for record in telemetry if record.source.startswith("gpu"))
    # Samples of a trial begin a little after the trial does.
    start_ns = max(trial.started_ns, min(samples, default=trial.started_ns))
    idle = Window(start_ns, min([trial.issue_start_ns, *(request.planned_ns for request in requests)]))
    return idle if idle.length_s > 0 else None


def _energies(
    values: dict[str, Value], telemetry: Sequence[TelemetryRecord], window: Window, idle: Window | None
) -> dict[str, Value]:
    joules = energy(telemetry, window, idle)
    tokens = (values["output_tokens_per_s"].value or 0.0) * window.length_s
    requests = (values["requests_per_s"].value or 0.0) * window.length_s
    return {
        "energy_per_output_token_j": per_unit(joules.total_j, tokens, "output token"),
        "energy_above_idle_per_output_token_j": per_unit(joules.above_idle_j, tokens, "output token"),
        "energy_per_request_j": per_unit(joules.total_j, requests, "successful request"),
    }
