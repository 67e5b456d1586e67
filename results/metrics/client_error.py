"""The load generator's own error: the ± of each latency metric.

The harness measures it against a mock server with known timing (``bakeoff lab calibrate``); this module only reads it.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from bakeoff.results.metrics.declaration import QUANTILES
from bakeoff.results.metrics.values import Value
from bakeoff.results.records import ClientError, TrialRecord


class Measured(Protocol):
    """A trial with its metrics, such as :class:`bakeoff.results.run.cells.Trial`."""

    @property
    def record(self) -> TrialRecord:
        """The trial's record, which has the client's error."""
        ...

    @property
    def metrics(self) -> dict[str, Value]:
        """One value per name of the catalogue."""
        ...


def largest(errors: Sequence[ClientError]) -> ClientError | None:
    """Return the worst value of each field and metric; None for no errors."""
    if not errors:
        return None
    by_metric: dict[str, float] = {}
    for error in errors:
        for metric, error_s in error.by_metric.items():
            by_metric[metric] = max(error_s, by_metric.get(metric, 0.0))
    return ClientError(
        requests=min(error.requests for error in errors),
        chunks_per_s=min(error.chunks_per_s for error in errors),
        send_lag_s=max(error.send_lag_s for error in errors),
        cpu_s=max(error.cpu_s for error in errors),
        by_metric=by_metric,
    )


def error_s(metric: str, error: ClientError | None) -> float | None:
    """Return the ± of one metric in seconds; None if unknown, or if the metric is not a latency.

    Args:
        metric: name in the catalogue.
        error: of the client.
    """
    return error.by_metric.get(metric) if error is not None else None


def widest_s(latency: str, error: ClientError) -> float | None:
    """Return the largest ± over the percentiles of one latency; None if none is known.

    Args:
        latency: such as ``ttft`` or ``chunk_gap``.
        error: of the client.
    """
    errors = (error.by_metric.get(f"{latency}_{label}_s") for label, _ in QUANTILES)
    return max((error_s for error_s in errors if error_s is not None), default=None)


def largest_error_s(metric: str, trials: Iterable[Measured]) -> float:
    """Return the largest ± of a metric over trials; 0 if none is known.

    Args:
        metric: name in the catalogue.
        trials: of one cell, or of both sides of a comparison. The client is only ever late, so both sides err in the
            same direction and the larger error bounds the error of their difference.
    """
    return max((error_s(metric, trial.record.client_error) or 0.0 for trial in trials), default=0.0)
