"""What full blocks are called, so that equal beginnings of sequences are recognised.

A full block is named by a hash of its parent's name and its own tokens, so that a name stands for everything from the
sequence's first token on: keys and values depend on all of that and on nothing else (vLLM's automatic prefix caching;
SGLang's RadixAttention, arXiv:2312.07104, keeps the same in a tree). Pure Python, no tensors.
"""

import copy
from array import array
from collections.abc import Sequence
from hashlib import blake2b

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


class BlockNames:
    """The names of one sequence's full blocks, each worked out when it is first asked for.

    Args:
        block_size: tokens per block.
        salt: keeps the sequence's blocks apart from those of sequences with another salt.
    """

    __slots__ = ("_block_size", "_names", "_root")

    def __init__(self, block_size: int, salt: str | None = None) -> None:
        self._block_size = block_size
        self._root = root_name(salt)
        self._names: list[BlockName] = []

    def at(self, token_ids: Sequence[int], index: int) -> BlockName:
        """The name of block number `index`, which these tokens of the sequence fill."""
        size = self._block_size
        while len(self._names) <= index:
            parent = self._names[-1] if self._names else self._root
            start = len(self._names) * size
            self._names.append(block_name(parent, token_ids[start : start + size]))
        return self._names[index]

    def copy(self) -> "BlockNames":
        """For a sequence that goes on from here by itself."""
        twin = copy.copy(self)
        twin._names = list(self._names)  # noqa: SLF001 (of this class)
        return twin
