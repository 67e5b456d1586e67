"""How long a trial is expected to take, from the experiment alone."""

import functools
import itertools

from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.traffic.session_law import SessionLaw
from bakeoff.harness.traffic.steady import window_s
from bakeoff.results.records import Load
from bakeoff.workloads import Seed, WorkloadError
from bakeoff.workloads.shapes import SupportsChoice, SupportsShapes

_SAMPLE = 256
_TAIL_SHARE = 1.3
"""Duration of window and tail together, over that of the window."""


class ExpectedLength:
    """Expected length of trials, from the pauses of the workload. Answers are counted as taking no time.

    Args:
        experiment: its workload and limits.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment

    def of(self, load: Load) -> float:
        """Seconds from the first request of a trial's load to its last."""
        limits, turnover_s = self._experiment.trial, self._pause_s if load.concurrency is not None else 0.0
        window = min(limits.max_window_s, window_s(load, limits, turnover_s))
        return max(limits.ramp_s, min(turnover_s, limits.max_window_s)) + window * _TAIL_SHARE

    @functools.cached_property
    def _pause_s(self) -> float:
        """Mean pause before a request; 0 unless the workload draws its sessions: a trace would be read once more."""
        try:
            source = self._experiment.source()
            if not isinstance(source, SupportsShapes) or not isinstance(source, SupportsChoice):
                return 0.0
            shapes = source.shapes(Seed.of(str(self._experiment.seed)))
            law = SessionLaw.of(itertools.islice(shapes or (), _SAMPLE))
        except WorkloadError:  # the run itself will say so
            return 0.0
        return law.think_s if law else 0.0
