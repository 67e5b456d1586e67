"""Which block holds which prefix, so that a prompt's cached prefix is not computed again.

Finding the longest cached prefix takes one dictionary lookup per block (`block_hashes.py`). Pure Python, no tensors.
"""

from bakeoff.reference_engine.errors import BlockAccountingError
from bakeoff.reference_engine.kv_cache.block_hashes import BlockHash


class PrefixIndex:
    """Blocks by hash, one to one. The owner keeps the contents of indexed blocks unchanged."""

    def __init__(self) -> None:
        self._blocks: dict[BlockHash, int] = {}
        self._hashes: dict[int, BlockHash] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._hashes

    def find(self, block_hash: BlockHash) -> int | None:
        """The block with that hash, or None."""
        return self._blocks.get(block_hash)

    def hash_of(self, block: int) -> BlockHash | None:
        """The hash of an indexed block; None if it is not indexed."""
        return self._hashes.get(block)

    def insert(self, block_hash: BlockHash, block: int) -> None:
        """Adds a block. If two blocks have equal contents, the first stays indexed.

        Raises:
            BlockAccountingError: the block is indexed under another hash.
        """
        if self._hashes.get(block, block_hash) != block_hash:
            raise BlockAccountingError(f"block {block} gets a second hash: it was written after it was full")
        if block_hash not in self._blocks:
            self._blocks[block_hash] = block
            self._hashes[block] = block_hash

    def remove(self, block: int) -> None:
        """Removes an indexed block."""
        del self._blocks[self._hashes.pop(block)]

    def clear(self) -> None:
        """Removes all blocks."""
        self._blocks.clear()
        self._hashes.clear()

    def check_integrity(self) -> None:
        """Raises BlockAccountingError unless the two dictionaries are inverse to each other."""
        mirrored = {block_hash: block for block, block_hash in self._hashes.items()}
        if mirrored != self._blocks or len(mirrored) != len(self._hashes):
            raise BlockAccountingError("the prefix index finds a block under another block's hash")
