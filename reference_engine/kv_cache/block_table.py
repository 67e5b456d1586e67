"""Which blocks hold one sequence's keys and values, in order: token i lives in block `blocks[i // block_size]`.

Where layers see only a window of the latest tokens, blocks that have left it are given back while the sequence goes
on; their places stay, as `RELEASED`, so that the rule above holds. The first tokens can be kept besides (attention
sinks, StreamingLLM, arXiv:2309.17453).
"""

import array
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from reference_engine.kv_cache.block_names import BlockNames
from reference_engine.kv_cache.block_pool import BlockPool

RELEASED = -1
"""In the place of a block that the sequence needs no more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Visible:
    """Which earlier tokens a token sees.

    Attributes:
        window: the latest ones, itself included; None for all.
        sinks: besides them, so many from the sequence's beginning.
    """

    window: int | None = None
    sinks: int = 0

    def hidden_blocks(self, num_computed: int, block_size: int) -> range:
        """Blocks in which the next token to be computed, and all after it, see nothing."""
        if self.window is None:
            return range(0)
        return range(-(-self.sinks // block_size), max(0, num_computed - self.window + 1) // block_size)


EVERYTHING = Visible()


def block_list(blocks: Iterable[int] = ()) -> "array.array[int]":
    """Numbers of blocks, as C keeps them: what a kernel is told in every step is copied, not collected from objects."""
    return array.array("i", blocks)


class BlockTable:
    """The growing list of blocks of one sequence; it owns one reference to each.

    Args:
        pool: where the blocks come from.
        visible: what decides which of them are still needed.
    """

    __slots__ = ("_num_hidden", "_num_published", "_pool", "_visible", "blocks")

    def __init__(self, pool: BlockPool, visible: Visible = EVERYTHING) -> None:
        self._pool = pool
        self._visible = visible
        self._num_published = 0  # leading blocks that were found or made findable
        self._num_hidden = 0  # as far as blocks that have left the window were given back
        self.blocks = block_list()  # always this one: steps and kernels point to it

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit into the blocks, those given back among them."""
        return len(self.blocks) * self._pool.block_size

    def held(self) -> Iterator[int]:
        """The blocks without those given back."""
        return (block for block in self.blocks if block != RELEASED)

    def missing(self, start: int, end: int) -> int:
        """Blocks that must be allocated before tokens [start, end) can be written, a copy of a shared one included."""
        return max(0, self._pool.blocks_for(end) - len(self.blocks)) + (self._shared_at(start) is not None)

    def has_room(self, token: int) -> bool:
        """Whether that token's place is there, and may be written."""
        index = token // self._pool.block_size
        return index < len(self.blocks) and self._pool.is_writable(self.blocks[index])

    def make_writable(self, start: int, end: int) -> tuple[int, int] | None:
        """Gets what `missing` counted; the pool must have it.

        Returns:
            From which block to which one contents must be copied, because the first is shared with a fork.
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
        """The block that holds that place, if it holds others' tokens too."""
        index, inside = divmod(token, self._pool.block_size)
        if not inside or index >= len(self.blocks):
            return None
        block = self.blocks[index]
        return block if self._pool.references(block) > 1 else None

    def open(self, found: Sequence[int]) -> None:
        """Begins an empty table with blocks that hold its beginning already, `RELEASED` where they are out of sight."""
        for block in found:
            if block != RELEASED:
                self._pool.share(block)
        self.blocks[:] = block_list(found)
        self._num_published = len(found)
        size = self._pool.block_size
        self._num_hidden = self._visible.hidden_blocks(len(found) * size, size).stop

    def publish(self, names: BlockNames, token_ids: Sequence[int], num_computed: int) -> None:
        """Makes full blocks findable.

        Args:
            names: of the sequence's blocks.
            token_ids: of the sequence, at least `num_computed`.
            num_computed: leading tokens whose keys and values are in the blocks.
        """
        for index in range(self._num_published, num_computed // self._pool.block_size):
            if self.blocks[index] != RELEASED:
                self._pool.publish(self.blocks[index], names.at(token_ids, index))
            self._num_published = index + 1

    def hides(self, num_computed: int) -> bool:
        """Whether `hide` would do anything."""
        return self._visible.hidden_blocks(num_computed, self._pool.block_size).stop > self._num_hidden

    def hide(self, num_computed: int) -> None:
        """Gives back the blocks that nobody sees any more when so many leading tokens are computed."""
        if not self.hides(num_computed):
            return
        hidden = self._visible.hidden_blocks(num_computed, self._pool.block_size)
        for index in range(max(hidden.start, self._num_hidden), hidden.stop):
            if self.blocks[index] != RELEASED:
                self._pool.release([self.blocks[index]])
                self.blocks[index] = RELEASED
        self._num_hidden = hidden.stop

    def fork(self) -> "BlockTable":
        """A second table that shares every block; whoever writes into the last one first gets a copy of it."""
        twin = BlockTable(self._pool, self._visible)
        for block in self.held():
            self._pool.share(block)
        twin.blocks.extend(self.blocks)
        twin._num_published, twin._num_hidden = self._num_published, self._num_hidden
        return twin

    def clear(self) -> None:
        """Gives all blocks back, the last one first: a beginning is of use to more sequences than its continuation."""
        held = [block for block in reversed(self.blocks) if block != RELEASED]
        del self.blocks[:]
        self._num_published = self._num_hidden = 0
        self._pool.release(held)
