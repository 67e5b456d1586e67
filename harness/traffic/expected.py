"""How long a trial is expected to take, from the experiment alone."""

import functools
import itertools

from bakeoff.harness.experiment.config import Experiment, is_steady
from bakeoff.harness.rules.rule_set import Start
from bakeoff.harness.traffic.session_law import SessionLaw
from bakeoff.harness.traffic.window_length import window_s
from bakeoff.results.records import Cache, Load
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

    @property
    def has_histories(self) -> bool:
        """Whether trials send the history of sessions in progress first, which takes as long as the engine needs."""
        experiment = self._experiment
        return (
            experiment.rules_of_play.start is Start.LONG_RUN
            and experiment.trial.cache is not Cache.WARM
            and experiment.spec.enable_prefix_caching is not False
            and any(is_steady(load) for load in experiment.loads)
            and self._law is not None
            and self._law.turns > 1
        )

    @property
    def _pause_s(self) -> float:
        """Mean pause before a request."""
        return self._law.think_s if self._law else 0.0

    @functools.cached_property
    def _law(self) -> SessionLaw | None:
        """Of the workload's sessions; None unless it draws them: a trace would be read once more."""
        try:
            source = self._experiment.source()
            if not isinstance(source, SupportsShapes) or not isinstance(source, SupportsChoice):
                return None
            shapes = source.shapes(Seed.of(str(self._experiment.seed)))
            return SessionLaw.of(itertools.islice(shapes or (), _SAMPLE))
        except WorkloadError:  # the run itself will say so
            return None
