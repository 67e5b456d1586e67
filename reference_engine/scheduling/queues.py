"""Requests in order of rank, with the scheduler's data of each. Pure Python."""

import bisect
import dataclasses
import sys
from collections.abc import Set
from typing import NamedTuple

from bakeoff.reference_engine.core.request import Request


class Rank(NamedTuple):
    """Order of requests; the smallest rank comes first.

    Attributes:
        due_step: the step of arrival, later by the patience for each level of priority.
        number: in order of arrival.
        fork: in order of forking; 0 for requests that arrived.
    """

    due_step: int
    number: int
    fork: int = 0


@dataclasses.dataclass(slots=True)
class Queues:
    """Requests with and without blocks, in order of rank.

    Attributes:
        running: requests with blocks.
        waiting: requests without.
        ranks: by request id, of every request in a queue.
        paused: ids of the requests that have nothing to compute until they are resumed.
        in_flight: ids of the requests that the next step leaves out, because one in flight computes them.
        most_decodes: sequences that it decodes at most.
    """

    running: list[Request] = dataclasses.field(default_factory=list[Request])
    waiting: list[Request] = dataclasses.field(default_factory=list[Request])
    ranks: dict[str, Rank] = dataclasses.field(default_factory=dict[str, Rank])
    paused: set[str] = dataclasses.field(default_factory=set[str])
    in_flight: Set[str] = frozenset()
    most_decodes: int = sys.maxsize

    def insert(self, queue: list[Request], request: Request) -> None:
        """Puts a request in its place in one of the two queues."""
        bisect.insort(queue, request, key=self.rank_of)

    def may_compute(self, request: Request) -> bool:
        """Whether the next step may compute something of a request."""
        return request.request_id not in self.paused and request.request_id not in self.in_flight

    def rank_of(self, request: Request) -> Rank:
        """The rank of a request in a queue."""
        return self.ranks[request.request_id]
