"""Lines of progress about long work, with the remaining time."""

import time
from collections.abc import Callable

_EVERY_S = 10.0


class Progress:
    """Reports the progress of a stage, at most every 10 s.

    Args:
        say: called with a line of text.
        unit: name of what is counted.
        done: count before the stage began.
        total: count at the end.
        clock: in seconds.
    """

    def __init__(
        self, say: Callable[[str], None], unit: str, done: int, total: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._unit, self._first, self._total, self._clock = say, unit, done, total, clock
        self._began_s = self._said_s = clock()

    def advance(self, done: int, detail: str = "", *, is_due: bool = False) -> None:
        """Records the new total count; `is_due` reports at once."""
        now_s = self._clock()
        if done <= self._first or not (is_due or now_s - self._said_s >= _EVERY_S):
            return
        self._said_s = now_s
        left_s = (now_s - self._began_s) / (done - self._first) * max(0, self._total - done)
        self._say(f"{self._unit} {done:,} of {self._total:,}{detail}, about {_clock_text(left_s)} left")


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
