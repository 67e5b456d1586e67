"""The steady window: the part of a trial in which the wanted load was on."""

from collections.abc import Sequence

import msgspec

from results.records import Load, RequestRecord

NS_PER_S = 1_000_000_000


class Window(msgspec.Struct, frozen=True):
    """Half-open interval of monotonic nanoseconds: ``start_ns <= t < end_ns``."""

    start_ns: int
    end_ns: int

    @property
    def length_s(self) -> float:
        """Length in seconds; 0 when empty."""
        return max(0, self.end_ns - self.start_ns) / NS_PER_S

    def holds(self, t_ns: int) -> bool:
        """Whether an instant lies inside."""
        return self.start_ns <= t_ns < self.end_ns


def steady_window(requests: Sequence[RequestRecord], load: Load, issue_start_ns: int, issue_end_ns: int) -> Window:
    """The steady window of one trial.

    Open loop: from the start of the arrival process to its end. Closed loop: from the instant at which the requests
    in flight first reach the wanted concurrency to the instant at which they leave it for good, but no later than
    the end of issuing, so neither the ramp nor the drain is counted.

    Args:
        requests: the measured requests of the trial.
        load: its load level.
        issue_start_ns: when the driver began to put the load on.
        issue_end_ns: when it stopped issuing.
    """
    if load.concurrency is None:
        return Window(issue_start_ns, issue_end_ns)
    # A slot's next request is planned at the instant the last one ended: summed per instant, the slot never was empty,
    # and an arrival that meets a departure does not look like one request more.
    changes: dict[int, int] = {}
    for request in requests:
        changes[request.planned_ns] = changes.get(request.planned_ns, 0) + 1
        changes[request.ended_ns] = changes.get(request.ended_ns, 0) - 1
    in_flight = 0
    reached: int | None = None
    left = issue_start_ns
    for t_ns, change in sorted(changes.items()):
        full_before = in_flight >= load.concurrency
        in_flight += change
        if reached is None and in_flight >= load.concurrency:
            reached = t_ns
        if full_before and in_flight < load.concurrency:
            left = t_ns
    if reached is None:
        return Window(issue_start_ns, issue_start_ns)
    return Window(reached, min(left, issue_end_ns))
