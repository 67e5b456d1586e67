"""What one step of the engine computes."""

import dataclasses

import msgspec

from reference_engine.kv_cache.cache import Hit
from reference_engine.request import Request
from reference_engine.scheduling.rules import PreemptionName


class Chunk(msgspec.Struct, frozen=True):
    """Tokens [start, start + length) of a request, to be computed in one step.

    Attributes:
        request: whose.
        start: tokens in the cache before the step.
        length: at least 1.
        takes_blocks: whether there must be blocks first for it; else their place is there.
    """

    request: Request
    start: int
    length: int
    takes_blocks: bool = True

    @property
    def end(self) -> int:
        """Tokens in the cache after the step."""
        return self.start + self.length

    @property
    def is_sampled(self) -> bool:
        """Whether the chunk reaches the end of what is known, so that its last row gives the next token."""
        return self.end == self.request.num_tokens


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """The plan of one step; to be carried out in this order.

    Attributes:
        preempted: requests that lose their blocks, and how.
        admitted: requests that begin or come back, and what was found of each in the cache; None for what comes back
            from host memory.
        chunks: what is computed.
        padding: lengths of rows that are computed for nothing, beside them: static batches pad to the longest.
    """

    preempted: tuple[tuple[Request, PreemptionName], ...] = ()
    admitted: tuple[tuple[Request, Hit | None], ...] = ()
    chunks: tuple[Chunk, ...] = ()
    padding: tuple[int, ...] = ()
