"""An answer under way, and what is remembered of it."""

import itertools
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from harness.truth.answered import Answered, Asked, Ending
from harness.truth.script import ROLE, TOKENS, Script

if TYPE_CHECKING:
    from harness.truth.connection import Connection


class Answer:
    """The state of one answer: a place in the timetable, and a log that costs one array append for each write.

    Attributes:
        connection: where it goes; None when it has ended.
        fd: of that connection, or -1, so that a late write fails instead of reaching another client.
        asked: what it answers; None for replies that are not recorded.
        steps: gaps and bytes of the writes that are still to come.
        data: the bytes that are next.
        due_ns: when.
        begun_ns: when its turn came, after waiting for a slot; None where it did not wait.
        has_slot: whether it takes one up.
        stamp: to be called with the time before each ``send`` that took bytes of ``data``.
    """

    __slots__ = (
        "_cut", "_rests", "_times_ns",
        "asked", "begun_ns", "connection", "data", "due_ns", "ended_ns", "ending", "fd", "has_slot", "number", "stamp",
        "start_ns", "steps",
    )  # fmt: skip

    def __init__(
        self, connection: "Connection", asked: Asked | None, steps: Iterator[tuple[int, bytes]], start_ns: int
    ) -> None:
        self.connection: Connection | None = connection
        self.number = connection.number
        self.fd = connection.fd
        self.asked = asked
        self.steps = steps
        self.start_ns = start_ns
        gap_ns, self.data = next(steps)
        self.due_ns = start_ns + gap_ns
        self.begun_ns: int | None = None
        self.has_slot = False
        self.ended_ns: int | None = None
        self.ending: Ending | None = None
        self._times_ns = array("q")
        self._rests: dict[int, list[tuple[int, int]]] = {}
        self._cut: int | None = None
        self.stamp: Callable[[int], None] = self._times_ns.append

    def wait_until(self, now_ns: int) -> None:
        """Its turn has come only now: its timetable begins here."""
        self.begun_ns = now_ns
        self.due_ns += now_ns - self.start_ns

    def took(self, count: int) -> None:
        """The kernel took only ``count`` bytes of ``data``: the rest is next."""
        self.data = self.data[count:]
        parts = self._rests.get(len(self._times_ns) - 1)
        self._cut = count + (parts[-1][0] if parts else 0)
        self.stamp = self._stamp_rest

    def _stamp_rest(self, t_ns: int) -> None:
        """Note when a later part of a write went out, and go back to noting whole writes."""
        assert self._cut is not None
        self._rests.setdefault(len(self._times_ns) - 1, []).append((self._cut, t_ns))
        self._cut = None
        self.stamp = self._times_ns.append

    def finish(self, ending: Ending, now_ns: int) -> None:
        """It has ended; the first ending holds."""
        if self.ending is None:
            self.ending, self.ended_ns = ending, now_ns
        self.connection, self.fd, self.steps, self.data = None, -1, iter(()), b""
        self.stamp = self._times_ns.append

    def record(self, script: Script) -> Answered:
        """What is known of it now."""
        assert self.asked is not None
        answered = Answered(
            **{name: getattr(self.asked, name) for name in Asked.__struct_fields__},
            connection=self.number,
            start_ns=self.start_ns,
            begun_ns=self.begun_ns,
            ended_ns=self.ended_ns,
            ending=self.ending,
        )
        if self.asked.fault is None and not self._rests and self._cut is None and script.is_ordinary(self.asked):
            self._tell_ordinary(answered, script)
        else:
            self._tell(answered, script)
        return answered

    def _tell_ordinary(self, answered: Answered, script: Script) -> None:
        """One time for each write, and it is known which write is what: half a million of them take no second."""
        times_ns = self._times_ns.tolist()
        roles = script.role_writes(answered)
        answered.role_ns = times_ns[0] if roles and times_ns else None
        per_write, chunks = script.schedule.events_per_write, script.chunks(answered)
        writes = -(-chunks // per_write)
        tokens_ns, rest_ns = times_ns[roles : roles + writes], times_ns[roles + writes :]
        each = itertools.chain.from_iterable(itertools.repeat(t_ns, per_write) for t_ns in tokens_ns)
        answered.written_ns = tokens_ns if per_write == 1 else list(itertools.islice(each, chunks))
        answered.finish_ns = rest_ns[0] if rest_ns and script.schedule.finish_chunk else None

    def _tell(self, answered: Answered, script: Script) -> None:
        """Go through the writes again and look up which ``send`` took which byte."""
        for step, (write, t_ns) in enumerate(zip(script.writes(answered), self._times_ns, strict=False)):
            parts = [(0, t_ns), *self._rests.get(step, ())]
            unfinished = self._cut is not None and step == len(self._times_ns) - 1
            taken = (self._cut or 0) if unfinished else len(write.data)
            ends = [start for start, _ in parts[1:]] + [taken]
            answered.sends += [(at_ns, end - start) for (start, at_ns), end in zip(parts, ends, strict=True) if taken]
            for at, kind in write.marks:
                if at < taken:
                    _mark(answered, kind, [at_ns for start, at_ns in parts if start <= at][-1])


def _mark(answered: Answered, kind: str, t_ns: int) -> None:
    if kind == TOKENS:
        answered.written_ns.append(t_ns)
    elif kind == ROLE:
        answered.role_ns = t_ns
    else:
        answered.finish_ns = t_ns
