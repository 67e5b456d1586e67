"""Who owns which block of the KV cache: a free list with reference counts (PagedAttention, SOSP'23, §4.3).

Pure Python: it hands out block numbers and knows nothing of tensors.
"""

from collections.abc import Iterable

from reference_engine.errors import BlockAccountingError


class BlockPool:
    """A fixed number of equal blocks.

    Args:
        num_blocks: how many there are; block ids are 0 … num_blocks - 1.
        block_size: tokens per block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise BlockAccountingError(f"a pool needs blocks and tokens, not {num_blocks} blocks of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack
        self._references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can still give."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each, or None (and nothing changed) if fewer are free."""
        if count > len(self._free):
            return None
        blocks = [self._free.pop() for _ in range(count)]  # the last freed first: still in cache, and already resident
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, block: int) -> None:
        """Adds a reference to a block in use.

        Raises:
            BlockAccountingError: the block is free.
        """
        if self._references[block] < 1:
            raise BlockAccountingError(f"block {block} is free and cannot be shared")
        self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drops one reference of each block; a block without references is free again.

        Raises:
            BlockAccountingError: a block is free already.
        """
        for block in blocks:
            if self._references[block] < 1:
                raise BlockAccountingError(f"block {block} is freed twice")
            self._references[block] -= 1
            if not self._references[block]:
                self._free.append(block)

    def check_integrity(self, holders: Iterable[Iterable[int]]) -> None:
        """Compares the counts with the block lists of all holders.

        Raises:
            BlockAccountingError: a block leaked, is free while held, or appears twice in the free list.
        """
        held = [0] * self.num_blocks
        for blocks in holders:
            for block in blocks:
                held[block] += 1
        free = set(self._free)
        if len(free) != len(self._free):
            raise BlockAccountingError("the free list names a block twice")
        for block, (references, holding) in enumerate(zip(self._references, held, strict=True)):
            if references != holding:
                raise BlockAccountingError(f"block {block} has {references} references but {holding} holders")
            if (block in free) != (references == 0):
                raise BlockAccountingError(f"block {block} has {references} references and the free list disagrees")
