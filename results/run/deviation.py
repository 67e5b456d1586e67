"""How far a profiled trial lies from the measured trials that it is to explain."""

import math
import statistics
from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from bakeoff.results.metrics.declaration import known
from bakeoff.results.metrics.latency import e2e_s
from bakeoff.results.records import Verdict
from bakeoff.results.run.cells import Trial, key_of

MAX_DEVIATION = 0.2
"""Largest change, as a share of the measured trials' figure, at which a profile counts as one of theirs."""


class Figure(StrEnum):
    """What is compared."""

    OUTPUT_RATE = "output_rate"
    """Output tokens per second."""
    MEAN_E2E = "mean_e2e"
    """Mean E2E of the successful requests of the window, in seconds."""


class Deviation(msgspec.Struct, frozen=True):
    """The figure in which a profiled trial lies farthest from the measured ones.

    Attributes:
        figure: which.
        measured: its mean over the measured trials.
        profiled: its value in the profiled trial.
        trials: number of measured trials.
    """

    figure: Figure
    measured: float
    profiled: float
    trials: int

    @property
    def ratio(self) -> float:
        """Profiled over measured."""
        return self.profiled / self.measured

    @property
    def is_slower(self) -> bool:
        """Whether the profiled trial was slower."""
        return (self.ratio > 1) == (self.figure is Figure.MEAN_E2E)


def deviation_of(profiled: Trial, finished: Sequence[Trial]) -> Deviation | None:
    """The largest deviation beyond :data:`MAX_DEVIATION`; None if there is none, or no valid trial to compare with.

    Args:
        profiled: the profiled trial.
        finished: the other trials of its run; those of its engine, workload and load count if they are valid.
    """
    measured = [
        trial
        for trial in finished
        if key_of(trial.record) == key_of(profiled.record) and trial.record.verdict is Verdict.VALID
    ]
    deviations = [
        Deviation(figure, statistics.fmean(values), value, len(values))
        for figure, of_trial in _FIGURES.items()
        if (values := [own for trial in measured if (own := of_trial(trial))]) and (value := of_trial(profiled))
    ]
    large = [deviation for deviation in deviations if abs(deviation.ratio - 1) > MAX_DEVIATION]
    return max(large, key=lambda deviation: abs(math.log(deviation.ratio)), default=None)


def _output_rate(trial: Trial) -> float | None:
    return trial.metrics["output_tokens_per_s"].value


def _mean_e2e_s(trial: Trial) -> float | None:
    latencies_s = known(e2e_s(trial.answered))
    return float(latencies_s.mean()) if len(latencies_s) else None


_FIGURES: dict[Figure, Callable[[Trial], float | None]] = {
    Figure.OUTPUT_RATE: _output_rate,
    Figure.MEAN_E2E: _mean_e2e_s,
}
