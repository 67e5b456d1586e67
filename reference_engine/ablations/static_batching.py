"""Static batching, the baseline of Orca (OSDI'22): a batch is padded to its longest prompt and ends as a whole.

The next batch waits for the last member to finish; finished members are computed along with the rest.
"""

from collections.abc import Collection, Sequence, Set

from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.core.scheduling_rules import Rules
from bakeoff.reference_engine.kv_cache.block_copies import BlockCopies
from bakeoff.reference_engine.kv_cache.cache import KvCache
from bakeoff.reference_engine.scheduling.planner import Draft
from bakeoff.reference_engine.scheduling.queues import Queues
from bakeoff.reference_engine.scheduling.scheduler import Scheduler
from bakeoff.reference_engine.scheduling.step import Chunk, Step


class StaticScheduler(Scheduler):
    """A scheduler that starts a batch when the previous one has ended; see `Scheduler` for the arguments."""

    def __init__(self, cache: KvCache, rules: Rules) -> None:
        super().__init__(cache, rules)
        self._finished: set[str] = set()  # members that wait for the rest of their batch

    @property
    def num_running(self) -> int:
        """Requests that hold blocks and have not ended."""
        return len(self._queues.running) - len(self._finished)

    def remove(self, request_id: str) -> None:
        super().remove(request_id)
        self._end_batch()

    def schedule(self, in_flight: Set[str] = frozenset(), stages: int = 1) -> tuple[Step, BlockCopies]:
        self._end_batch()  # its last member may have made room
        return super().schedule(in_flight, stages)

    def finish(self, request: Request) -> None:
        """Ends a running request, which keeps its blocks until the last one of its batch has ended."""
        self._finished.add(request.request_id)
        self._end_batch()

    def _plan(self) -> Step:
        if self._queues.waiting:
            self._cache_blocks()
        return StaticDraft(self._queues, self.cache, self._rules, self._finished).plan()

    def _free(self, request: Request) -> None:
        self._finished.discard(request.request_id)
        super()._free(request)

    def _end_batch(self) -> None:
        """Frees the blocks of the batch when its last member has ended."""
        running = self._queues.running
        if running and len(self._finished) == len(running):
            self._queues.running = []
            for request in running:
                self._free(request)


class StaticDraft(Draft):
    """A step of a static batch.

    Args:
        queues: the requests.
        cache: not changed.
        rules: the settings.
        finished: ids of the running requests that have ended.
    """

    def __init__(self, queues: Queues, cache: KvCache, rules: Rules, finished: Collection[str]) -> None:
        super().__init__(queues, cache, rules)
        self._finished = finished

    def admits(self) -> bool:
        """Whether there is no batch."""
        return not self._queues.running

    def victims(self) -> Sequence[Request]:
        """Running members that can be preempted: finished ones have nothing to recompute."""
        return [request for request in self.scheduled if request.request_id not in self._finished]

    def chunk_length(self, request: Request, start: int) -> int:
        """The whole prompt at once."""
        return 0 if request.request_id in self._finished else request.num_tokens - start

    def padding(self, chunks: Sequence[Chunk]) -> tuple[int, ...]:
        """Padding of every row up to the longest one, and a whole row for each finished member."""
        longest = max((chunk.length for chunk in chunks), default=0)
        short = [longest - chunk.length for chunk in chunks if chunk.length < longest]
        return (*short, *(1 for request in self.scheduled if request.request_id in self._finished))
