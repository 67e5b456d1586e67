"""What the schedule wants to happen to the whole server: stalls and a restart, counted from the first request."""

import heapq
import itertools
from collections.abc import Callable

from harness.truth.pump import NEVER_NS, Pump
from harness.truth.schedule import Schedule, to_ns


class Agenda:
    """Does things at their time.

    Args:
        schedule: says when.
        pump: what stalls.
        go_down: called with the time when the restart begins.
        come_up: called when it ends.

    Attributes:
        next_ns: when there is something to do next.
    """

    def __init__(
        self, schedule: Schedule, pump: Pump, go_down: Callable[[int], None], come_up: Callable[[], None]
    ) -> None:
        self._schedule = schedule
        self._pump = pump
        self._go_down = go_down
        self._come_up = come_up
        self.clear()

    def clear(self) -> None:
        """Forget everything, until the next :meth:`begin`."""
        self._begun = False
        self._todo: list[tuple[int, int, Callable[[int], None]]] = []
        self._stalls: list[tuple[int, int]] = []
        self._stall()
        self.next_ns = NEVER_NS

    def begin(self, now_ns: int) -> None:
        """The first request has come; later calls do nothing."""
        if self._begun:
            return
        self._begun = True
        order = itertools.count()
        stalls = [(now_ns + to_ns(at_s), to_ns(length_s)) for at_s, length_s in self._schedule.stalls]
        self._stalls = [(at_ns, at_ns + length_ns) for at_ns, length_ns in reversed(stalls)]
        self._todo = [(end_ns, next(order), lambda _: self._stall()) for _, end_ns in self._stalls]
        if self._schedule.restart is not None:
            at_ns, down_ns = map(to_ns, self._schedule.restart)
            self._todo.append((now_ns + at_ns, next(order), self._go_down))
            self._todo.append((now_ns + at_ns + down_ns, next(order), lambda _: self._come_up()))
        heapq.heapify(self._todo)
        self._stall()
        self._look()

    def run(self, now_ns: int) -> None:
        """Do what is due."""
        while self._todo and self._todo[0][0] <= now_ns:
            heapq.heappop(self._todo)[2](now_ns)
        self._look()

    def _stall(self) -> None:
        """The next stall is the one that the pump minds."""
        self._pump.hold_ns, self._pump.free_ns = self._stalls.pop() if self._stalls else (NEVER_NS, NEVER_NS)

    def _look(self) -> None:
        self.next_ns = self._todo[0][0] if self._todo else NEVER_NS
