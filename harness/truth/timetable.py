"""The timetable: which bytes are due on which connection, and when. Pure: no socket, no clock.

The server's loop adds requests, writes what is due and reports each write; connections are known here by their
descriptor and number alone.
"""

import heapq
import itertools
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING

from bakeoff.harness.truth.answered import Answered, CompletionRequest, Ending
from bakeoff.harness.truth.schedule import Schedule, to_ns
from bakeoff.harness.truth.script import REFUSALS, ROLE, TOKENS, Script
from bakeoff.workloads.prefixes import Pin

if TYPE_CHECKING:
    from bakeoff.harness.truth.prefix_cache import PrefixCache, Prompt

NEVER_NS = 1 << 62


class Answer:
    """One answer in progress, and a log that costs one array append per write.

    Attributes:
        fd: descriptor of its connection; -1 once it has ended, so that a late write fails instead of reaching whichever
            client has the descriptor by then.
        request: what it answers; None for replies that are not recorded.
        prompt: its prompt until its end, if the schedule has a prefix cache.
        pin: the cached blocks that it uses.
        steps: gap and bytes of each write after the next one.
        data: bytes of the next write.
        due_ns: when the next write is due.
        begun_ns: when it got a slot; None if it did not wait for one.
        has_slot: whether it is in progress: it does not wait for a slot, and has not ended.
        stamp: takes the time of each ``send`` that took bytes of ``data``.
    """

    __slots__ = (
        "_partial_bytes", "_remainders", "_times_ns",
        "begun_ns", "connection_number", "data", "due_ns", "ended_ns", "ending", "fd", "has_slot", "pin", "prompt",
        "request", "stamp", "start_ns", "steps",
    )  # fmt: skip

    def __init__(
        self,
        fd: int,
        connection_number: int,
        request: CompletionRequest | None,
        start_ns: int,
        prompt: "Prompt | None" = None,
    ) -> None:
        self.fd: int = fd
        self.connection_number: int = connection_number
        self.request: CompletionRequest | None = request
        self.prompt = prompt
        self.pin: Pin[int] | None = None
        self.steps: Iterator[tuple[int, bytes]] = iter(())
        self.start_ns: int = start_ns
        self.data: bytes = b""
        self.due_ns: int = start_ns
        self.begun_ns: int | None = None
        self.has_slot: bool = False
        self.ended_ns: int | None = None
        self.ending: Ending | None = None
        self._times_ns = array("q")
        # Writes that the kernel took in parts: index of the write -> (offset, time) of each part after the first.
        self._remainders: dict[int, list[tuple[int, int]]] = {}
        self._partial_bytes: int | None = None
        self.stamp: Callable[[int], None] = self._times_ns.append

    def begin(self, steps: Iterator[tuple[int, bytes]], now_ns: int) -> None:
        """Start the timetable now: gap and bytes of each write."""
        self.steps = steps
        gap_ns, self.data = next(steps)
        self.due_ns = now_ns + gap_ns

    def sent_part(self, t_ns: int, count: int) -> None:
        """Record that at ``t_ns`` the kernel took only ``count`` bytes of ``data``; the remainder is next."""
        self.stamp(t_ns)
        self.data = self.data[count:]
        parts = self._remainders.get(len(self._times_ns) - 1)
        self._partial_bytes = count + (parts[-1][0] if parts else 0)
        self.stamp = self._stamp_remainder

    def _stamp_remainder(self, t_ns: int) -> None:
        """Record the time of a later part of a write, then return to recording whole writes."""
        assert self._partial_bytes is not None
        self._remainders.setdefault(len(self._times_ns) - 1, []).append((self._partial_bytes, t_ns))
        self._partial_bytes = None
        self.stamp = self._times_ns.append

    def finish(self, ending: Ending, now_ns: int) -> None:
        """End the answer; if it has ended before, the first ending holds."""
        if self.ending is None:
            self.ending, self.ended_ns = ending, now_ns
        self.fd, self.steps, self.data, self.prompt, self.pin = -1, iter(()), b"", None, None
        self.stamp = self._times_ns.append

    def record(self, script: Script) -> Answered:
        """The record of the answer so far."""
        assert self.request is not None
        answered = Answered(
            **{name: getattr(self.request, name) for name in CompletionRequest.__struct_fields__},
            connection=self.connection_number,
            start_ns=self.start_ns,
            begun_ns=self.begun_ns,
            ended_ns=self.ended_ns,
            ending=self.ending,
        )
        whole_writes = not self._remainders and self._partial_bytes is None
        if whole_writes and self.request.fault is None and script.is_ordinary(self.request):
            self._fill_ordinary(answered, script)
        else:
            self._fill(answered, script)
        return answered

    def _fill_ordinary(self, answered: Answered, script: Script) -> None:
        """Fill the record when each write has one time and a known kind: half a million writes take under a second."""
        times_ns = self._times_ns.tolist()
        roles = script.role_writes(answered)
        answered.role_ns = times_ns[0] if roles and times_ns else None
        per_write, chunks = script.schedule.events_per_write, script.chunks(answered)
        writes = -(-chunks // per_write)
        tokens_ns, closing_ns = times_ns[roles : roles + writes], times_ns[roles + writes :]
        event_times_ns = itertools.chain.from_iterable(itertools.repeat(t_ns, per_write) for t_ns in tokens_ns)
        answered.written_ns = tokens_ns if per_write == 1 else list(itertools.islice(event_times_ns, chunks))
        answered.finish_ns = closing_ns[0] if closing_ns and script.schedule.finish_chunk else None

    def _fill(self, answered: Answered, script: Script) -> None:
        """Fill the record by replaying the script: which ``send`` took the first byte of each chunk."""
        for step, (write, t_ns) in enumerate(zip(script.writes(answered), self._times_ns, strict=False)):
            parts = [(0, t_ns), *self._remainders.get(step, ())]
            unfinished = self._partial_bytes is not None and step == len(self._times_ns) - 1
            sent = (self._partial_bytes or 0) if unfinished else len(write.data)
            ends = [start for start, _ in parts[1:]] + [sent]
            answered.sends += [(at_ns, end - start) for (start, at_ns), end in zip(parts, ends, strict=True) if sent]
            for offset, kind in write.marks:
                if offset < sent:
                    _set_time(answered, kind, [at_ns for start, at_ns in parts if start <= offset][-1])


def _set_time(answered: Answered, kind: str, t_ns: int) -> None:
    if kind == TOKENS:
        answered.written_ns.append(t_ns)
    elif kind == ROLE:
        answered.role_ns = t_ns
    else:
        answered.finish_ns = t_ns


class Timetable:
    """Schedules every write of every answer, and the disruptions of the whole server.

    Answers wait in a heap until they are due, then in a queue: late ones take turns. Writes of one answer that are due
    at the same instant leave together, so without gaps the earlier request is answered first. Beyond ``slots`` answers
    at a time, further ones wait in order of arrival, as in an engine.

    Args:
        schedule: timing and faults.

    Attributes:
        script: bytes of the answers.
        disruptions: stalls and restart.
        ready: answers with a write that is due, in the order in which to write.
        cache: the prefix cache; None without one.
        running: number of answers in progress.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.script: Script = Script(schedule)
        self.disruptions: Disruptions = Disruptions(schedule)
        self.ready: deque[Answer] = deque()
        self._schedule = schedule
        self._waiting: list[tuple[int, int, Answer]] = []
        self._order = itertools.count()
        self.cache: PrefixCache | None = _cache(schedule)
        self.running: int = 0
        self._without_slot: deque[Answer] = deque()
        self._number = 0

    @property
    def waiting(self) -> int:
        """Number of answers that wait for a slot."""
        return sum(answer.ending is None for answer in self._without_slot)

    def reset(self) -> None:
        """Number requests from 0 again; the next one starts the clock of the disruptions."""
        self._number = 0
        self.disruptions.clear()

    def add_request(
        self,
        fd: int,
        connection_number: int,
        request: CompletionRequest,
        now_ns: int,
        prompt: "Prompt | None" = None,
    ) -> Answer:
        """Schedule the answer to a request that was complete at ``now_ns``; sets the request's number and fault.

        Its prompt is looked up in the prefix cache when it gets a slot, as an engine does when it schedules it.
        """
        request.number = self._number
        request.fault = self._schedule.fault(request.number)
        self._number += 1
        self.disruptions.begin(now_ns)
        answer = Answer(fd, connection_number, request, now_ns, prompt)
        if self._schedule.slots is None or self.running < self._schedule.slots:
            self._begin(answer, request, now_ns)
        else:
            self._without_slot.append(answer)
        return answer

    def add_reply(self, fd: int, connection_number: int, data: bytes, now_ns: int) -> Answer:
        """Schedule a reply that is due at once and not recorded; a stall holds it back like everything else."""
        answer = Answer(fd, connection_number, None, now_ns)
        answer.begin(iter([(0, data)]), now_ns)
        self._add(answer)
        return answer

    def due(self, now_ns: int) -> int:
        """Move what is due by ``now_ns`` to :attr:`ready`.

        Returns:
            :meth:`next_ns`.
        """
        waiting = self._waiting
        while waiting and waiting[0][0] <= now_ns:
            self.ready.append(heapq.heappop(waiting)[2])
        return self.next_ns(now_ns)

    def next_ns(self, now_ns: int) -> int:
        """When to write next; 0 if :attr:`ready` can be written now."""
        if self.ready:
            return self.disruptions.free_ns if now_ns >= self.disruptions.hold_ns else 0
        return self._waiting[0][0] if self._waiting else NEVER_NS

    def sent(self, answer: Answer, t_ns: int) -> bool:
        """Record that all of ``answer.data`` was sent at ``t_ns``, and schedule the next write.

        Returns:
            whether there is a next write.
        """
        answer.stamp(t_ns)
        steps = answer.steps
        for gap_ns, answer.data in steps:  # at most one: cheaper than next() and a test
            if not gap_ns:
                self.ready.appendleft(answer)
                return True
            due_ns = answer.due_ns = answer.due_ns + gap_ns
            if due_ns > t_ns:
                heapq.heappush(self._waiting, (due_ns, next(self._order), answer))
            else:
                self.ready.append(answer)
            return True
        return False

    def resume(self, answer: Answer) -> None:
        """Make the remainder of a write due: the connection takes bytes again."""
        self.ready.append(answer)

    def end(self, answer: Answer, ending: Ending, now_ns: int) -> None:
        """End ``answer``, and give its slot, if it has one, to the next answer that waits."""
        if answer.has_slot:
            self._leave_cache(answer, ending)
        answer.finish(ending, now_ns)
        if not answer.has_slot:
            return
        answer.has_slot = False
        self.running -= 1
        while self._without_slot:
            following = self._without_slot.popleft()
            if following.ending is None:  # else its client hung up while it waited
                assert following.request is not None
                following.begun_ns = now_ns
                self._begin(following, following.request, now_ns)
                return

    def _begin(self, answer: Answer, request: CompletionRequest, now_ns: int) -> None:
        """Give ``answer`` a slot."""
        if self.cache is not None and answer.prompt is not None and request.fault not in REFUSALS:
            answer.pin, request.cached_tokens = self.cache.begin(answer.prompt)
        answer.has_slot = True
        self.running += 1
        answer.begin(self.script.steps(request), now_ns)
        self._add(answer)

    def _leave_cache(self, answer: Answer, ending: Ending) -> None:
        """Stop using cached blocks; a whole answer enters the cache, since the next prompt may begin with it."""
        if self.cache is not None and answer.prompt is not None and answer.pin is not None:
            assert answer.request is not None
            blocks: list[int] = []
            if ending is Ending.COMPLETE:
                blocks = answer.prompt.answer_blocks(self.script.texts(answer.request), answer.request.tokens)
            self.cache.end(answer.prompt, answer.pin, blocks)

    def _add(self, answer: Answer) -> None:
        heapq.heappush(self._waiting, (answer.due_ns, next(self._order), answer))


def _cache(schedule: Schedule) -> "PrefixCache | None":
    if schedule.cache_tokens is None:
        return None
    from bakeoff.harness.truth.prefix_cache import PrefixCache  # noqa: PLC0415  (it imports numpy: 30 ms at each start)

    return PrefixCache(schedule.cache_tokens, schedule.cache_block_tokens)


class Change(Enum):
    """Changes that a restart makes to the server."""

    DOWN = auto()
    UP = auto()


class Disruptions:
    """Stalls and restart of the whole server, timed from the first request.

    Args:
        schedule: states them.

    Attributes:
        hold_ns: nothing is written from here on,
        free_ns: up to here.
        next_ns: when to call :meth:`run` next.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.clear()

    def clear(self) -> None:
        """Cancel everything until the next :meth:`begin`."""
        self._begun = False
        self._events: list[tuple[int, int, Change | None]] = []
        self._stalls: list[tuple[int, int]] = []
        self._next_stall()
        self.next_ns: int = NEVER_NS

    def begin(self, now_ns: int) -> None:
        """Start the clock with the first request; later calls do nothing."""
        if self._begun:
            return
        self._begun = True
        order = itertools.count()
        stalls = [(now_ns + to_ns(at_s), to_ns(length_s)) for at_s, length_s in self._schedule.stalls]
        self._stalls = [(at_ns, at_ns + length_ns) for at_ns, length_ns in reversed(stalls)]
        self._events = [(end_ns, next(order), None) for _, end_ns in self._stalls]
        if self._schedule.restart is not None:
            at_ns, down_ns = map(to_ns, self._schedule.restart)
            self._events.append((now_ns + at_ns, next(order), Change.DOWN))
            self._events.append((now_ns + at_ns + down_ns, next(order), Change.UP))
        self._events.sort()
        self._next_stall()
        self._set_next()

    def run(self, now_ns: int) -> list[Change]:
        """Apply the stalls that have ended by ``now_ns``.

        Returns:
            what the server has to do about a restart, in order.
        """
        changes: list[Change] = []
        while self._events and self._events[0][0] <= now_ns:
            change = self._events.pop(0)[2]
            if change is None:
                self._next_stall()
            else:
                changes.append(change)
        self._set_next()
        return changes

    def _next_stall(self) -> None:
        self.hold_ns, self.free_ns = self._stalls.pop() if self._stalls else (NEVER_NS, NEVER_NS)

    def _set_next(self) -> None:
        self.next_ns = self._events[0][0] if self._events else NEVER_NS
