"""Which blocks hold which beginnings of sequences, so that a prompt's known beginning is not computed again.

A full block is named by a hash of its parent's name and its own tokens, so that a name stands for everything from the
sequence's first token on: keys and values depend on all of that and on nothing else. Finding the longest known
beginning is then one dictionary lookup per block (vLLM's automatic prefix caching; SGLang's RadixAttention,
arXiv:2312.07104, keeps the same in a tree). Pure Python, no tensors.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from reference_engine.errors import BlockAccountingError

BlockName = bytes  # 128 bits: nobody finds two beginnings of one name, so that no tokens need to be compared

_NAME_BYTES = 16


def root_name(salt: str | None) -> BlockName:
    """The parent of first blocks. Sequences with different salts have no name in common; None is one of the salts."""
    return blake2b((salt or "").encode(), digest_size=_NAME_BYTES, person=b"root").digest()


def block_name(parent: BlockName, token_ids: Sequence[int]) -> BlockName:
    """The name of a full block.

    Args:
        parent: the name of the block before it, or a `root_name`.
        token_ids: of this block; all blocks of one pool have the same number of them.
    """
    return blake2b(parent + array("q", token_ids).tobytes(), digest_size=_NAME_BYTES).digest()


class PrefixIndex:
    """Names of blocks and the blocks that bear them, one to one. Whoever owns it keeps their contents unchanged."""

    def __init__(self) -> None:
        self._blocks: dict[BlockName, int] = {}
        self._names: dict[int, BlockName] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._names

    def find(self, name: BlockName) -> int | None:
        """The block of that name, or None."""
        return self._blocks.get(name)

    def enter(self, name: BlockName, block: int) -> None:
        """Makes a block findable. Of two blocks with equal contents the first one stays the one that is found.

        Raises:
            BlockAccountingError: the block bears another name.
        """
        if self._names.get(block, name) != name:
            raise BlockAccountingError(f"block {block} gets a second name: it was written after it was full")
        if name not in self._blocks:
            self._blocks[name] = block
            self._names[block] = name

    def remove(self, block: int) -> None:
        """Forgets one block that was entered."""
        del self._blocks[self._names.pop(block)]

    def clear(self) -> None:
        """Forgets all blocks."""
        self._blocks.clear()
        self._names.clear()

    def check_integrity(self) -> None:
        """Raises BlockAccountingError unless names and blocks mirror each other."""
        mirrored = {name: block for block, name in self._names.items()}
        if mirrored != self._blocks or len(mirrored) != len(self._names):
            raise BlockAccountingError("the prefix index finds a block that bears another name")
