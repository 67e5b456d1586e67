"""What one step of the engine computes."""

from array import array

import msgspec

from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.core.scheduling_rules import PreemptionName
from bakeoff.reference_engine.kv_cache.cache import Hit


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Tokens [start, start + length) of a request, to be computed in one step.

    Attributes:
        request: of the tokens.
        block_tables: its own, one for each group of layers; they grow with it.
        start: tokens in the cache before the step.
        length: at least 1.
        is_sampled: whether it reaches the last known token, so that its last row gives the next one.
        takes_blocks: whether blocks must be allocated for it first.
        drafts: its last tokens, if they are guesses that the step verifies.
    """

    request: Request
    block_tables: "list[array[int]]"
    start: int
    length: int
    is_sampled: bool
    takes_blocks: bool = True
    drafts: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """Tokens in the cache after the step."""
        return self.start + self.length


class Step(msgspec.Struct, frozen=True):
    """The plan of one step; to be carried out in this order.

    Attributes:
        preempted: requests that lose their blocks, and how.
        admitted: requests that begin or come back, each with its cached prefix; None for those swapped in from host
            memory.
        chunks: what is computed: first single tokens and drafts, by the length of their context, since backends pad
            neighbours to the longest of them; then the others, in order of rank.
        padding: lengths of rows that are computed for nothing, beside them: static batches pad to the longest.
    """

    preempted: tuple[tuple[Request, PreemptionName], ...] = ()
    admitted: tuple[tuple[Request, Hit | None], ...] = ()
    chunks: tuple[Chunk, ...] = ()
    padding: tuple[int, ...] = ()
