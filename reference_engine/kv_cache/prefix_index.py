"""Which block holds which prefix, so that a prompt's cached prefix is not computed again.

Finding the longest cached prefix takes one dictionary lookup per block (`block_hashes.py`). Where it ends, the blocks
that continue it in other sequences are compared token by token: the beginning of one may continue this one, too. Pure
Python, no tensors.
"""

import operator
from collections.abc import Sequence
from itertools import islice

from bakeoff.reference_engine.errors import BlockAccountingError
from bakeoff.reference_engine.kv_cache.block_hashes import BlockHash

_MOST_COMPARED = 8
"""Blocks with one parent, the latest, whose tokens are compared: thousands of sequences may differ in their first."""


class PrefixIndex:
    """Blocks by hash, one to one. The owner keeps the contents of indexed blocks unchanged."""

    def __init__(self) -> None:
        self._blocks: dict[BlockHash, int] = {}
        self._hashes: dict[int, BlockHash] = {}
        self._parents: dict[int, BlockHash] = {}
        self._continuations: dict[BlockHash, dict[int, Sequence[int]]] = {}  # tokens of blocks, by their parent

    def __contains__(self, block: int) -> bool:
        return block in self._hashes

    def find(self, block_hash: BlockHash) -> int | None:
        """The block with that hash, or None."""
        return self._blocks.get(block_hash)

    def find_all(self, hashes: Sequence[BlockHash]) -> list[int | None]:
        """`find` for each hash."""
        return [*map(self._blocks.get, hashes)]

    def hash_of(self, block: int) -> BlockHash | None:
        """The hash of an indexed block; None if it is not indexed."""
        return self._hashes.get(block)

    def beginning(self, parent: BlockHash, tokens: Sequence[int]) -> tuple[int, int]:
        """The indexed block that begins most like the tokens behind a prefix.

        Args:
            parent: hash of the prefix.
            tokens: that follow it, at least one.

        Returns:
            The block, and how many tokens it has in common with these; if that is 0, the block means nothing.
        """
        latest = islice(reversed(self._continuations.get(parent, _NOTHING).items()), _MOST_COMPARED)
        return max(((block, _common(own, tokens)) for block, own in latest), key=_SECOND, default=(0, 0))

    def insert(self, block_hash: BlockHash, block: int, parent: BlockHash, tokens: Sequence[int]) -> None:
        """Adds a block. If two blocks have equal contents, the first stays indexed.

        Args:
            block_hash: of the block.
            block: its number.
            parent: hash of the block before it, or a `root_hash`.
            tokens: of the block.

        Raises:
            BlockAccountingError: the block is indexed under another hash.
        """
        if self._hashes.get(block, block_hash) != block_hash:
            raise BlockAccountingError(f"block {block} gets a second hash: it was written after it was full")
        if block_hash not in self._blocks:
            self._blocks[block_hash] = block
            self._hashes[block] = block_hash
            self._parents[block] = parent
            self._continuations.setdefault(parent, {})[block] = tokens

    def remove(self, block: int) -> None:
        """Removes an indexed block."""
        del self._blocks[self._hashes.pop(block)]
        parent = self._parents.pop(block)
        continuations = self._continuations[parent]
        del continuations[block]
        if not continuations:
            del self._continuations[parent]

    def clear(self) -> None:
        """Removes all blocks."""
        self._blocks.clear()
        self._hashes.clear()
        self._parents.clear()
        self._continuations.clear()

    def check_integrity(self) -> None:
        """Raises BlockAccountingError unless the two dictionaries are inverse to each other."""
        mirrored = {block_hash: block for block, block_hash in self._hashes.items()}
        if mirrored != self._blocks or len(mirrored) != len(self._hashes):
            raise BlockAccountingError("the prefix index finds a block under another block's hash")
        children = {block: parent for parent, blocks in self._continuations.items() for block in blocks}
        if children != self._parents or children.keys() != self._hashes.keys():
            raise BlockAccountingError("the prefix index lists a block under another parent, or one that has left it")


_NOTHING: dict[int, Sequence[int]] = {}
_SECOND = operator.itemgetter(1)


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
