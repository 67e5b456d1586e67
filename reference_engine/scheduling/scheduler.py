"""The queues, and the carrying out of what the planner decides. Pure Python, no torch.

Rank decides who comes first: the step in which a request arrived, and `patience_steps` more for each level of priority.
A preempted request keeps its rank. What is computed stays findable for later requests with the same beginning.
"""

from reference_engine.engine.limits import check_queue
from reference_engine.engine.outputs import Continuation, Occupancy
from reference_engine.engine.request import Request
from reference_engine.errors import EngineBugError
from reference_engine.kv_cache.block_copies import BlockCopies
from reference_engine.kv_cache.cache import Hit, KvCache
from reference_engine.scheduling.planner import next_step
from reference_engine.scheduling.queues import Queues, Rank
from reference_engine.scheduling.rules import PreemptionName, Rules
from reference_engine.scheduling.search import Search
from reference_engine.scheduling.step import Step


class Scheduler:
    """Owns the queues and what requests hold of the cache.

    Args:
        cache: the KV blocks.
        rules: the settings.

    Attributes:
        num_arrived: requests that were ever added.
        num_preemptions: times a request lost its blocks.
        num_swaps: those of them after which nothing is computed again.
    """

    def __init__(self, cache: KvCache, rules: Rules) -> None:
        self.cache = cache
        self.num_arrived = 0
        self.num_preemptions = 0
        self.num_swaps = 0
        self._rules = rules
        self._queues = Queues()
        self._requests: dict[str, Request] = {}
        self._searches: dict[str, Search] = {}  # by the id of each member
        self._settled: set[str] = set()
        self._queues.settled = self._settled
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
    def free_seats(self) -> int:
        """Sequences that could run beside those that do; below 0 where several answers were promised seats."""
        promised = sum([len(request.siblings) for request in self._queues.running])
        return self._rules.max_num_seqs - len(self._queues.running) - promised

    def occupancy(self) -> Occupancy:
        """See :meth:`KvCache.occupancy`."""
        return self.cache.occupancy(self._queues.running)

    def add(self, request: Request) -> None:
        """Queues a request; it must fit into the cache when alone.

        Raises:
            QueueFullError: as many wait as may.
        """
        most = self._rules.max_waiting
        if most is not None:
            check_queue(most, len(self._queues.waiting), self.free_seats)
        if request.request_id in self._requests:
            raise EngineBugError(f"there is a request {request.request_id} already")
        due = self._num_steps + request.priority * self._rules.patience_steps
        if request.sampling.beams is not None:
            search = Search(request, request.sampling.beams)
            self._searches |= {member.request_id: search for member in search.members}
        self._queues.ranks[request.request_id] = Rank(due, self.num_arrived)
        self.num_arrived += 1
        self.cache.add(request)
        self._requests[request.request_id] = request
        self._queues.insert(self._queues.waiting, request)

    def remove(self, request_id: str) -> None:
        """Forgets a finished or cancelled request and frees its blocks; one that is not here is no mistake.

        A beam takes its whole search with it.
        """
        request = self._requests.get(request_id)
        if request is None:
            return
        search = self._searches.get(request_id)
        for one in [request] if search is None else list(search.beams):
            self.drop(one)
        if search is not None:
            self._forget_search(search)

    def drop(self, request: Request) -> None:
        """Forgets one request that is here and frees its blocks."""
        (self._queues.running if request in self._queues.running else self._queues.waiting).remove(request)
        self._free(request)

    def _free(self, request: Request) -> None:
        """Forgets a request that has left the queues, and what is kept for it."""
        del self._requests[request.request_id], self._queues.ranks[request.request_id]
        self.cache.free(request)
        self._ended += [one.request_id for one in (request, *request.siblings)]

    def take_ended(self) -> list[str]:
        """Ids of the requests that have ended since the last call: nobody needs to keep anything for them."""
        ended, self._ended = self._ended, []
        return ended

    def search_of(self, request: Request) -> Search:
        """The beam search that a request belongs to."""
        return self._searches[request.request_id]

    def settle(self, beam: Request, continuations: tuple[Continuation, ...]) -> bool:
        """Takes what was computed of one beam; returns whether its search is over, which is then forgotten."""
        search = self._searches[beam.request_id]
        is_over = search.settle(beam, continuations, self)
        if search.continuations:
            self._settled.add(beam.request_id)
        else:
            self._settled.difference_update(member.request_id for member in search.members)
        if is_over:
            self._forget_search(search)
        return is_over

    def _forget_search(self, search: Search) -> None:
        for member in search.members:
            self._searches.pop(member.request_id)
            self._settled.discard(member.request_id)

    def fork(self, parent: Request, child: Request) -> None:
        """Lets a new request go on from what another has computed.

        It runs as its parent does; where no seat is left, it waits and shares nothing.

        Args:
            parent: running, or waiting.
            child: new; its tokens begin with those of the parent that are computed.
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

    def schedule(self) -> tuple[Step, BlockCopies]:
        """The next step and what must be copied before it. Its chunks are empty when there is no work.

        Raises:
            EngineBugError: requests wait, nothing runs and nothing can be admitted: they would wait forever.
        """
        self._num_steps += 1
        if self._queues.waiting:
            self._cache_blocks()
        step = self._plan()
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
            # Counted as computed before it is, as in vLLM: after the model, all of this is far from the processor.
            chunk.request.num_computed = end
        if self._queues.waiting and not self._queues.running and not step.preempted:
            raise EngineBugError(f"request {self._queues.waiting[0].request_id} can never be admitted")
        return step, copies

    def _plan(self) -> Step:
        return next_step(self._queues, self.cache, self._rules)

    def complete(self) -> None:
        """Takes note that what was planned has been computed."""
        if self.cache.has_windows:
            for request in self._queues.running:
                self.cache.free_out_of_window(request)

    def reset_prefix_cache(self) -> None:
        """Makes sure that nothing computed so far is found by a later request."""
        self._cache_blocks()
        self.cache.reset_prefix_cache()

    def finish(self, request: Request) -> None:
        """Ends a running request."""
        self.remove(request.request_id)

    def check_integrity(self) -> None:
        """Raises BlockAccountingError or EngineBugError unless queues, tables and pools tell the same story."""
        both = [*self._queues.running, *self._queues.waiting]
        if {id(one) for one in both} != {id(one) for one in self._requests.values()} or len(both) != len(
            self._requests
        ):
            raise EngineBugError("the queues and the list of requests disagree")
        for queue in (self._queues.running, self._queues.waiting):
            if queue != sorted(queue, key=self._queues.rank_of):
                raise EngineBugError("a queue is not in order of rank")
        for request in self._queues.waiting:
            if any(True for table in self.cache.blocks_of(request).tables for _ in table.held()):
                raise EngineBugError(f"request {request.request_id} waits and holds blocks")
        if self._queues.ranks.keys() != self._requests.keys():
            raise EngineBugError("ranks are kept of other requests than those in the queues")
        for search in {id(search): search for search in self._searches.values()}.values():
            search.check_integrity([one for one in both if self._searches.get(one.request_id) is search])
        self.cache.check_integrity(both)

    def _cache_blocks(self) -> None:
        """What is computed matters to newcomers only: until there are some, steps are spared the hashing."""
        for request in self._queues.running:
            self.cache.cache_blocks(request)

    def _admit(self, request: Request, hit: Hit | None) -> None:
        self._queues.waiting.remove(request)
        self._queues.insert(self._queues.running, request)
        if hit is None:
            return
        self.cache.attach_prefix(request, hit)
        if request.num_cached_tokens is None and self.cache.prefix_caching:
            request.num_cached_tokens = hit.num_tokens  # not when it finds its own blocks after a preemption

    def _preempt(self, victim: Request, how: PreemptionName, copies: BlockCopies) -> None:
        self._queues.running.remove(victim)
        if how == "swap":
            self.cache.swap_out(victim, copies)
            self.num_swaps += 1
        else:
            self.cache.release(victim)
        self._queues.insert(self._queues.waiting, victim)
        self.num_preemptions += 1
