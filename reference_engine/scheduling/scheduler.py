"""Holds the queues and carries out the planner's decisions. Pure Python, no torch.

Rank is the step of arrival, plus `patience_steps` for each level of priority. A preempted request keeps its rank, and
its computed blocks stay cached for later requests with the same prefix.
"""

import sys
from collections.abc import Sequence, Set

from bakeoff.reference_engine.core.outputs import Occupancy
from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.core.scheduling_rules import PreemptionName, Rules
from bakeoff.reference_engine.errors import EngineBugError
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.kv_cache.cache import Hit, KvCache
from bakeoff.reference_engine.scheduling.limits import check_queue
from bakeoff.reference_engine.scheduling.planner import draft_step, may_admit, plain_decodes
from bakeoff.reference_engine.scheduling.queues import Queues, Rank
from bakeoff.reference_engine.scheduling.step import Chunk, Step


class Scheduler:
    """The queues, and the operations on them.

    Args:
        cache: the KV blocks.
        rules: the settings.

    Attributes:
        num_arrived: requests that were ever added.
        num_preemptions: times that a request was preempted.
        num_swaps: those of them that moved the blocks to host memory.
    """

    def __init__(self, cache: KvCache, rules: Rules) -> None:
        self.cache = cache
        self.num_arrived: int = 0
        self.num_preemptions: int = 0
        self.num_swaps: int = 0
        self._rules = rules
        self._queues = Queues()
        self._requests: dict[str, Request] = {}
        self._ended: list[str] = []
        self._num_forks = 0
        self._num_steps = 0

    @property
    def num_waiting(self) -> int:
        """Requests without blocks."""
        return len(self._queues.waiting)

    @property
    def num_running(self) -> int:
        """Requests with blocks that have not ended."""
        return len(self._queues.running)

    @property
    def running(self) -> Sequence[Request]:
        """Requests with blocks that have not ended, in order of rank."""
        return self._queues.running

    @property
    def free_seats(self) -> int:
        """Sequences that could run in addition; negative where siblings have reserved more seats than there are."""
        reserved = sum([len(request.siblings) for request in self._queues.running])
        return self._rules.max_num_seqs - len(self._queues.running) - reserved

    def occupancy(self) -> Occupancy:
        return self.cache.occupancy(self._queues.running)

    def add(self, request: Request) -> None:
        """Queues a request, which must fit into the cache when alone.

        Raises:
            QueueFullError: the most requests allowed wait already.
        """
        max_waiting = self._rules.max_waiting
        if max_waiting is not None:
            check_queue(max_waiting, len(self._queues.waiting), self.free_seats)
        if request.request_id in self._requests:
            raise EngineBugError(f"there is a request {request.request_id} already")
        due = self._num_steps + request.priority * self._rules.patience_steps
        self._queues.ranks[request.request_id] = Rank(due, self.num_arrived)
        self.num_arrived += 1
        self.cache.add(request)
        self._requests[request.request_id] = request
        self._queues.insert(self._queues.waiting, request)

    def remove(self, request_id: str) -> None:
        """Forgets a finished or cancelled request and frees its blocks; unknown ids are ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            (self._queues.running if request in self._queues.running else self._queues.waiting).remove(request)
            self._free(request)

    def _free(self, request: Request) -> None:
        """Forgets a request that has left the queues, and all data of it."""
        del self._requests[request.request_id], self._queues.ranks[request.request_id]
        self._queues.paused.discard(request.request_id)
        self.cache.free(request)
        self._ended += [ended.request_id for ended in (request, *request.siblings)]

    def take_ended(self) -> list[str]:
        """Ids of the requests that have ended since the last call, so that other components can free their data."""
        ended, self._ended = self._ended, []
        return ended

    def pause(self, request: Request) -> None:
        """Pauses a running or waiting request: it computes nothing until it is resumed or removed."""
        self._queues.paused.add(request.request_id)

    def resume(self, request: Request) -> None:
        """Ends a pause."""
        self._queues.paused.discard(request.request_id)

    def has(self, request: Request) -> bool:
        """Whether a request is in one of the queues."""
        return self._requests.get(request.request_id) is request

    def fork(self, parent: Request, child: Request) -> None:
        """Adds a request that continues from the computed tokens of another one and shares its blocks.

        It runs or waits as its parent does; if no seat is left, it waits and shares nothing.

        Args:
            parent: running, or waiting.
            child: new; its tokens start with the parent's computed ones.
        """
        self._num_forks += 1
        self._queues.ranks[child.request_id] = self._queues.rank_of(parent)._replace(fork=self._num_forks)
        child.priority = parent.priority
        is_running = parent in self._queues.running
        if is_running and self.free_seats <= 0:
            is_running = False
            child.num_computed = 0
            self.cache.add(child)
        else:
            self.cache.fork(parent, child)
        self._requests[child.request_id] = child
        self._queues.insert(self._queues.running if is_running else self._queues.waiting, child)

    def schedule(self, in_flight: Set[str] = frozenset(), stages: int = 1) -> tuple[Step, BlockCopies]:
        """The next step, and the block copies that it needs first. It has no chunks when there is no work.

        Args:
            in_flight: ids of requests that this step must leave out, because steps in flight compute them.
            stages: of a pipeline. A step decodes at most one share of the running sequences, of as many shares as
                there are stages.

        Raises:
            EngineBugError: requests wait that can never be admitted.
        """
        self._queues.in_flight = in_flight
        self._queues.most_decodes = -(-len(self._queues.running) // stages) if stages > 1 else sys.maxsize
        step = self._plan()
        self._num_steps += bool(step.chunks or step.preempted)
        copies = BlockCopies()
        for request, how in step.preempted:
            self._preempt(request, how, copies)
        for request, hit in step.admitted:
            self._admit(request, hit)
        for request, hit in step.admitted:
            if hit is None:
                self.cache.swap_in(request, copies)
        for chunk in step.chunks:
            end = chunk.start + chunk.length
            if chunk.takes_blocks:
                self.cache.make_writable(chunk.request, end, copies)
            # Counted as computed before it is, as in vLLM: after the model, this data has left the processor's caches.
            chunk.request.num_computed = end
            chunk.request.draft_token_ids = ()
        if self._queues.waiting and not self._queues.running and not step.preempted and not in_flight:
            raise EngineBugError(f"request {self._queues.waiting[0].request_id} can never be admitted")
        return step, copies

    def _plan(self) -> Step:
        if not may_admit(self._queues, self._rules):
            decodes = plain_decodes(self._queues, self.cache, self._rules)
            if decodes is not None:
                return decodes
        if self._queues.waiting:
            self._cache_blocks()
        return draft_step(self._queues, self.cache, self._rules)

    def settle(self, chunk: Chunk, num_rejected: int) -> None:
        """Marks the tokens of a chunk as certain.

        Args:
            chunk: collected; its request has not ended.
            num_rejected: rejected drafts, which are the last tokens of the chunk.
        """
        request = chunk.request
        if chunk.end > request.num_computed:
            return  # it was preempted meanwhile
        request.num_computed -= num_rejected
        request.num_settled = chunk.end - num_rejected
        if self.cache.has_windows and self.cache.is_swapped(request):
            # Preempted while this chunk was computed: without freeing what left its windows, it might never fit again.
            self.cache.free_out_of_window(request)

    def release_unseen(self) -> None:
        """Releases the blocks that left a window in settled steps."""
        if self.cache.has_windows:
            for request in self._queues.running:
                self.cache.free_out_of_window(request)

    def reset_prefix_cache(self) -> None:
        """Empties the prefix cache; requests keep their blocks."""
        self._cache_blocks()
        self.cache.reset_prefix_cache()

    def finish(self, request: Request) -> None:
        """Ends a running request."""
        self.remove(request.request_id)

    def check_integrity(self) -> None:
        """Raises BlockAccountingError or EngineBugError unless queues, block tables and pools agree."""
        queued = [*self._queues.running, *self._queues.waiting]
        if {id(request) for request in queued} != {id(request) for request in self._requests.values()} or len(
            queued
        ) != len(self._requests):
            raise EngineBugError("the queues and the list of requests disagree")
        for queue in (self._queues.running, self._queues.waiting):
            if queue != sorted(queue, key=self._queues.rank_of):
                raise EngineBugError("a queue is not in order of rank")
        for request in self._queues.waiting:
            if any(True for table in self.cache.blocks_of(request).tables for _ in table.held()):
                raise EngineBugError(f"request {request.request_id} waits and holds blocks")
        if self._queues.ranks.keys() != self._requests.keys():
            raise EngineBugError("ranks are kept of other requests than those in the queues")
        if not self._queues.paused <= self._requests.keys():
            raise EngineBugError("a request is paused that is in no queue")
        self.cache.check_integrity(queued)

    def _cache_blocks(self) -> None:
        """Hashes full blocks. Only admissions look them up, so steps without waiting requests skip it."""
        for request in self._queues.running:
            self.cache.cache_blocks(request)

    def _admit(self, request: Request, hit: Hit | None) -> None:
        self._queues.waiting.remove(request)
        self._queues.insert(self._queues.running, request)
        if hit is None:
            return
        self.cache.attach_prefix(request, hit)
        if request.num_cached_tokens is None and self.cache.prefix_caching:
            request.num_cached_tokens = hit.num_tokens  # not its own blocks after a preemption

    def _preempt(self, victim: Request, how: PreemptionName, copies: BlockCopies) -> None:
        self._queues.running.remove(victim)
        if how == "swap":
            self.cache.swap_out(victim, copies)
            self.num_swaps += 1
        else:
            self.cache.release(victim)
        self._queues.insert(self._queues.waiting, victim)
        self.num_preemptions += 1
