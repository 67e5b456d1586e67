"""Plans the next step from the queues and the state of the cache; changes neither.

Decodes come first, then running prompts, then waiting requests, each in order of rank. When blocks run out, the request
of the last rank is preempted; the one of the first rank therefore always makes progress. An admitted request preempts
only requests of a lower priority and a later rank.

A waiting request, new or preempted, is admitted only if the running requests can then grow by `Rules.headroom_tokens`:
it would otherwise take blocks that they need some steps later, and be preempted for them. Nothing is kept free for
requests that it may preempt, nor if no request computes, so that a request alone is always admitted.

Paused requests compute nothing until they are resumed. They are preempted before others that were forked from the same
request; if only paused ones run, they are preempted for the first waiting request.

Blocks are counted, not chosen, and conservatively: a block that two requests share does not count as free when one of
them is preempted, nor as cached when another admitted request has reserved it. All counted blocks are available when
the step is carried out; at worst a step does a little less than it could.
"""

import itertools
import operator
from collections.abc import Sequence

from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.core.scheduling_rules import PreemptionName, Rules
from bakeoff.reference_engine.kv_cache.cache import Blocks, Hit, KvCache
from bakeoff.reference_engine.kv_cache.projection import FreeBlockProjection
from bakeoff.reference_engine.scheduling.queues import Queues
from bakeoff.reference_engine.scheduling.step import Chunk, Step

_START = operator.attrgetter("start")


def may_admit(queues: Queues, rules: Rules) -> bool:
    """Whether the next step could admit a request: the first that waits has a seat, or others can be preempted."""
    first = next(filter(queues.may_compute, queues.waiting), None)
    if first is None:
        return False
    seats = rules.max_num_seqs - sum([request.width for request in queues.running])
    return seats >= first.width or any(running.priority > first.priority for running in queues.running)


def plain_decodes(queues: Queues, cache: KvCache, rules: Rules) -> Step | None:
    """The result of `draft_step` at a fraction of its cost, for most steps: all requests decode and have room.

    Args:
        queues: the requests; `may_admit` must be False for them. Not changed.
        cache: not changed.
        rules: the settings.

    Returns:
        None if more has to be decided.
    """
    running, in_flight, most = queues.running, queues.in_flight, queues.most_decodes
    if in_flight:
        running = [request for request in running if request.request_id not in in_flight]
    if len(running) > rules.max_num_batched_tokens:
        return None
    chunks: list[Chunk] = []
    growing = 0
    for request in running:
        start, pending = request.num_computed, request.num_pending
        if pending and request.is_exhausted:
            continue
        # `is_decoding` and, below, `has_room`, inlined: between two runs of the model, the cost is mostly code that has
        # left the caches.
        if len(request.token_ids) + pending != start + 1 or start < request.prompt_len or request.draft_token_ids:
            return None
        if len(chunks) == most:
            continue
        blocks = cache.blocks_of(request)
        is_growing = start >= blocks.room
        growing += is_growing
        chunks.append(Chunk(request, blocks.blocks, start, 1, True, is_growing))
    if growing and growing * cache.max_blocks_per_token > min(cache.free_blocks()):
        return None
    chunks.sort(key=_START)
    return Step(chunks=tuple(chunks))


def draft_step(queues: Queues, cache: KvCache, rules: Rules) -> Step:
    """The step in the general case.

    Args:
        queues: the requests; not changed.
        cache: not changed.
        rules: the settings.
    """
    return Draft(queues, cache, rules).plan()


class Draft:
    """A step under construction, for one call of `plan`. Batching policies override single decisions."""

    def __init__(self, queues: Queues, cache: KvCache, rules: Rules) -> None:
        self._queues = queues
        self._cache = cache
        self._rules = rules
        self._free = cache.free_blocks()
        self._host = cache.free_host_blocks()
        self._budget = rules.max_num_batched_tokens
        self._least_piece = rules.least_piece
        self._seats = rules.max_num_seqs - sum(request.width for request in queues.running)
        self._projection = FreeBlockProjection(cache)
        self._taken: dict[str, Blocks] = {}
        self._headroom: dict[str, Blocks] = {}
        self._chunks: dict[str, Chunk] = {}
        self._admitted: list[tuple[Request, Hit | None]] = []
        self.scheduled: list[Request] = list(queues.running)
        self.preempted: list[tuple[Request, PreemptionName]] = []

    def plan(self) -> Step:
        """Plans the whole step."""
        running = self._queues.running
        self._schedule_all([request for request in running if request.is_decoding])
        if self._chunks:
            self._leave_to_prompts()
        self._schedule_all([request for request in running if not request.is_decoding])
        if not self.preempted and self.admits():
            for request in filter(self._queues.may_compute, self._queues.waiting):
                if not self.admit(request) or self.preempted:
                    break
        chunks = tuple(sorted(self._chunks.values(), key=_order))
        return Step(tuple(self.preempted), tuple(self._admitted), chunks, self.padding(chunks))

    def _schedule_all(self, running: Sequence[Request]) -> None:
        for request in running:
            if request.request_id in self._queues.in_flight:
                continue
            if request.is_decoding and len(self._chunks) >= self._queues.most_decodes:
                continue
            if not self.preempted or request in self.scheduled:
                self.schedule_running(request)

    def _leave_to_prompts(self) -> None:
        """Limits the tokens of prompts beside the decodes that are planned; see `Rules.max_mixed_tokens`."""
        most = self._rules.max_mixed_tokens
        if most is None:
            return
        left = most - sum(chunk.length for chunk in self._chunks.values())
        if most // 2 <= left < self._prompt_tokens(2 * left) <= 2 * left:
            self._budget = min(self._budget, left)
            self._least_piece = min(self._least_piece, most // 8)

    def _prompt_tokens(self, enough: int) -> int:
        """Tokens of prompts that could be computed now; counted until there are more than enough."""
        queues, tokens = self._queues, 0
        running = (request for request in queues.running if not request.is_decoding)
        for request in itertools.chain(running, itertools.islice(queues.waiting, max(self._seats, 0))):
            if request.request_id not in queues.in_flight:
                tokens += request.num_tokens - request.num_computed
            if tokens > enough:
                break
        return tokens

    def admits(self) -> bool:
        """Whether waiting requests may be admitted."""
        return True

    def victims(self) -> Sequence[Request]:
        """The running requests that can be preempted."""
        return self.scheduled

    def padding(self, chunks: Sequence[Chunk]) -> tuple[int, ...]:  # noqa: ARG002 (policies that pad use it)
        """Lengths of the padding rows."""
        return ()

    def headroom(self, request: Request) -> Blocks:
        """Blocks that an admission must leave free for a running request."""
        blocks = self._headroom.get(request.request_id)
        if blocks is None:
            chunk = self._chunks.get(request.request_id)
            is_growing = request.request_id not in self._queues.paused and not request.is_exhausted
            tokens = self._rules.headroom_tokens if is_growing else 0
            blocks = self._cache.need_ahead(request, request.num_computed if chunk is None else chunk.end, tokens)
            self._headroom[request.request_id] = blocks
        return blocks

    def schedule_running(self, request: Request) -> None:
        """Plans a running request's next chunk; may preempt others, or the request itself."""
        length = 0 if request.is_exhausted else self.chunk_length(request, request.num_computed)
        if not length:
            return
        if request.draft_token_ids and request.is_decoding and self._plan_drafts(request):
            return
        end = request.num_computed + length
        need = self._cache.need(request, end)
        while not self._fits(need):
            victim = max(self.victims(), key=self._preemption_key)
            if victim is request and self._cache.has_windows and request.num_settled < request.num_computed:
                return  # its steps in flight free what leaves its window: without these blocks it might never fit
            self._preempt(victim)
            if victim is request:
                return
        self._plan(request, request.num_computed, length, need, takes_blocks=not self._cache.has_room(request, end))

    def admit(self, request: Request) -> bool:
        """Plans a waiting request's first chunk; False if it and all requests behind it must wait."""
        hit = None if self._cache.is_swapped(request) else self._cache.lookup(request)
        if self._admit_with(request, hit):
            return True
        # A copy takes a block more, without which the request may have room.
        return hit is not None and hit.copied_tokens > 0 and self._admit_with(request, hit.whole)

    def _admit_with(self, request: Request, hit: Hit | None) -> bool:
        start = request.num_computed if hit is None else hit.num_tokens
        length = self.chunk_length(request, start)
        is_piece = length < min(self._least_piece, request.num_tokens - start)
        if not length or (is_piece and any(map(_is_of_prompt, self._chunks.values()))):
            return False
        need = self._cache.need_to_admit(request, hit, start + length)
        if not self._make_room(request, hit, need):
            return False
        self.scheduled.append(request)
        self._admitted.append((request, hit))
        self._seats -= request.width
        self._plan(request, start, length, need)
        return True

    def chunk_length(self, request: Request, start: int) -> int:
        """Tokens of a request to compute in this step."""
        length = request.num_tokens - start
        if self._rules.policy == "no_chunking" and length > self._budget:
            # A prompt longer than the budget would never fit, so it goes alone, beside the decodes.
            is_first = all(chunk.request.is_decoding for chunk in self._chunks.values())
            return length if is_first and self._budget > 0 else 0
        return min(length, self._budget)

    def _plan_drafts(self, request: Request) -> bool:
        """Plans the verification of a request's drafts; False if there is no room for any."""
        start = request.num_computed
        # An accepted draft yields one more token.
        left = request.prompt_len + request.sampling.max_tokens - request.num_tokens - 1
        drafts = tuple(request.draft_token_ids[: max(0, min(self._budget - 1, left))])
        need = self._cache.need(request, start + 1 + len(drafts))
        if not drafts or not self._fits(need):
            return False
        self._plan(request, start, 1 + len(drafts), need, drafts=drafts)
        return True

    def _make_room(self, request: Request, hit: Hit | None, need: Blocks) -> bool:
        """Frees blocks and seats for an admission, by preempting requests of a lower priority if needed."""
        rank_of = self._queues.rank_of
        all_paused = all(running.request_id in self._queues.paused for running in self.scheduled)
        candidates = sorted(
            (
                running
                for running in self.scheduled
                if all_paused or (running.priority > request.priority and rank_of(running) > rank_of(request))
            ),
            key=self._preemption_key,
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
        unpreempted = candidates[: len(candidates) - chosen]
        if not all_paused and not self._leaves_headroom(need, room, unpreempted, projection):
            return False
        if hit is not None:
            self._projection.reserve(hit)
        for candidate in reversed(candidates[len(candidates) - chosen :]):
            self._preempt(candidate)
        return True

    def _leaves_headroom(
        self, need: Blocks, room: Sequence[int], kept: Sequence[Request], projection: FreeBlockProjection
    ) -> bool:
        """Whether running requests can grow after an admission that takes `need` of `room`.

        Args:
            need: blocks that the admission takes.
            room: free blocks before it.
            kept: running requests that the admitted one may preempt; their blocks are room for the others.
            projection: with what was planned for this admission; changed.
        """
        spare = list(map(int.__sub__, room, need))
        for request in reversed(kept):
            spare = list(map(int.__add__, spare, self._would_free(request, projection)))
        kept_ids = {request.request_id for request in kept}
        for request in self.scheduled:
            if request.request_id not in kept_ids:
                spare = list(map(int.__sub__, spare, self.headroom(request)))
        return min(spare) >= 0

    def _fits(self, need: Blocks) -> bool:
        return not any(map(int.__gt__, need, self._free))

    def _plan(
        self,
        request: Request,
        start: int,
        length: int,
        need: Blocks,
        *,
        takes_blocks: bool = True,
        drafts: tuple[int, ...] = (),
    ) -> None:
        self._free = [have - taken for have, taken in zip(self._free, need, strict=True)]
        self._taken[request.request_id] = need
        is_sampled = start + length >= request.num_tokens
        tables = self._cache.blocks_of(request).blocks
        self._chunks[request.request_id] = Chunk(request, tables, start, length, is_sampled, takes_blocks, drafts)
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

    def _preemption_key(self, request: Request) -> tuple[int, int, bool, int]:
        """Sort key of preemption, largest first: the rank, but paused forks of a request before others."""
        rank = self._queues.rank_of(request)
        return (rank.due_step, rank.number, request.request_id in self._queues.paused, rank.fork)


def _is_of_prompt(chunk: Chunk) -> bool:
    """Whether it is neither a single token nor the verification of drafts."""
    return chunk.length > 1 and not chunk.drafts


def _order(chunk: Chunk) -> tuple[bool, int]:
    """Sort key of a step's chunks; see `Step.chunks`."""
    is_long = _is_of_prompt(chunk)
    return is_long, 0 if is_long else chunk.start
