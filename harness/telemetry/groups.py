"""Groups of values of a GPU that are read together, each as often as its cost allows."""

import math
from collections.abc import Callable
from typing import NamedTuple

from bakeoff.harness.telemetry.nvml_fields import Readings

SLOWLY = 10
"""Ticks between readings of what changes slowly: a second."""
_COST_PER_TICK_S = 0.000_5
"""Mean duration of a group's readings per tick of 100 ms: half a percent of a core."""


class Group(NamedTuple):
    """Values that are read together.

    Attributes:
        names: values that are absent if the reading fails.
        read: adds the values.
        every: least number of ticks between readings.
        first: the first tick, from 0.
        max_every: largest number of ticks between readings, however long one takes.
    """

    names: tuple[str, ...]
    read: Callable[[Readings], None]
    every: int = 1
    first: int = 0
    max_every: int = SLOWLY

    def ticks(self, cost_s: float) -> int:
        """Ticks between readings, each of which takes ``cost_s``."""
        return max(self.every, min(self.max_every, math.ceil(cost_s / _COST_PER_TICK_S)))


class GroupReader:
    """Reads groups when they are due. One that is refused for good is null once, with the reason, and read no more.

    Args:
        groups: by name.
        error: what a reading raises that fails.
        is_refused: whether such an error will come again each time.
        clock: seconds, never going back.

    Attributes:
        groups: those that are still read.
    """

    def __init__(
        self,
        groups: dict[str, Group],
        error: type[Exception],
        is_refused: Callable[[Exception], bool],
        clock: Callable[[], float],
    ) -> None:
        self.groups = groups
        self._error = error
        self._is_refused = is_refused
        self._clock = clock
        self._cost_s: dict[str, float] = {}  # by group, of its fastest reading: a busy machine delays some
        self._next_tick: dict[str, int] = {}
        self._ticks = 0

    def read_due(self, readings: Readings) -> None:
        """Read the groups that are due at this tick."""
        due = [name for name, group in self.groups.items() if self._ticks >= self._next_tick.get(name, group.first)]
        for name in due:
            group = self.groups[name]
            self.read(name, readings)
            self._next_tick[name] = self._ticks + group.ticks(self._cost_s[name])
        self._ticks += 1

    def read(self, name: str, readings: Readings) -> None:
        """Read one group now."""
        group, start_s = self.groups[name], self._clock()
        try:
            group.read(readings)
        except self._error as error:
            for value in group.names:
                readings.mark_absent(value, str(error))
            if self._is_refused(error):
                del self.groups[name]
        self._cost_s[name] = min(self._cost_s.get(name, math.inf), self._clock() - start_s)

    def make_due(self) -> None:
        """Let every group be due at the next tick."""
        self._next_tick = dict.fromkeys(self.groups, 0)
