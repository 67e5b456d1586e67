"""Which tokens are computed in the next step.

Continuous batching at the granularity of one step (Orca, OSDI'22); prompts are cut into chunks that fill what the
decodes leave of a token budget, so that decodes never wait for a long prompt (Sarathi-Serve, OSDI'24). When blocks run
out, the request admitted last gives its blocks back and is computed again later (vLLM's recompute preemption, SOSP'23
§4.5). The oldest request therefore always makes progress. What is computed stays findable for later requests with the
same beginning (`kv_cache/prefix_index.py`). Pure Python, no torch.
"""

from collections import deque
from collections.abc import Iterator

from reference_engine.batching_policy import BatchingPolicy
from reference_engine.errors import EngineBugError
from reference_engine.kv_cache.block_pool import BlockPool
from reference_engine.kv_cache.block_table import BlockTable
from reference_engine.request import Chunk, Request


class Scheduler:
    """Owns the queues and, through block tables, the block pool.

    Args:
        pool: the KV blocks.
        policy: who may join the running requests.
        max_num_seqs: requests that may run at the same time.
        max_num_batched_tokens: tokens per step, at least max_num_seqs.
        enable_prefix_caching: whether requests begin with the blocks that hold their beginning already.
    """

    def __init__(
        self,
        pool: BlockPool,
        policy: BatchingPolicy,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        enable_prefix_caching: bool,
    ) -> None:
        self.pool = pool
        self.num_preemptions = 0
        self._policy = policy
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._enable_prefix_caching = enable_prefix_caching
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []  # in order of admission
        self._planned: dict[str, Chunk] = {}
        self._budget = 0  # tokens

    @property
    def num_waiting(self) -> int:
        """Requests without blocks."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests with blocks."""
        return len(self._running)

    def add(self, request: Request) -> None:
        """Queues a request; it must fit into the pool when alone."""
        request.table = BlockTable(self.pool, request.cache_salt)
        self._waiting.append(request)

    def remove(self, request_id: str) -> Request | None:
        """Forgets a finished or cancelled request and frees its blocks; None if it is not here (any more)."""
        for queue in (self._running, self._waiting):
            for request in queue:
                if request.request_id == request_id:
                    queue.remove(request)
                    _table(request).clear()
                    return request
        return None

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step: decodes, then running prefills, then newcomers. Empty when there is no work.

        Raises:
            EngineBugError: requests wait, nothing runs and nothing can be admitted: they would wait forever.
        """
        self._planned = {}
        self._budget = self._max_num_batched_tokens
        preemptions_before = self.num_preemptions
        for request in self._running_by_urgency():
            self._plan(request)
        if self.num_preemptions == preemptions_before:
            self._admit()
        if self._waiting and not self._running:
            raise EngineBugError(f"request {self._waiting[0].request_id} can never be admitted")
        return list(self._planned.values())

    def complete(self, chunk: Chunk) -> None:
        """Takes note that a planned chunk has been computed: its full blocks can be found from now on."""
        request = chunk.request
        request.num_computed = chunk.end
        if self._enable_prefix_caching:
            _table(request).publish(request.token_ids, chunk.end)

    def check_integrity(self) -> None:
        """Raises BlockAccountingError unless every block is either free or held by exactly these requests."""
        self.pool.check_integrity(_table(request).blocks for request in (*self._running, *self._waiting))

    def _running_by_urgency(self) -> Iterator[Request]:
        """Decodes first; a preemption on the way shortens the list, so that membership is looked up each time."""
        snapshot = sorted(self._running, key=lambda request: not request.is_decoding)  # stable: admission order stays
        return (request for request in snapshot if request in self._running)

    def _plan(self, request: Request) -> None:
        length = min(request.num_uncomputed, self._budget)
        if length and self._make_room(request, request.num_computed + length):
            _table(request).check_writable(request.num_computed, request.num_computed + length)
            self._planned[request.request_id] = Chunk(request, request.num_computed, length)
            self._budget -= length

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Grows the request's table, preempting the youngest until it fits; False if the request itself had to go."""
        while not _table(request).grow_to(num_tokens):
            victim = self._running[-1]
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, victim: Request) -> None:
        self._running.remove(victim)
        _table(victim).clear()
        victim.num_computed = 0
        self._waiting.appendleft(victim)
        self.num_preemptions += 1
        planned = self._planned.pop(victim.request_id, None)
        if planned is not None:
            self._budget += planned.length

    def _admit(self) -> None:
        self._policy.begin_step(self._waiting, self._running)
        while self._waiting and self._budget and len(self._running) < self._max_num_seqs:
            request = self._waiting[0]
            # Blocks for the whole prompt are taken at once: chunks of two half-admitted prompts would otherwise
            # compete for the same last blocks and preempt each other in turn.
            if not self._policy.may_join(request) or not self._take_blocks(request):
                return
            self._running.append(self._waiting.popleft())
            self._plan(request)

    def _take_blocks(self, request: Request) -> bool:
        """Gives a request the blocks of all its tokens; False (and nothing changed) if the pool has too few."""
        if not self._enable_prefix_caching:
            return _table(request).grow_to(request.num_tokens)
        num_found = _table(request).open(request.token_ids)
        if num_found is None:
            return False
        request.num_computed = num_found
        if request.num_cached_tokens is None:  # not when it finds its own blocks again after a preemption
            request.num_cached_tokens = num_found
        return True


def _table(request: Request) -> BlockTable:
    if request.table is None:
        raise EngineBugError(f"request {request.request_id} was never added to the scheduler")
    return request.table
