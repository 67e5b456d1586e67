"""How long a trial will take, before anything of it is known but the experiment."""

import itertools

from harness.experiment.config import Experiment
from harness.traffic.session_law import SessionLaw
from harness.traffic.steady import TURNOVERS
from results.records import Load
from workloads import Seed, WorkloadError, workload
from workloads.shapes import SupportsShapes

_SAMPLE = 256
_TAIL_SHARE = 1.3
"""Duration of window and tail together, over that of the window."""


class ExpectedLength:
    """Expected length of trials, from the pauses of the workload; answers are taken to be quick beside them.

    Args:
        experiment: its workload and limits.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._limits = experiment.trial
        self._pause_s = _mean_pause_s(experiment)

    def of(self, load: Load) -> float:
        """Seconds from the first request of a trial's load to its last."""
        limits, turnover_s = self._limits, self._pause_s if load.concurrency is not None else 0.0
        for_requests_s = limits.min_requests * turnover_s / (load.concurrency or 1)
        window_s = min(limits.max_window_s, max(limits.duration_s, TURNOVERS * turnover_s, for_requests_s))
        return max(limits.ramp_s, min(turnover_s, limits.max_window_s)) + window_s * _TAIL_SHARE


def _mean_pause_s(experiment: Experiment) -> float:
    """Mean pause before a request; 0 if the workload does not state its sessions without writing them."""
    try:
        source = workload(experiment.workload.name, experiment.workload.options)
        seed = Seed(f"{experiment.seed}", "")
        shapes = source.shapes(seed) if isinstance(source, SupportsShapes) else None
        law = SessionLaw.of(itertools.islice(shapes or (), _SAMPLE))
    except WorkloadError:  # the run itself will say so
        return 0.0
    return law.think_s if law else 0.0
