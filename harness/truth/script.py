"""The sequence of writes of an answer: what is handed to the kernel, in which pieces, how long after the one before.

:meth:`Script.writes` is the definition. :meth:`Script.steps` gives the same gaps and bytes without their marks and, for
ordinary streams, from iterators that run in C over chunks that were made once: it is what the server's loop pulls from.
"""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from harness.truth.answered import Asked
from harness.truth.payloads import END, STREAM_HEAD, VOCABULARY, Payloads, fault_reply
from harness.truth.schedule import Fault, Schedule, to_ns

ROLE, TOKENS, FINISH = "role", "tokens", "finish"
_REFUSALS = frozenset({Fault.HTTP_429, Fault.HTTP_500, Fault.HTTP_503})
_HALF = frozenset({Fault.RESET, Fault.TRUNCATED, Fault.STALL, Fault.ERROR_EVENT})
_KINDS_KEPT = 64
_WARM_TOKENS = 20_000


class Write(NamedTuple):
    """One write.

    Attributes:
        gap_ns: how long after the one before (the first: after the request) it is due.
        data: its bytes; none for the moment of a fault.
        marks: where in them a chunk of a kind begins: pairs of offset and kind.
    """

    gap_ns: int
    data: bytes
    marks: tuple[tuple[int, str], ...] = ()


class Script:
    """Every answer of one schedule.

    Args:
        schedule: the timetable and the looks of the answers.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._ttft_ns = to_ns(schedule.ttft_s)
        self._per_write = schedule.tokens_per_chunk * schedule.events_per_write
        self._period = VOCABULARY // math.gcd(VOCABULARY, self._per_write)
        self._kinds: dict[tuple[bool, str], tuple[Payloads, list[bytes]]] = {}

    def warm(self, model: str) -> None:
        """Make the chunks of both paths now, unless they are huge, so that no request has to wait for them."""
        if self._period * self._per_write <= _WARM_TOKENS:
            for chat in (False, True):
                self._whole_writes(*self._kind(chat=chat, model=model), self._period)

    def steps(self, asked: Asked) -> Iterator[tuple[int, bytes]]:
        """Gap and bytes of each write, in order."""
        if asked.fault is None and self.is_ordinary(asked):
            return self._quick_steps(asked)
        return ((write.gap_ns, write.data) for write in self.writes(asked))

    def is_ordinary(self, asked: Asked) -> bool:
        """Whether it is a stream whose writes are: perhaps the role, then whole chunks of tokens, then the end."""
        return asked.stream and not self.schedule.comments and self.schedule.write_bytes is None

    def writes(self, asked: Asked) -> Iterator[Write]:
        """Every write, in order."""
        if asked.fault is not None and asked.fault in _REFUSALS:
            yield Write(0, fault_reply(asked.fault))
            return
        whole = self._stream(asked) if asked.stream else self._whole(asked)
        yield from whole if self.schedule.write_bytes is None else _pieces(whole, self.schedule.write_bytes)

    def role_writes(self, asked: Asked) -> int:
        """How many writes come before the first tokens."""
        return int(asked.chat and self.schedule.role_chunk is not None)

    def chunks(self, asked: Asked) -> int:
        """How many chunks of tokens the stream has before it ends or goes wrong."""
        chunks = -(-asked.tokens // self.schedule.tokens_per_chunk)
        return max(1, chunks // 2) if asked.fault in _HALF else chunks

    def _stream(self, asked: Asked) -> Iterator[Write]:
        payloads, _ = self._kind(chat=asked.chat, model=asked.model)
        gaps = self.schedule.gaps_ns(asked.number)
        opening, gap_ns = self._opening(asked, payloads)
        yield from opening
        per_write, chunks = self.schedule.events_per_write, self.chunks(asked)
        for first in range(0, chunks, per_write):
            group = range(first, min(first + per_write, chunks))
            gap_ns += sum(itertools.islice(gaps, len(group) - (first == 0)))
            if self.schedule.comments and first:
                yield Write(gap_ns // 2, payloads.ping)
                gap_ns -= gap_ns // 2
            parts = [self._chunk(asked, payloads, chunk) for chunk in group]
            head = b"" if opening or first else STREAM_HEAD
            starts = itertools.accumulate(map(len, parts[:-1]), initial=len(head))
            yield Write(gap_ns, head + b"".join(parts), tuple((start, TOKENS) for start in starts))
            gap_ns = 0
        yield from self._closing(asked, payloads, gaps)

    def _opening(self, asked: Asked, payloads: Payloads) -> tuple[list[Write], int]:
        """The role's write, if there is one, and the gap before the first chunk of tokens is ready."""
        if not self.role_writes(asked):
            return [], self._ttft_ns
        early = self.schedule.role_chunk == "early"
        role = Write(0 if early else self._ttft_ns, STREAM_HEAD + payloads.role(), ((len(STREAM_HEAD), ROLE),))
        return [role], self._ttft_ns if early else 0

    def _closing(self, asked: Asked, payloads: Payloads, gaps: Iterator[int]) -> Iterator[Write]:
        if asked.fault is None:
            finish = payloads.finish() if self.schedule.finish_chunk else b""
            marks = ((0, FINISH),) if finish else ()
            yield Write(0, finish + payloads.usage(asked) + payloads.done + END, marks)
        elif asked.fault is Fault.NO_FINISH:
            yield Write(0, END)
        elif asked.fault is Fault.ERROR_EVENT:
            yield Write(next(gaps), payloads.error() + payloads.done + END)
        else:
            yield Write(next(gaps), b"")

    def _whole(self, asked: Asked) -> Iterator[Write]:
        """An answer that is no stream: due when the last chunk of the stream would be."""
        payloads, _ = self._kind(chat=asked.chat, model=asked.model)
        gaps = self.schedule.gaps_ns(asked.number)
        data = payloads.whole(asked)
        full = -(-asked.tokens // self.schedule.tokens_per_chunk)
        due_ns = self._ttft_ns + sum(itertools.islice(gaps, full - 1))
        broken = asked.fault in _HALF and asked.fault is not Fault.ERROR_EVENT
        yield Write(due_ns, data[: len(data) // 2] if broken else data, ((0, TOKENS),))
        if broken:
            yield Write(next(gaps), b"")

    def _quick_steps(self, asked: Asked) -> Iterator[tuple[int, bytes]]:
        """:meth:`_stream` of an ordinary answer without fault: zipped C iterators, nothing made but the last write."""
        payloads, table = self._kind(chat=asked.chat, model=asked.model)
        gaps = self.schedule.gaps_ns(asked.number)
        opening, gap_ns = self._opening(asked, payloads)
        writes, per_write = -(-asked.tokens // self._per_write), self.schedule.events_per_write
        chunks = self.chunks(asked)
        last = b"".join(self._chunk(asked, payloads, chunk) for chunk in range((writes - 1) * per_write, chunks))
        data = itertools.chain(self._whole_writes(payloads, table, writes - 1), (last,))
        if not opening:
            data = itertools.chain((STREAM_HEAD + next(data),), data)
        if per_write > 1:
            first = gap_ns + sum(itertools.islice(gaps, min(per_write, chunks) - 1))
            gaps = _summed(gaps, per_write, chunks - per_write)
        else:
            first = gap_ns
        body = zip(itertools.chain((first,), gaps), data, strict=False)
        ends = ((write.gap_ns, write.data) for write in self._closing(asked, payloads, iter(())))
        return itertools.chain(((write.gap_ns, write.data) for write in opening), body, ends)

    def _chunk(self, asked: Asked, payloads: Payloads, chunk: int) -> bytes:
        first = chunk * self.schedule.tokens_per_chunk
        count = min(self.schedule.tokens_per_chunk, asked.tokens - first)
        last = first + count == asked.tokens and asked.fault is None and not self.schedule.finish_chunk
        return payloads.tokens(first, count, b'"length"' if last else b"null")

    def _whole_writes(self, payloads: Payloads, table: list[bytes], count: int) -> Iterator[bytes]:
        """The first ``count`` writes of full chunks; ``table`` keeps those that differ."""
        per_chunk = self.schedule.tokens_per_chunk
        for write in range(len(table), min(count, self._period)):
            firsts = range(write * self._per_write, (write + 1) * self._per_write, per_chunk)
            table.append(b"".join(payloads.tokens(first, per_chunk) for first in firsts))
        if count <= len(table):
            return itertools.islice(table, count)
        return itertools.islice(itertools.chain.from_iterable(itertools.repeat(table)), count)

    def _kind(self, *, chat: bool, model: str) -> tuple[Payloads, list[bytes]]:
        found = self._kinds.get((chat, model))
        if found is None:
            if len(self._kinds) >= _KINDS_KEPT:  # a client that invents model names must not fill the memory
                self._kinds.clear()
            found = self._kinds[chat, model] = (Payloads(self.schedule, chat=chat, model=model), [])
        return found


def _summed(gaps: Iterator[int], per_write: int, chunks: int) -> Iterator[int]:
    """One gap for each further write; the last one may hold fewer chunks."""
    for first in range(0, chunks, per_write):
        yield sum(itertools.islice(gaps, min(per_write, chunks - first)))


def _pieces(writes: Iterator[Write], size: int) -> Iterator[Write]:
    """The same bytes in pieces of ``size``; the head of the reply, which is no part of the body, stays whole."""
    in_head = True
    for gap_ns, data, marks in writes:
        head = data.index(b"\r\n\r\n") + 4 if in_head else 0
        in_head = False
        cuts = [0, *range(head, len(data), size), len(data)] if head else [*range(0, len(data), size), len(data)]
        for i, (start, stop) in enumerate(itertools.pairwise(cuts)):
            inside = tuple((at - start, kind) for at, kind in marks if start <= at < stop)
            yield Write(gap_ns if i == 0 else 0, data[start:stop], inside)
        if not data:
            yield Write(gap_ns, b"")
