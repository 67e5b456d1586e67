"""The queues, and the carrying out of what the planner decides. Pure Python, no torch.

Rank decides who comes first: the step in which a request arrived, and `patience_steps` more for each level of priority.
A preempted request keeps its rank. What is computed stays findable for later requests with the same beginning.
"""

import bisect

from reference_engine.errors import EngineBugError
from reference_engine.kv_cache.cache import Hit, KvCache, holding_of
from reference_engine.kv_cache.moves import Moves
from reference_engine.limits import check_queue
from reference_engine.outputs import Occupancy
from reference_engine.request import Rank, Request
from reference_engine.scheduling.planner import next_step
from reference_engine.scheduling.rules import PreemptionName, Rules
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
        self._waiting: list[Request] = []  # these two in order of rank
        self._running: list[Request] = []
        self._requests: dict[str, Request] = {}
        self._num_forks = 0
        self._num_steps = 0

    @property
    def num_waiting(self) -> int:
        """Requests without blocks."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests with blocks that have not ended."""
        if self._rules.policy != "static":
            return len(self._running)  # whoever is done has left
        return sum(not request.is_done for request in self._running)

    @property
    def free_seats(self) -> int:
        """Sequences that could run beside those that do; below 0 where several answers were promised seats."""
        promised = sum([len(request.siblings) for request in self._running])
        return self._rules.max_num_seqs - len(self._running) - promised

    def occupancy(self) -> Occupancy:
        """See :meth:`KvCache.occupancy`."""
        return self.cache.occupancy(self._running)

    def add(self, request: Request) -> None:
        """Queues a request; it must fit into the cache when alone.

        Raises:
            QueueFullError: as many wait as may.
        """
        most = self._rules.max_waiting
        if most is not None:
            check_queue(most, len(self._waiting), self.free_seats)
        if request.request_id in self._requests:
            raise EngineBugError(f"there is a request {request.request_id} already")
        due = self._num_steps + request.priority * self._rules.patience_steps
        request.rank = Rank(due, self.num_arrived)
        self.num_arrived += 1
        self.cache.enter(request)
        self._requests[request.request_id] = request
        _insert(self._waiting, request)

    def remove(self, request_id: str) -> None:
        """Forgets a finished or cancelled request and frees its blocks; one that is not here is no mistake.

        A beam takes its whole search with it.
        """
        request = self._requests.get(request_id)
        if request is None:
            return
        for one in [request] if request.search is None else request.search.beams:
            self.drop(one)
        self._end_batch()

    def drop(self, request: Request) -> None:
        """Forgets one request that is here and frees its blocks."""
        del self._requests[request.request_id]
        (self._running if request in self._running else self._waiting).remove(request)
        self.cache.release(request)

    def fork(self, parent: Request, child: Request) -> None:
        """Lets a new request go on from what another has computed.

        It runs as its parent does; where no seat is left, it waits and shares nothing.

        Args:
            parent: running, or waiting.
            child: new; its tokens begin with those of the parent that are computed.
        """
        self._num_forks += 1
        child.rank, child.priority = parent.rank._replace(fork=self._num_forks), parent.priority
        is_running = parent in self._running
        if is_running and self.free_seats <= 0:
            is_running = False
            child.num_computed = 0
            self.cache.enter(child)
        else:
            self.cache.fork(parent, child)
        self._requests[child.request_id] = child
        _insert(self._running if is_running else self._waiting, child)

    def schedule(self) -> tuple[Step, Moves]:
        """The next step and what must be copied before it. Its chunks are empty when there is no work.

        Raises:
            EngineBugError: requests wait, nothing runs and nothing can be admitted: they would wait forever.
        """
        self._num_steps += 1
        self._end_batch()  # its last member may have made room
        if self._waiting:
            self._publish()
        step = next_step(self._running, self._waiting, self.cache, self._rules)
        moves = Moves()
        for request, how in step.preempted:
            self._preempt(request, how, moves)
        for request, hit in step.admitted:
            self._admit(request, hit)
        for request, hit in step.admitted:
            if hit is None:
                self.cache.swap_in(request, moves)
        for chunk in step.chunks:
            end = chunk.start + chunk.length
            if chunk.takes_blocks:
                self.cache.make_writable(chunk.request, end, moves)
            # Counted as computed before it is, as in vLLM: after the model, all of this is far from the processor.
            chunk.request.num_computed = end
        if self._waiting and not self._running and not step.preempted:
            raise EngineBugError(f"request {self._waiting[0].request_id} can never be admitted")
        return step, moves

    def complete(self) -> None:
        """Takes note that what was planned has been computed."""
        if self.cache.has_windows:
            for request in self._running:
                self.cache.hide(request)

    def forget_all(self) -> None:
        """Makes sure that nothing computed so far is found by a later request."""
        self._publish()
        self.cache.forget_all()

    def finish(self, request: Request) -> None:
        """Ends a running request. A static batch keeps its members until the last one has ended."""
        if self._rules.policy != "static":
            self.remove(request.request_id)
            return
        request.is_done = True
        self._end_batch()

    def check_integrity(self) -> None:
        """Raises BlockAccountingError or EngineBugError unless queues, tables and pools tell the same story."""
        both = [*self._running, *self._waiting]
        if {id(one) for one in both} != {id(one) for one in self._requests.values()} or len(both) != len(
            self._requests
        ):
            raise EngineBugError("the queues and the list of requests disagree")
        for queue in (self._running, self._waiting):
            if queue != sorted(queue, key=lambda one: one.rank):
                raise EngineBugError("a queue is not in order of rank")
        for request in self._waiting:
            if any(True for table in holding_of(request).tables for _ in table.held()):
                raise EngineBugError(f"request {request.request_id} waits and holds blocks")
        for search in {id(one.search): one.search for one in both if one.search is not None}.values():
            search.check_integrity([one for one in both if one.search is search])
        self.cache.check_integrity(both)

    def _publish(self) -> None:
        """What is computed matters to newcomers only: until there are some, steps are spared the hashing."""
        for request in self._running:
            self.cache.publish(request)

    def _end_batch(self) -> None:
        """Frees what a static batch holds when its last member has ended."""
        if self._rules.policy == "static" and self._running and all(request.is_done for request in self._running):
            for request in self._running:
                del self._requests[request.request_id]
                self.cache.release(request)
            self._running.clear()

    def _admit(self, request: Request, hit: Hit | None) -> None:
        self._waiting.remove(request)
        _insert(self._running, request)
        if hit is None:
            return
        self.cache.open(request, hit)
        if request.num_cached_tokens is None and self.cache.prefix_caching:
            request.num_cached_tokens = hit.num_tokens  # not when it finds its own blocks after a preemption

    def _preempt(self, victim: Request, how: PreemptionName, moves: Moves) -> None:
        self._running.remove(victim)
        if how == "swap":
            self.cache.swap_out(victim, moves)
            self.num_swaps += 1
        else:
            self.cache.release(victim)
        _insert(self._waiting, victim)
        self.num_preemptions += 1


def _insert(queue: list[Request], request: Request) -> None:
    bisect.insort(queue, request, key=lambda one: one.rank)
