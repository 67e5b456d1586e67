"""Prompt tokens that an LRU prefix cache of any size finds, from one pass over the calls of a sample.

The distance of a cached token is the number of tokens that have been used since it was last used, those that calls in
progress hold included, and itself (R. L. Mattson et al.: *Evaluation techniques for storage hierarchies*, IBM Systems
Journal 9, 1970). A cache finds the token if it has room for its distance. So one pass gives the hits of every size.
"""

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from bakeoff.workloads.graph import Links
from bakeoff.workloads.outline import Segment, SessionOutline, TurnOutline
from bakeoff.workloads.prefixes import BLOCK_TOKENS

DECODE_TOKENS_PER_S = 50.0
"""Assumed engine speed, which decides when a session's next turn arrives."""
SLOTS = 8
"""Concurrent sessions where the workload gives no start times."""


class Call(NamedTuple):
    """A turn at an engine.

    Attributes:
        start_s: when the engine receives it.
        end_s: when its answer ends. It holds its tokens until then; none if this is ``start_s``.
        answer_tokens: room that its answer takes, from its start.
        turn: the turn.
    """

    start_s: float
    end_s: float
    answer_tokens: int
    turn: TurnOutline


class Timeline(msgspec.Struct, frozen=True):
    """The calls of a sample over time.

    Attributes:
        calls: in the order of their start.
        last_session_s: when the last session starts; from then on slots run empty.
    """

    calls: list[Call]
    last_session_s: float


def timeline(sessions: Sequence[SessionOutline], slots: int | None = None) -> Timeline:
    """All calls, in the order in which an engine that decodes 50 tokens per second receives them.

    Args:
        sessions: in the order of their start.
        slots: sessions in progress, one after another in each slot, whatever their start times. None: sessions start
            when they say; those without start times run in eight slots.
    """
    slot_ends_s = [0.0] * (slots or SLOTS)
    calls: list[Call] = []
    last_s = 0.0
    for session in sessions:
        in_slot = slots is not None or session.start_s is None
        begin_s = heapq.heappop(slot_ends_s) if in_slot else session.start_s or 0.0
        last_s = max(last_s, begin_s)
        starts_s, ends_s = call_times_s(session)
        calls += (
            Call(begin_s + start_s, begin_s + end_s, turn.output_tokens, turn)
            for start_s, end_s, turn in zip(starts_s, ends_s, session.turns, strict=True)
        )
        if in_slot:
            heapq.heappush(slot_ends_s, begin_s + max(ends_s))
    calls.sort(key=lambda call: call.start_s)  # stable: calls of one instant stay in the order of their sessions
    return Timeline(calls, last_s)


def call_times_s(session: SessionOutline) -> tuple[list[float], list[float]]:
    """Start and end of each call, in seconds since the session's start."""
    return Links.of(session.turns).times_s([turn.output_tokens / DECODE_TOKENS_PER_S for turn in session.turns])


class PrefixHits:
    """Prompt tokens that caches find.

    A call uses its prompt from its start to its end, and a cache never evicts what calls in progress use. If they use
    more than its room, it holds an equal part of each. When a call ends, its prompt is the most recently used one; of
    that the last token is evicted first, after the answer, which no later prompt finds.

    Args:
        calls: in the order of their start.
        counted: positions of the calls whose hits count; the others only fill the cache. None: all.

    Attributes:
        prompt_tokens: of the calls that count.
        held_tokens: tokens that calls in progress hold after the start of each call that counts.
        largest_tokens: size of the smallest cache that finds as much as an unlimited one.
    """

    def __init__(self, calls: Sequence[Call], counted: range | None = None) -> None:
        counted = range(len(calls)) if counted is None else counted
        cache = _EndlessCache(calls)
        found = [cache.start(number) for number in range(counted.stop)][counted.start :]
        runs = [(number, *run) for number, of_call in enumerate(found) for run in of_call.runs]
        self._call, self._before, self._tokens = np.array(runs, dtype=np.int64).reshape(-1, 3).T
        self._inputs = np.array([calls[number].turn.input_tokens for number in counted], dtype=np.int64)
        self._shared = np.array([of_call.shared for of_call in found], dtype=np.int64)
        self._held_before = np.array([of_call.held_before for of_call in found], dtype=np.int64)
        self.held_tokens: list[int] = [of_call.held_after for of_call in found]
        self.prompt_tokens: int = int(self._inputs.sum())
        in_use = self._held_before[self._shared > 0]
        self.largest_tokens: int = int(max((self._before + self._tokens).max(initial=0), in_use.max(initial=0)))

    def of_calls(self, capacity_tokens: int | None, block_tokens: int = BLOCK_TOKENS) -> np.ndarray:
        """Tokens of each call that counts that a cache of this size finds, in whole blocks; None: an unlimited one."""
        room = self.largest_tokens if capacity_tokens is None else capacity_tokens
        kept = np.minimum(1.0, room / np.maximum(1, self._held_before))
        found = (self._shared * kept).astype(np.int64)
        in_room = np.clip(room - self._before, 0, self._tokens)
        found += np.bincount(self._call, weights=in_room, minlength=len(found)).astype(np.int64)
        # An engine always computes the last token of a prompt, to get its logits.
        return np.minimum(found, self._inputs - 1) // block_tokens * block_tokens

    def share(self, capacity_tokens: int | None = None) -> float:
        """Share of the prompt tokens that a cache of this size finds; None: an unlimited one."""
        return int(self.of_calls(capacity_tokens).sum()) / max(1, self.prompt_tokens)

    def size_for(self, share: float) -> int:
        """Smallest size in tokens that finds this share, or as much as an unlimited cache does."""
        return bisect_left(range(self.largest_tokens), share, key=self.share)


class _Found(NamedTuple):
    """What a call finds.

    Attributes:
        runs: distance before the first token, and tokens, of each run of cached tokens that were last used together.
        shared: leading tokens that other calls in progress use.
        held_before: tokens that calls in progress hold before the call.
        held_after: the same with the call.
    """

    runs: list[tuple[int, int]]
    shared: int
    held_before: int
    held_after: int


class _EndlessCache:
    """Distances in a cache without limit, while calls start and end.

    Segments have a number for each different text before them.

    Args:
        calls: in the order of their start.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._numbers: dict[tuple[int, Segment], int] = {}
        self._tokens: list[int] = []  # of each segment
        self._uses: list[int] = []  # calls in progress that use it
        self._released: list[int] = []  # position of the call after whose end nothing used it, in the order of ends
        self._cached = _Sums(len(calls))  # tokens that nothing has used since the end at this position
        self._held = 0
        self._in_progress: list[tuple[float, int, list[int]]] = []
        self._ended = 0

    def start(self, number: int) -> _Found:
        """Start a call, the next one in order."""
        call = self._calls[number]
        while self._in_progress and self._in_progress[0][0] <= call.start_s:
            self._end(*heapq.heappop(self._in_progress)[1:])
        path, known = self._path(call.turn.segments)
        tokens, uses, released = self._tokens, self._uses, self._released
        shared = new = 0
        by_end: dict[int, int] = {}  # latest end first, as a segment is used whenever one after it is
        for segment in path[:known]:
            if uses[segment]:
                shared += tokens[segment]
            else:
                by_end[released[segment]] = by_end.get(released[segment], 0) + tokens[segment]
        for segment in path[known:]:
            new += tokens[segment]
        for segment in path:
            uses[segment] += 1
        before = self._held
        runs = [(before + self._cached.after(end), run) for end, run in by_end.items()]
        for end, run in by_end.items():
            self._cached.add(end, -run)
        self._held += new + sum(by_end.values()) + call.answer_tokens
        heapq.heappush(self._in_progress, (call.end_s, number, path))
        return _Found(runs, shared, before, self._held)

    def _end(self, number: int, path: Sequence[int]) -> None:
        """End a call; what no other one uses is the most recently used."""
        uses, freed = self._uses, self._calls[number].answer_tokens
        for segment in path:
            uses[segment] -= 1
            if not uses[segment]:
                self._released[segment] = self._ended
                freed += self._tokens[segment]
        self._cached.add(self._ended, freed)
        self._held -= freed
        self._ended += 1

    def _path(self, segments: Sequence[Segment]) -> tuple[list[int], int]:
        """Numbers of a prompt's segments, and how many of these earlier prompts began with."""
        numbers, path = self._numbers, list[int]()
        known, at = len(self._tokens), -1
        for segment in segments:
            number = numbers.get((at, segment))
            if number is None:
                number = numbers[at, segment] = len(self._tokens)
                self._tokens.append(segment[1])
                self._uses.append(0)
                self._released.append(-1)
            path.append(number)
            at = number
        return path, bisect_left(path, known)


class _Sums:
    """Numbers that change, and sums over the later of them (a Fenwick tree)."""

    def __init__(self, length: int) -> None:
        self._tree = [0] * (length + 1)
        self._total = 0

    def add(self, place: int, number: int) -> None:
        """Add to the number at a place."""
        self._total += number
        place += 1
        while place < len(self._tree):
            self._tree[place] += number
            place += place & -place

    def after(self, place: int) -> int:
        """Sum of the numbers after a place."""
        place += 1
        up_to = 0
        while place:
            up_to += self._tree[place]
            place -= place & -place
        return self._total - up_to
