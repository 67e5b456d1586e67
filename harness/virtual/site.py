"""One virtual engine over all its starts in a run: its noise, and its record of requests."""

from math import exp, sqrt
from random import Random

from bakeoff.harness.virtual.engine import VirtualEngine
from bakeoff.harness.virtual.served import Served


class Site:
    """State of one engine across its starts.

    Args:
        engine: its model.
        seed: of all random draws.

    Attributes:
        engine: its model.
        starts: number of starts so far.
        served: every request, in order of arrival.
    """

    def __init__(self, engine: VirtualEngine, seed: str) -> None:
        self.engine = engine
        self.starts = 0
        self.served: list[Served] = []
        self._seed = seed
        self._trials: dict[str, float] = {}
        self._last = 0.0
        self._draw_trial = self.rng("trials").gauss

    def rng(self, *path: object) -> Random:
        """A random generator for one purpose."""
        return Random("/".join([self._seed, *map(str, path)]))  # noqa: S311  (no secret)

    def start_factor(self, start: int) -> float:
        """Noise factor on every time of one start."""
        return exp(self.rng("start", start).gauss(0.0, self.engine.start_noise))

    def trial_factor(self, trial: str | None) -> float:
        """Factor on every time of one trial; 1 outside trials."""
        if trial is None or not self.engine.trial_noise:
            return 1.0
        if trial not in self._trials:
            correlation = self.engine.trial_correlation if self._trials else 0.0
            self._last = correlation * self._last + sqrt(1 - correlation**2) * self._draw_trial(0.0, 1.0)
            self._trials[trial] = exp(self.engine.trial_noise * self._last)
        return self._trials[trial]
