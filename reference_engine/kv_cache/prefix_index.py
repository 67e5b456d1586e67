"""Which blocks hold which beginnings of sequences, so that a prompt's known beginning is not computed again.

Finding the longest known beginning is one dictionary lookup per block (`block_names.py`). Pure Python, no tensors.
"""

from reference_engine.errors import BlockAccountingError
from reference_engine.kv_cache.block_names import BlockName


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

    def name_of(self, block: int) -> BlockName | None:
        """The name under which a block is found; None if it is not."""
        return self._names.get(block)

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
