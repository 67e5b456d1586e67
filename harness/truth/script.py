"""The sequence of writes of an answer: the bytes of each, and its gap after the write before.

:meth:`Script.writes` is the definition. :meth:`Script.steps`, which the timetable uses, yields the same gaps and bytes
without their marks; for ordinary streams it chains iterators that run in C over chunks that are made only once.
"""

import itertools
import math
import sys
from collections.abc import Iterator
from typing import NamedTuple

from bakeoff.harness.truth.answered import CompletionRequest
from bakeoff.harness.truth.payloads import END, STREAM_HEAD, VOCABULARY, AnswerTexts, Payloads, fault_reply
from bakeoff.harness.truth.schedule import Fault, Schedule

ROLE, TOKENS, FINISH = "role", "tokens", "finish"
REFUSALS = frozenset({Fault.HTTP_429, Fault.HTTP_500, Fault.HTTP_503})
"""Faults of requests that get a status at once instead of an answer."""
_HALF = frozenset({Fault.RESET, Fault.TRUNCATED, Fault.STALL, Fault.ERROR_EVENT})
_MAX_KINDS = 64
_WARM_TOKENS = 20_000


class Write(NamedTuple):
    """One write.

    Attributes:
        gap_ns: time from the write before (for the first one: from the request) until it is due.
        data: its bytes; none where a fault ends the answer.
        marks: offset and kind of each chunk that begins in it.
    """

    gap_ns: int
    data: bytes
    marks: tuple[tuple[int, str], ...] = ()


class Script:
    """The writes of every answer under one schedule.

    Args:
        schedule: timing and format of the answers.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._per_write = schedule.tokens_per_chunk * schedule.events_per_write
        # Without kinds, writes repeat after this many of them.
        self._period = sys.maxsize if schedule.kinds else VOCABULARY // math.gcd(VOCABULARY, self._per_write)
        self._kinds: dict[tuple[bool, str], tuple[Payloads, list[bytes]]] = {}

    def warm(self, model: str) -> None:
        """Make the chunks of both paths now, unless they are huge, so that no request waits for them."""
        if self._period * self._per_write <= _WARM_TOKENS:
            for chat in (False, True):
                self._whole_writes(*self._kind(chat=chat, model=model), self._period)

    def steps(self, request: CompletionRequest) -> Iterator[tuple[int, bytes]]:
        """Gap and bytes of each write, in order."""
        if request.fault is None and self.is_ordinary(request):
            return self._quick_steps(request)
        return ((write.gap_ns, write.data) for write in self.writes(request))

    def is_ordinary(self, request: CompletionRequest) -> bool:
        """Whether it is a stream of an optional role chunk, whole chunks of tokens, and a closing write."""
        return request.stream and not self.schedule.comments and self.schedule.write_bytes is None

    def writes(self, request: CompletionRequest) -> Iterator[Write]:
        """Every write, in order."""
        if request.fault is not None and request.fault in REFUSALS:
            yield Write(0, fault_reply(request.fault))
            return
        whole = self._stream(request) if request.stream else self._whole(request)
        yield from whole if self.schedule.write_bytes is None else _pieces(whole, self.schedule.write_bytes)

    def role_writes(self, request: CompletionRequest) -> int:
        """Number of writes before the first tokens."""
        return int(request.chat and self.schedule.role_chunk is not None)

    def chunks(self, request: CompletionRequest) -> int:
        """Number of chunks with tokens before the stream ends or its fault strikes."""
        chunks = -(-request.tokens // self.schedule.tokens_per_chunk)
        return max(1, chunks // 2) if request.fault in _HALF else chunks

    def texts(self, request: CompletionRequest) -> AnswerTexts:
        """What a client assembles from a whole answer."""
        return self._kind(chat=request.chat, model=request.model)[0].texts(request)

    def _stream(self, request: CompletionRequest) -> Iterator[Write]:
        payloads, _ = self._kind(chat=request.chat, model=request.model)
        gaps = self.schedule.gaps_ns(request.number)
        opening, gap_ns = self._opening(request, payloads)
        yield from opening
        per_write, chunks = self.schedule.events_per_write, self.chunks(request)
        for first in range(0, chunks, per_write):
            group = range(first, min(first + per_write, chunks))
            gap_ns += sum(itertools.islice(gaps, len(group) - (first == 0)))
            if self.schedule.comments and first:
                yield Write(gap_ns // 2, payloads.ping)
                gap_ns -= gap_ns // 2
            parts = [self._chunk(request, payloads, chunk) for chunk in group]
            head = b"" if opening or first else STREAM_HEAD
            starts = itertools.accumulate(map(len, parts[:-1]), initial=len(head))
            yield Write(gap_ns, head + b"".join(parts), tuple((start, TOKENS) for start in starts))
            gap_ns = 0
        yield from self._closing(request, payloads, gaps)

    def _opening(self, request: CompletionRequest, payloads: Payloads) -> tuple[list[Write], int]:
        """The write with the role, if there is one, and the gap before the first chunk of tokens."""
        ttft_ns = self.schedule.ttft_ns(request.uncached_tokens)
        if not self.role_writes(request):
            return [], ttft_ns
        early = self.schedule.role_chunk == "early"
        role = Write(0 if early else ttft_ns, STREAM_HEAD + payloads.role(), ((len(STREAM_HEAD), ROLE),))
        return [role], ttft_ns if early else 0

    def _closing(self, request: CompletionRequest, payloads: Payloads, gaps: Iterator[int]) -> Iterator[Write]:
        if request.fault is None:
            finish = payloads.finish() if self.schedule.finish_chunk else b""
            marks = ((0, FINISH),) if finish else ()
            yield Write(0, finish + payloads.usage(request) + payloads.done + END, marks)
        elif request.fault is Fault.NO_FINISH:
            yield Write(0, END)
        elif request.fault is Fault.ERROR_EVENT:
            yield Write(next(gaps), payloads.error() + payloads.done + END)
        else:
            yield Write(next(gaps), b"")

    def _whole(self, request: CompletionRequest) -> Iterator[Write]:
        """An answer that is not streamed: due when the last chunk of its stream would be."""
        payloads, _ = self._kind(chat=request.chat, model=request.model)
        gaps = self.schedule.gaps_ns(request.number)
        data = payloads.whole(request)
        full = -(-request.tokens // self.schedule.tokens_per_chunk)
        due_ns = self.schedule.ttft_ns(request.uncached_tokens) + sum(itertools.islice(gaps, full - 1))
        broken = request.fault in _HALF and request.fault is not Fault.ERROR_EVENT
        yield Write(due_ns, data[: len(data) // 2] if broken else data, ((0, TOKENS),))
        if broken:
            yield Write(next(gaps), b"")

    def _quick_steps(self, request: CompletionRequest) -> Iterator[tuple[int, bytes]]:
        """:meth:`_stream` of an ordinary answer without fault: zipped C iterators, nothing made but the last write."""
        payloads, table = self._kind(chat=request.chat, model=request.model)
        gaps = self.schedule.gaps_ns(request.number)
        opening, gap_ns = self._opening(request, payloads)
        writes, per_write = -(-request.tokens // self._per_write), self.schedule.events_per_write
        chunks = self.chunks(request)
        last = b"".join(self._chunk(request, payloads, chunk) for chunk in range((writes - 1) * per_write, chunks))
        data = itertools.chain(self._whole_writes(payloads, table, writes - 1), (last,))
        if not opening:
            data = itertools.chain((STREAM_HEAD + next(data),), data)
        if per_write > 1:
            first = gap_ns + sum(itertools.islice(gaps, min(per_write, chunks) - 1))
            gaps = _summed(gaps, per_write, chunks - per_write)
        else:
            first = gap_ns
        body = zip(itertools.chain((first,), gaps), data, strict=False)
        ends = ((write.gap_ns, write.data) for write in self._closing(request, payloads, iter(())))
        return itertools.chain(((write.gap_ns, write.data) for write in opening), body, ends)

    def _chunk(self, request: CompletionRequest, payloads: Payloads, chunk: int) -> bytes:
        first = chunk * self.schedule.tokens_per_chunk
        count = min(self.schedule.tokens_per_chunk, request.tokens - first)
        last = first + count == request.tokens and request.fault is None and not self.schedule.finish_chunk
        return payloads.tokens(first, count, b'"length"' if last else b"null")

    def _whole_writes(self, payloads: Payloads, table: list[bytes], count: int) -> Iterator[bytes]:
        """The first ``count`` writes of full chunks; ``table`` caches the distinct ones."""
        per_chunk = self.schedule.tokens_per_chunk
        for write in range(len(table), min(count, self._period)):
            firsts = range(write * self._per_write, (write + 1) * self._per_write, per_chunk)
            table.append(b"".join(payloads.tokens(first, per_chunk) for first in firsts))
        if count <= len(table):
            return itertools.islice(table, count)
        return itertools.islice(itertools.chain.from_iterable(itertools.repeat(table)), count)

    def _kind(self, *, chat: bool, model: str) -> tuple[Payloads, list[bytes]]:
        kind = self._kinds.get((chat, model))
        if kind is None:
            if len(self._kinds) >= _MAX_KINDS:  # bounds memory if a client makes up model names
                self._kinds.clear()
            kind = self._kinds[chat, model] = (Payloads(self.schedule, chat=chat, model=model), [])
        return kind


def _summed(gaps: Iterator[int], per_write: int, chunks: int) -> Iterator[int]:
    """The gap before each further write; the last one may hold fewer chunks."""
    for first in range(0, chunks, per_write):
        yield sum(itertools.islice(gaps, min(per_write, chunks - first)))


def _pieces(writes: Iterator[Write], size: int) -> Iterator[Write]:
    """The same bytes in pieces of ``size``; the header block, which is not part of the body, stays whole."""
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
