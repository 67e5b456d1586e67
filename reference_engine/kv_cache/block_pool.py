"""Who owns which block of the KV cache: a free list with reference counts (PagedAttention, SOSP'23, §4.3).

A block without references that the prefix index knows is both free and cached: it can be shared again with its contents
until `take` evicts it. Such blocks are taken last, least recently freed first (as in vLLM's automatic prefix caching).

Pure Python: it hands out block numbers and knows nothing of tensors.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from bakeoff.reference_engine.errors import BlockAccountingError
from bakeoff.reference_engine.kv_cache.block_hashes import BlockHash
from bakeoff.reference_engine.kv_cache.prefix_index import PrefixIndex


class BlockPool:
    """A fixed number of equal blocks.

    Args:
        num_blocks: how many there are; block ids are 0 … num_blocks - 1.
        block_size: tokens per block.
        num_usable: leading blocks that can be handed out; None for all.

    Attributes:
        run: blocks that are handed out together.
        num_evicted: cached blocks that `take` evicted, since the start.
    """

    def __init__(self, num_blocks: int, block_size: int, num_usable: int | None = None) -> None:
        if num_blocks < 1 or block_size < 1:
            raise BlockAccountingError(f"a pool needs blocks and tokens, not {num_blocks} blocks of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.run = 1
        self.num_evicted: int = 0
        self._num_usable = num_blocks if num_usable is None else num_usable
        # Free and not in the index: a stack, whose last block is taken first.
        self._empty = list(range(self._num_usable - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # free, in the index; the longest free comes first
        self._references = [0] * num_blocks
        self._index = PrefixIndex()

    @property
    def num_free(self) -> int:
        """Blocks that `take` can still return."""
        return len(self._empty) + len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks with references."""
        return self._num_usable - self.num_free

    @property
    def num_lost(self) -> int:
        """Blocks that can never be used."""
        return self.num_blocks - self._num_usable

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that a sequence of `num_tokens` tokens holds, the last one filled in part."""
        return -(-num_tokens // self.block_size)

    def references(self, block: int) -> int:
        """References to the block."""
        return self._references[block]

    def is_idle(self, block: int) -> bool:
        """Whether the block is cached and has no references."""
        return block in self._cached

    def hash_of(self, block: int) -> BlockHash | None:
        """The hash of a cached block; None if it is not cached."""
        return self._index.hash_of(block)

    def take(self, count: int) -> list[int]:
        """Takes free blocks; each then has one reference.

        Args:
            count: how many, a multiple of `run`.

        Raises:
            BlockAccountingError: fewer are free; nothing changed.
        """
        if count > self.num_free:
            raise BlockAccountingError(f"{count} blocks are wanted and {self.num_free} are free")
        blocks = [self._empty.pop() if self._empty else self._evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        self._index.remove(block)
        self.num_evicted += 1
        return block

    def share(self, block: int) -> None:
        """Adds a reference to a block that is in use or cached.

        Raises:
            BlockAccountingError: the block is free and its contents are lost.
        """
        if block in self._cached:
            del self._cached[block]
        elif self._references[block] < 1:
            raise BlockAccountingError(f"block {block} is free and cannot be shared")
        self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drops one reference of each block; a block without references is free again.

        Cached blocks are evicted in the order given.

        Raises:
            BlockAccountingError: a block is free already.
        """
        for block in blocks:
            if self._references[block] < 1:
                raise BlockAccountingError(f"block {block} is freed twice")
            self._references[block] -= 1
            if self._references[block]:
                continue
            if block in self._index:
                self._cached[block] = None
            else:
                self._empty.append(block)  # taken next, because it is still in the CPU's caches and resident

    def cache_block(self, block: int, block_hash: BlockHash, parent: BlockHash, tokens: Sequence[int]) -> None:
        """Puts a computed block in use into the prefix cache; it is read-only from now on.

        Args:
            block: its number.
            block_hash: of the block.
            parent: hash of the block before it, or a `root_hash`.
            tokens: of the block, all that will ever be in it.

        Raises:
            BlockAccountingError: the block is free, or cached under another hash.
        """
        if self._references[block] < 1:
            raise BlockAccountingError(f"block {block} is free and cannot be cached")
        self._index.insert(block_hash, block, parent, tokens)

    def find(self, block_hash: BlockHash) -> int | None:
        """The cached block with that hash, in use or free; None if there is none."""
        return self._index.find(block_hash)

    def find_all(self, hashes: Sequence[BlockHash]) -> list[int | None]:
        """`find` for each hash."""
        return self._index.find_all(hashes)

    def beginning(self, parent: BlockHash, tokens: Sequence[int]) -> tuple[int, int]:
        return self._index.beginning(parent, tokens)

    def reset_prefix_cache(self) -> None:
        """Empties the prefix cache; blocks in use stay in use."""
        self._empty.extend(self._cached)
        self._cached.clear()
        self._index.clear()

    def is_writable(self, block: int) -> bool:
        """Whether the block has one reference and is not cached."""
        return self._references[block] == 1 and block not in self._index

    def check_writable(self, blocks: Iterable[int]) -> None:
        """Protects shared contents: cached blocks are never written again, and shared ones are copied first.

        Raises:
            BlockAccountingError: one of the blocks is shared or cached.
        """
        for block in blocks:
            if not self.is_writable(block):
                raise BlockAccountingError(
                    f"block {block} is about to be written but has {self._references[block]} references"
                    + (" and is cached" if block in self._index else "")
                )

    def check_integrity(self, holders: Iterable[Iterable[int]]) -> None:
        """Compares the counts with the block lists of all holders, and the free blocks with the index.

        Raises:
            BlockAccountingError: a block leaked, is free while held, appears twice among the free ones, or is listed as
                cached although it is not, or the reverse.
        """
        held = [0] * self.num_blocks
        for blocks in holders:
            for block in blocks:
                held[block] += 1
        free = {*self._empty, *self._cached}
        if len(free) != self.num_free:
            raise BlockAccountingError("the free list names a block twice")
        for block, (references, holding) in enumerate(zip(self._references, held, strict=True)):
            if references != holding:
                raise BlockAccountingError(f"block {block} has {references} references but {holding} holders")
            if (block in free) != (references == 0 and block < self._num_usable):
                raise BlockAccountingError(f"block {block} has {references} references and the free list disagrees")
            if not references and (block in self._cached) != (block in self._index):
                raise BlockAccountingError(f"block {block} is free and the prefix index disagrees with the free list")
        self._index.check_integrity()
