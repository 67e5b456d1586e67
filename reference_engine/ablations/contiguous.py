"""A KV cache that reserves room for a sequence's longest length at once, as servers did before PagedAttention."""

import itertools
from collections.abc import Iterable

from bakeoff.reference_engine.errors import BlockAccountingError
from bakeoff.reference_engine.kv_cache.block_pool import BlockPool


class RunPool(BlockPool):
    """A pool that hands out runs of adjacent blocks.

    Args:
        num_blocks: number of blocks; a remainder that is shorter than a run is not used.
        block_size: tokens per block.
        run: blocks of a run, at least 1.
    """

    def __init__(self, num_blocks: int, block_size: int, run: int) -> None:
        if num_blocks < run or run < 1:
            raise BlockAccountingError(f"{num_blocks} blocks make no run of {run}")
        super().__init__(num_blocks, block_size, num_blocks - num_blocks % run)
        self.run = run

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks held by a sequence of `num_tokens` tokens: whole runs."""
        return -(-num_tokens // (self.block_size * self.run)) * self.run

    def check_integrity(self, holders: Iterable[Iterable[int]]) -> None:
        """Also checks that the blocks of a run are adjacent."""
        held = [list(blocks) for blocks in holders]
        for blocks in held:
            if any(b != a + 1 for i, (a, b) in enumerate(itertools.pairwise(blocks)) if (i + 1) % self.run):
                raise BlockAccountingError("a run of blocks does not lie side by side")
        super().check_integrity(held)
