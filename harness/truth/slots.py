"""How many answers are given at a time; the others wait in the order in which they came, as in an engine."""

from collections import deque
from collections.abc import Callable

from harness.truth.answer import Answer


class Slots:
    """The turn of each answer.

    Args:
        count: answers at a time; None for any number.
        begin: called with an answer when its turn has come.
    """

    def __init__(self, count: int | None, begin: Callable[[Answer], None]) -> None:
        self._free = count
        self._begin = begin
        self._waiting: deque[Answer] = deque()

    def ask(self, answer: Answer) -> None:
        """Begin it now, or when an earlier one has ended."""
        if self._free is None:
            self._begin(answer)
        elif self._free:
            self._free -= 1
            answer.has_slot = True
            self._begin(answer)
        else:
            self._waiting.append(answer)

    def ended(self, answer: Answer, now_ns: int) -> None:
        """It has ended: the slot that it had, if any, is the next one's."""
        if not answer.has_slot or self._free is None:
            return
        answer.has_slot = False
        while self._waiting:
            following = self._waiting.popleft()
            if following.ending is None:  # else it hung up while it waited
                following.wait_until(now_ns)
                following.has_slot = True
                self._begin(following)
                return
        self._free += 1
