"""The next step, from the queues and the state of the cache: a pure function, which changes nothing it is given.

Decodes come first, then prompts under way, then newcomers, each kind in order of rank. When blocks run out, the request
of the last rank makes room; the one of the first rank therefore always makes progress. A newcomer makes only those give
way that have a lower priority and a later rank.

Beams that wait for others of their search compute nothing. They make room before the rest of their search does; and
where nobody else runs, they give way to the first newcomer: those that they wait for are not before it.

Blocks are counted, not chosen, and with care: a block that two requests share is not counted as free when only one of
them goes, nor as found when another newcomer was promised it. What was counted is always there when the step is
carried out; at worst a step does a little less than it could have.
"""

import operator
from collections.abc import Sequence

from reference_engine.engine.request import Request
from reference_engine.kv_cache.cache import Blocks, Hit, KvCache
from reference_engine.kv_cache.projection import FreeBlockProjection
from reference_engine.scheduling.queues import Queues
from reference_engine.scheduling.rules import PreemptionName, Rules
from reference_engine.scheduling.step import Chunk, Step

_START = operator.attrgetter("start")


def next_step(queues: Queues, cache: KvCache, rules: Rules) -> Step:
    """What to do next.

    Args:
        queues: the requests; not changed.
        cache: not changed.
        rules: the settings.
    """
    decodes = None if queues.waiting else plain_decodes(queues.running, cache, rules)
    return draft_step(queues, cache, rules) if decodes is None else decodes


def plain_decodes(running: Sequence[Request], cache: KvCache, rules: Rules) -> Step | None:
    """The same as `draft_step`, sooner, where everybody decodes, has room, and nobody waits: most steps.

    Returns:
        None where there is more to decide.
    """
    if len(running) > rules.max_num_batched_tokens:
        return None
    chunks: list[Chunk] = []
    growing = 0
    for request in running:
        start = request.num_computed
        if len(request.token_ids) != start + 1 or start < request.prompt_len:  # `is_decoding` and, below, `has_room`
            return None  # without calls: between two runs of the model, code that is new to the caches is what costs
        blocks = cache.blocks_of(request)
        is_growing = start >= blocks.room
        growing += is_growing
        chunks.append(Chunk(request, blocks.blocks, start, 1, True, is_growing))
    if growing and growing * cache.max_blocks_per_token > min(cache.free_blocks()):
        return None
    chunks.sort(key=_START)
    return Step(chunks=tuple(chunks))


def draft_step(queues: Queues, cache: KvCache, rules: Rules) -> Step:
    """Whatever there is to decide; arguments as of `next_step`."""
    return Draft(queues, cache, rules).plan()


class Draft:
    """The step as far as it is planned, for one call of `plan`; a batching policy overrides what it does otherwise."""

    def __init__(self, queues: Queues, cache: KvCache, rules: Rules) -> None:
        self._queues = queues
        self._cache = cache
        self._rules = rules
        self._free = cache.free_blocks()
        self._host = cache.free_host_blocks()
        self._budget = rules.max_num_batched_tokens
        self._seats = rules.max_num_seqs - sum(request.width for request in queues.running)
        self._projection = FreeBlockProjection(cache)
        self._taken: dict[str, Blocks] = {}
        self._chunks: dict[str, Chunk] = {}
        self._admitted: list[tuple[Request, Hit | None]] = []
        self.scheduled = list(queues.running)
        self.preempted: list[tuple[Request, PreemptionName]] = []

    def plan(self) -> Step:
        """The whole step."""
        # Stable: among equals rank decides.
        for request in sorted(self._queues.running, key=lambda one: not one.is_decoding):
            if not self.preempted or request in self.scheduled:
                self.go_on(request)
        if not self.preempted and self.admits():
            for request in self._queues.waiting:
                if request.request_id not in self._queues.settled and (not self.admit(request) or self.preempted):
                    break
        chunks = tuple(sorted(self._chunks.values(), key=lambda one: (one.length > 1, one.length == 1 and one.start)))
        return Step(tuple(self.preempted), tuple(self._admitted), chunks, self.padding(chunks))

    def admits(self) -> bool:
        """Whether newcomers may join those who run."""
        return True

    def victims(self) -> Sequence[Request]:
        """The running requests that can make room."""
        return self.scheduled

    def padding(self, chunks: Sequence[Chunk]) -> tuple[int, ...]:  # noqa: ARG002 (for policies that pad)
        """Lengths of the rows that are computed beside the chunks for nothing."""
        return ()

    def go_on(self, request: Request) -> None:
        """Plan a running request's next chunk; others, or it itself, may have to make room."""
        length = self.chunk_length(request, request.num_computed)
        if not length:
            return
        end = request.num_computed + length
        need = self._cache.need(request, end)
        while not self._fits(need):
            victim = max(self.victims(), key=self._yielding)
            self._preempt(victim)
            if victim is request:
                return
        self._plan(request, request.num_computed, length, need, takes_blocks=not self._cache.has_room(request, end))

    def admit(self, request: Request) -> bool:
        """Plan a newcomer's first chunk; False where it must wait, and all behind it with it."""
        hit = None if self._cache.is_swapped(request) else self._cache.lookup(request)
        start = request.num_computed if hit is None else hit.num_tokens
        length = self.chunk_length(request, start)
        if not length:
            return False
        need = self._cache.need_to_admit(request, hit, start + length)
        if not self._make_way(request, hit, need):
            return False
        self.scheduled.append(request)
        self._admitted.append((request, hit))
        self._seats -= request.width
        self._plan(request, start, length, need)
        return True

    def chunk_length(self, request: Request, start: int) -> int:
        """How many tokens of a request to compute now."""
        wanted = request.num_tokens - start
        if self._rules.policy == "no_chunking" and wanted > self._budget:
            # A prompt longer than the budget would never fit: it goes alone, beside the decodes.
            is_first = all(chunk.request.is_decoding for chunk in self._chunks.values())
            return wanted if is_first and self._budget > 0 else 0
        return min(wanted, self._budget)

    def _make_way(self, request: Request, hit: Hit | None, need: Blocks) -> bool:
        """Room and a seat for a newcomer, at the cost of requests of a lower priority where need be."""
        rank_of = self._queues.rank_of
        is_stuck = all(one.request_id in self._queues.settled for one in self.scheduled)
        candidates = sorted(
            (
                one
                for one in self.scheduled
                if is_stuck or (one.priority > request.priority and rank_of(one) > rank_of(request))
            ),
            key=self._yielding,
        )
        room, seats, projection = list(self._free), self._seats, self._projection.copy()
        if hit is not None:
            projection.reserve(hit)
        chosen = 0
        while seats < request.width or any(map(int.__gt__, need, room)):
            if chosen == len(candidates):
                return False
            chosen += 1
            candidate = candidates[-chosen]
            seats += candidate.width
            room = [have + own for have, own in zip(room, self._would_free(candidate, projection), strict=True)]
        if hit is not None:
            self._projection.reserve(hit)
        for candidate in reversed(candidates[len(candidates) - chosen :]):
            self._preempt(candidate)
        return True

    def _fits(self, need: Blocks) -> bool:
        return not any(map(int.__gt__, need, self._free))

    def _plan(self, request: Request, start: int, length: int, need: Blocks, *, takes_blocks: bool = True) -> None:
        self._free = [have - taken for have, taken in zip(self._free, need, strict=True)]
        self._taken[request.request_id] = need
        is_sampled = start + length == request.num_tokens
        tables = self._cache.blocks_of(request).blocks
        self._chunks[request.request_id] = Chunk(request, tables, start, length, is_sampled, takes_blocks)
        self._budget -= length

    def _would_free(self, victim: Request, projection: FreeBlockProjection) -> Blocks:
        taken = self._taken.get(victim.request_id)
        own = projection.release(victim)
        return own if taken is None else tuple(map(int.__add__, own, taken))

    def _preempt(self, victim: Request) -> None:
        freed = self._would_free(victim, self._projection)
        self.scheduled.remove(victim)
        planned = self._chunks.pop(victim.request_id, None)
        self._taken.pop(victim.request_id, None)
        self._budget += planned.length if planned else 0
        self._seats += victim.width
        self._free = list(map(int.__add__, self._free, freed))
        held = self._cache.held(victim)
        can_swap = (
            self._rules.preemption == "swap" and victim.num_computed and not any(map(int.__gt__, held, self._host))
        )
        if can_swap:
            self._host = list(map(int.__sub__, self._host, held))
        self.preempted.append((victim, "swap" if can_swap else "recompute"))

    def _yielding(self, request: Request) -> tuple[int, int, bool, int]:
        """Sort key of preemption, largest first: the rank, but of one search the waiting beams first."""
        rank = self._queues.rank_of(request)
        return (rank.due_step, rank.number, request.request_id in self._queues.settled, rank.fork)
