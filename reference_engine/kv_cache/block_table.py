"""Which blocks hold one sequence's keys and values, in order: token i lives in block `blocks[i // block_size]`.

If layers see only a window of the latest tokens, blocks that have left it are released while the sequence grows.
`RELEASED` takes their place, so that the rule above holds. The first tokens can be kept, too (attention sinks,
StreamingLLM, arXiv:2309.17453).
"""

import array
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from bakeoff.reference_engine.kv_cache.block_hashes import BlockHash, BlockHashes, block_hash
from bakeoff.reference_engine.kv_cache.block_pool import BlockPool

RELEASED = -1
"""Placeholder of a block that the sequence no longer needs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Visible:
    """Which earlier tokens a token sees.

    Attributes:
        window: how many of the latest ones, itself included; None for all.
        sinks: how many of the sequence's first tokens besides.
    """

    window: int | None = None
    sinks: int = 0

    def out_of_window_blocks(self, num_computed: int, block_size: int) -> range:
        """Indices of the blocks that no token from `num_computed` on sees."""
        if self.window is None:
            return range(0)
        return range(-(-self.sinks // block_size), max(0, num_computed - self.window + 1) // block_size)


EVERYTHING = Visible()


def block_list(blocks: Iterable[int] = ()) -> "array.array[int]":
    """Block numbers as a C array, which kernels copy unchanged in every step."""
    return array.array("i", blocks)


def as_block_list(table: Sequence[int]) -> "array.array[int]":
    """The same block numbers as a C array; usually they are one already."""
    return table if isinstance(table, array.array) else block_list(table)


class BlockTable:
    """The growing list of blocks of one sequence; it owns one reference to each.

    Args:
        pool: of the blocks.
        visible: determines which of them are still needed.
    """

    __slots__ = ("_num_cached", "_num_out_of_window", "_pool", "_visible", "blocks")

    def __init__(self, pool: BlockPool, visible: Visible = EVERYTHING) -> None:
        self._pool = pool
        self._visible = visible
        self._num_cached = 0  # leading blocks that are in the prefix cache
        self._num_out_of_window = 0  # leading blocks up to which those outside the window are released
        self.blocks: array.array[int] = block_list()  # never replaced: steps and kernels hold a reference

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit into the blocks, released ones included."""
        return len(self.blocks) * self._pool.block_size

    def held(self) -> Iterator[int]:
        """The blocks that are not released."""
        return (block for block in self.blocks if block != RELEASED)

    def missing(self, start: int, end: int) -> int:
        """Blocks to allocate before tokens [start, end) can be written, including a copy of a shared one."""
        return max(0, self._pool.blocks_for(end) - len(self.blocks)) + (self._shared_at(start) is not None)

    def has_room(self, token: int) -> bool:
        """Whether the token's slot is allocated and writable."""
        index = token // self._pool.block_size
        return index < len(self.blocks) and self._pool.is_writable(self.blocks[index])

    def make_writable(self, start: int, end: int) -> tuple[int, int] | None:
        """Allocates the blocks that `missing` counted; the pool must have them.

        Returns:
            A shared block and the new one to copy its contents to; None if nothing is shared.
        """
        first, copy = start // self._pool.block_size, None
        if first < len(self.blocks):
            shared = self._shared_at(start)
            if shared is not None:
                (own,) = self._pool.take(1)
                self._pool.release([shared])
                self.blocks[first] = own
                copy = (shared, own)
            self._pool.check_writable(self.blocks[first : -(-end // self._pool.block_size)])
        missing = self._pool.blocks_for(end) - len(self.blocks)
        if missing > 0:
            self.blocks.extend(self._pool.take(missing))
        return copy

    def _shared_at(self, token: int) -> int | None:
        """The partly filled block of that token, if a fork shares it or it is cached."""
        index, inside = divmod(token, self._pool.block_size)
        if not inside or index >= len(self.blocks):
            return None
        block = self.blocks[index]
        return None if self._pool.is_writable(block) else block

    def attach_prefix(self, blocks: Sequence[int], num_full: int) -> None:
        """Starts an empty table with cached blocks, `RELEASED` where they are outside the window.

        Args:
            blocks: of the prefix.
            num_full: those whose every token belongs to it; a last one beyond is copied before it is written.
        """
        for block in blocks:
            if block != RELEASED:
                self._pool.share(block)
        self.blocks[:] = block_list(blocks)
        self._num_cached = num_full
        size = self._pool.block_size
        self._num_out_of_window = self._visible.out_of_window_blocks(num_full * size, size).stop

    def cache_blocks(self, hashes: BlockHashes, token_ids: Sequence[int], num_computed: int) -> None:
        """Puts full blocks into the prefix cache.

        Args:
            hashes: of the sequence's blocks.
            token_ids: of the sequence, at least `num_computed`.
            num_computed: leading tokens whose keys and values are in the blocks.
        """
        for index in range(self._num_cached, num_computed // self._pool.block_size):
            tokens = token_ids[index * self._pool.block_size : (index + 1) * self._pool.block_size]
            self._cache(index, hashes.at(token_ids, index), hashes.before(token_ids, index), tokens)
            self._num_cached = index + 1

    def cache_tail(self, hashes: BlockHashes, token_ids: Sequence[int], num_computed: int) -> None:
        """Puts the last, partly filled block into the prefix cache, once the sequence will not write it any more.

        Arguments as for `cache_blocks`, which must have been called. A block that a fork shares stays out.
        """
        index, inside = divmod(num_computed, self._pool.block_size)
        if inside and index < len(self.blocks) and self._pool.references(self.blocks[index]) == 1:
            tokens, parent = token_ids[num_computed - inside : num_computed], hashes.before(token_ids, index)
            self._cache(index, block_hash(parent, tokens), parent, tokens)

    def _cache(self, index: int, own: BlockHash, parent: BlockHash, tokens: Sequence[int]) -> None:
        if self.blocks[index] != RELEASED:
            self._pool.cache_block(self.blocks[index], own, parent, tokens)

    def has_out_of_window(self, num_computed: int) -> bool:
        """Whether `free_out_of_window` would release a block."""
        return self._visible.out_of_window_blocks(num_computed, self._pool.block_size).stop > self._num_out_of_window

    def free_out_of_window(self, num_computed: int) -> None:
        """Releases the blocks that no token from `num_computed` on sees."""
        if not self.has_out_of_window(num_computed):
            return
        outside = self._visible.out_of_window_blocks(num_computed, self._pool.block_size)
        for index in range(max(outside.start, self._num_out_of_window), outside.stop):
            if self.blocks[index] != RELEASED:
                self._pool.release([self.blocks[index]])
                self.blocks[index] = RELEASED
        self._num_out_of_window = outside.stop

    def fork(self) -> "BlockTable":
        """A second table over the same blocks; the first of the two to write into the last block gets a copy of it."""
        fork = BlockTable(self._pool, self._visible)
        for block in self.held():
            self._pool.share(block)
        fork.blocks.extend(self.blocks)
        fork._num_cached, fork._num_out_of_window = self._num_cached, self._num_out_of_window
        return fork

    def clear(self) -> None:
        """Releases all blocks, the last first, so that it is evicted first: fewer sequences share it than a prefix."""
        held = [block for block in reversed(self.blocks) if block != RELEASED]
        del self.blocks[:]
        self._num_cached = self._num_out_of_window = 0
        self._pool.release(held)
