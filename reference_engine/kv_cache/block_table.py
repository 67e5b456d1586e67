"""Which blocks hold one sequence's keys and values, in order: token i lives in block `blocks[i // block_size]`."""

from collections.abc import Sequence

from reference_engine.kv_cache.block_pool import BlockPool
from reference_engine.kv_cache.prefix_index import BlockName, block_name, root_name


class BlockTable:
    """The growing list of blocks of one sequence; it owns one reference to each.

    Args:
        pool: where the blocks come from.
        salt: keeps the sequence's blocks apart from those of sequences with another salt.
    """

    __slots__ = ("_names", "_num_published", "_pool", "_root", "blocks")

    def __init__(self, pool: BlockPool, salt: str | None = None) -> None:
        self._pool = pool
        self._root = root_name(salt)
        self._names: list[BlockName] = []  # of the sequence's first full blocks, whether it holds them now or not
        self._num_published = 0  # leading blocks that were found or made findable
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

    def open(self, token_ids: Sequence[int]) -> int | None:
        """Makes room for these tokens in an empty table, beginning with the blocks that hold their beginning already.

        At least one token is left out of what is found: it must be computed for the next one to be sampled.

        Args:
            token_ids: all tokens of the sequence.

        Returns:
            How many tokens need not be computed, or None (and nothing changed) if the pool has too few blocks.
        """
        found = self._find(token_ids)
        fresh = self._pool.allocate(self._pool.blocks_for(len(token_ids)) - len(found), beside=found)
        if fresh is None:
            return None
        self.blocks = found + fresh
        self._num_published = len(found)
        return len(found) * self._pool.block_size

    def publish(self, token_ids: Sequence[int], num_computed: int) -> None:
        """Makes the blocks findable that are full and computed now.

        Args:
            token_ids: of the sequence, at least `num_computed`.
            num_computed: leading tokens whose keys and values are in the blocks.
        """
        num_full = num_computed // self._pool.block_size
        if num_full == self._num_published:
            return  # most decodes
        for index in range(self._num_published, num_full):
            self._pool.publish(self.blocks[index], self._name(token_ids, index))
        self._num_published = num_full

    def check_writable(self, start: int, end: int) -> None:
        """Raises BlockAccountingError if tokens [start, end) lie in a block that others hold or may find."""
        size = self._pool.block_size
        self._pool.check_writable(self.blocks[start // size : -(-end // size)])

    def clear(self) -> None:
        """Gives all blocks back, the last one first: a beginning is of use to more sequences than its continuation."""
        blocks, self.blocks = self.blocks, []
        self._num_published = 0
        self._pool.release(reversed(blocks))

    def _find(self, token_ids: Sequence[int]) -> list[int]:
        found: list[int] = []
        for index in range((len(token_ids) - 1) // self._pool.block_size):
            block = self._pool.find(self._name(token_ids, index))
            if block is None:
                break
            found.append(block)
        return found

    def _name(self, token_ids: Sequence[int], index: int) -> BlockName:
        """The name of the sequence's block number `index`; all before it have been asked for already."""
        if index == len(self._names):
            size = self._pool.block_size
            parent = self._names[-1] if self._names else self._root
            self._names.append(block_name(parent, token_ids[index * size : (index + 1) * size]))
        return self._names[index]
