"""Who may join the running requests: the one difference between continuous and static batching."""

from collections.abc import Collection
from typing import Protocol

from reference_engine.config import PolicyName
from reference_engine.request import Request


class BatchingPolicy(Protocol):
    """Asked by the scheduler once per step, then once per candidate."""

    def begin_step(self, waiting: Collection[Request], running: Collection[Request]) -> None:
        """Looks at the queues before candidates are offered."""
        ...

    def may_join(self, request: Request) -> bool:
        """Whether the first waiting request may be admitted now."""
        ...


class ContinuousBatching:
    """Anyone may join as soon as there is room (Orca, OSDI'22)."""

    def begin_step(self, waiting: Collection[Request], running: Collection[Request]) -> None:
        """Nothing to remember."""

    def may_join(self, request: Request) -> bool:  # noqa: ARG002 (the protocol's signature)
        """Always."""
        return True


class StaticBatching:
    """A batch is closed when it is formed; the next one waits until its last member has finished.

    This is what serving systems did before Orca; it stays here so that the difference can be measured.

    Args:
        batch_size: requests per batch, at most.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._members: set[str] = set()

    def begin_step(self, waiting: Collection[Request], running: Collection[Request]) -> None:
        """Forms the next batch from the head of the queue once nobody of the last one is left."""
        alive = {request.request_id for request in (*running, *waiting)}
        self._members &= alive
        if not self._members:
            self._members = {request.request_id for request in list(waiting)[: self._batch_size]}

    def may_join(self, request: Request) -> bool:
        """Members only; a preempted member may come back."""
        return request.request_id in self._members


def make_policy(name: PolicyName, max_num_seqs: int) -> BatchingPolicy:
    """The policy of that name."""
    return StaticBatching(max_num_seqs) if name == "static" else ContinuousBatching()
