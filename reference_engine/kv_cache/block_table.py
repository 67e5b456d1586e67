"""Which blocks hold one sequence's keys and values, in order: token i lives in block `blocks[i // block_size]`."""

from reference_engine.kv_cache.block_pool import BlockPool


class BlockTable:
    """The growing list of blocks of one sequence; it owns one reference to each."""

    __slots__ = ("_pool", "blocks")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.blocks: list[int] = []

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit into the blocks held now."""
        return len(self.blocks) * self._pool.block_size

    def grow_to(self, num_tokens: int) -> bool:
        """Makes room for `num_tokens` tokens in all; False (and nothing changed) if the pool has too few blocks."""
        missing = self._pool.blocks_for(num_tokens) - len(self.blocks)
        if missing <= 0:
            return True
        fresh = self._pool.allocate(missing)
        if fresh is None:
            return False
        self.blocks.extend(fresh)
        return True

    def clear(self) -> None:
        """Gives all blocks back."""
        blocks, self.blocks = self.blocks, []
        self._pool.release(blocks)
