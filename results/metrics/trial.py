"""All metrics of one trial."""

from collections.abc import Callable, Sequence

from results.metrics import latency, memory, throughput
from results.metrics.catalogue import QUANTILES
from results.metrics.energy import energy, per_unit
from results.metrics.percentiles import percentile
from results.metrics.values import Value, absent
from results.metrics.window import Window, steady_window
from results.records import Outcome, Phase, RequestRecord, Slo, TelemetryRecord, TrialRecord


def measured_only(requests: Sequence[RequestRecord]) -> list[RequestRecord]:
    """The requests that count: warm-up left out."""
    return [request for request in requests if request.phase is Phase.MEASURED]


def trial_window(trial: TrialRecord, requests: Sequence[RequestRecord]) -> Window:
    """The steady window of a trial, from its measured requests."""
    return steady_window(measured_only(requests), trial.load, trial.issue_start_ns, trial.issue_end_ns)


def trial_metrics(
    trial: TrialRecord, requests: Sequence[RequestRecord], telemetry: Sequence[TelemetryRecord], slo: Slo
) -> dict[str, Value]:
    """Fold a trial's log into the values of :data:`~results.metrics.catalogue.CATALOGUE`.

    Args:
        trial: the trial's record.
        requests: its decoded requests; warm-up ones are left out here.
        telemetry: its samples.
        slo: the experiment's objective.

    Returns:
        one value for each name of the catalogue.
    """
    measured = measured_only(requests)
    window = steady_window(measured, trial.load, trial.issue_start_ns, trial.issue_end_ns)
    values = _latencies(measured, window)
    values["output_tokens_per_s"] = throughput.output_tokens_per_s(measured, window)
    values["prompt_tokens_per_s"] = throughput.prompt_tokens_per_s(measured, window)
    values["requests_per_s"] = throughput.requests_per_s(measured, window)
    values["goodput_per_s"] = throughput.goodput_per_s(measured, window, slo)
    values["attainment"] = throughput.attainment(measured, slo)
    values["failures"] = Value(float(sum(request.outcome is not Outcome.OK for request in measured)))
    values["tokens_per_chunk"] = _tokens_per_chunk(measured)
    values["peak_host_bytes"] = memory.peak_host_bytes(telemetry)
    values["peak_gpu_bytes"] = memory.peak_gpu_bytes(telemetry)
    values.update(_energies(values, telemetry, window, _idle_window(trial, requests)))
    return values


Latency = Callable[[Sequence[RequestRecord], Window], list[float]]
"""Observations of some requests, in seconds; what is between chunks counts only inside the window."""


def _one_each(of: Callable[[RequestRecord], float | None]) -> Latency:
    return lambda requests, _: [value for request in requests if (value := of(request)) is not None]


_OF_ANSWERED: dict[str, Latency] = {
    "ttft": _one_each(latency.ttft_s),
    "ttft_from_send": _one_each(latency.ttft_from_send_s),
    "itl": latency.itl_s,
    "chunk_gap": latency.chunk_gaps_s,
    "tpot": _one_each(latency.tpot_s),
    "e2e": _one_each(latency.e2e_s),
    "normalized_latency": _one_each(latency.normalized_latency_s),
}
_send_lags = _one_each(latency.send_lag_s)


def latency_observations(measured: Sequence[RequestRecord], window: Window) -> dict[str, list[float]]:
    """What each latency's percentiles are taken of, in seconds: of single requests only those that ended ok.

    Args:
        measured: without warm-up.
        window: inside which gaps count.
    """
    answered = _answered(measured)
    of_answered = {name: observations(answered, window) for name, observations in _OF_ANSWERED.items()}
    return of_answered | {"send_lag": _send_lags(measured, window)}


def observations_by_request(name: str, measured: Sequence[RequestRecord], window: Window) -> list[list[float]]:
    """What one latency's percentiles are taken of, for each request that ended ok, in the order of their plan."""
    in_order = sorted(_answered(measured), key=lambda request: request.planned_ns)
    return [_OF_ANSWERED[name]([request], window) for request in in_order]


def _answered(measured: Sequence[RequestRecord]) -> list[RequestRecord]:
    return [request for request in measured if request.outcome is Outcome.OK]


def _latencies(measured: Sequence[RequestRecord], window: Window) -> dict[str, Value]:
    """Percentiles of each latency."""
    observations = latency_observations(measured, window)
    return {
        f"{name}_{label}_s": percentile(values, q) for name, values in observations.items() for label, q in QUANTILES
    }


def _tokens_per_chunk(measured: Sequence[RequestRecord]) -> Value:
    chunks = sum(len(request.chunk_ns) for request in measured)
    return Value(sum(r.total_chunk_tokens for r in measured) / chunks) if chunks else absent("no token arrived")


def _idle_window(trial: TrialRecord, requests: Sequence[RequestRecord]) -> Window | None:
    """From the start of the trial, whose engine is ready by then, to the first request, warm-up included."""
    idle = Window(trial.started_ns, min([trial.issue_start_ns, *(request.planned_ns for request in requests)]))
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
