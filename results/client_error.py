"""What the measuring client's own error means for results: its largest value, and its share in each metric.

The error is found by the harness against a server of known truth (``bakeoff calibrate``); here it is only read.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from results.metrics.values import Value
from results.records import ClientError, TrialRecord

_OF_A_START = ("ttft_", "e2e_")
"""Metrics that count from a send to a chunk: as wrong as a TTFT."""
_OF_A_GAP = ("chunk_gap_",)
_OF_A_TOKEN = ("itl_", "tpot_")
"""Metrics that spread a gap over the tokens it delivered, and its error with it."""


class Measured(Protocol):
    """A trial with its metrics: :class:`results.run.Trial`."""

    @property
    def record(self) -> TrialRecord:
        """Holds the client's error."""
        ...

    @property
    def metrics(self) -> dict[str, Value]:
        """One value per name of the catalogue."""
        ...


def largest(errors: Sequence[ClientError]) -> ClientError | None:
    """The worst of each field; None of none."""
    if not errors:
        return None
    gaps_s = [error.itl_s for error in errors if error.itl_s is not None]
    return ClientError(
        requests=min(error.requests for error in errors),
        chunks_per_s=min(error.chunks_per_s for error in errors),
        ttft_s=max(error.ttft_s for error in errors),
        itl_s=max(gaps_s) if gaps_s else None,
        send_lag_s=max(error.send_lag_s for error in errors),
        cpu_s=max(error.cpu_s for error in errors),
    )


def error_s(metric: str, error: ClientError | None, tokens_per_chunk: float | None) -> float | None:
    """The ± of one latency metric in seconds; None where the client's error was not found or does not matter.

    Args:
        metric: name in the catalogue.
        error: of the client.
        tokens_per_chunk: mean of the trials; an unknown one counts as 1, which makes no error smaller than it is.
    """
    if error is None:
        return None
    if metric.startswith(_OF_A_START):
        return error.ttft_s
    if error.itl_s is not None and metric.startswith(_OF_A_GAP):
        return error.itl_s
    if error.itl_s is not None and metric.startswith(_OF_A_TOKEN):
        return error.itl_s / max(1.0, tokens_per_chunk or 1.0)
    return None


def largest_error_s(metric: str, trials: Iterable[Measured]) -> float:
    """The largest ± of a metric over trials; 0 where none is known.

    Args:
        metric: name in the catalogue.
        trials: of one cell, or of both sides of a comparison: a client is late and never early, so the errors of the
            sides point the same way, and the larger of them bounds their difference.
    """
    known = (error_s(metric, t.record.client_error, t.metrics["tokens_per_chunk"].value) for t in trials)
    return max((error for error in known if error is not None), default=0.0)
