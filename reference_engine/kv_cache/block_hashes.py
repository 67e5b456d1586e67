"""Hashes of full blocks, which identify equal prefixes of sequences.

The hash of a full block covers its parent's hash and its own tokens, and so everything from the sequence's first token
on: keys and values depend on all of that and on nothing else (vLLM's automatic prefix caching; SGLang's RadixAttention,
arXiv:2312.07104, keeps the same in a tree). Pure Python, no tensors.
"""

import copy
from array import array
from collections.abc import Sequence
from hashlib import blake2b

BlockHash = bytes  # 128 bits: collisions are infeasible, so that no tokens need to be compared

_HASH_BYTES = 16
_INTEGER = "q"  # C's type of token ids, of which the bytes are hashed
_TOKEN_BYTES = array(_INTEGER).itemsize


def root_hash(salt: str | None) -> BlockHash:
    """The parent hash of first blocks. Sequences with different salts share no hash; None is one of the salts."""
    return blake2b((salt or "").encode(), digest_size=_HASH_BYTES, person=b"root").digest()


def block_hash(parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    """The hash of a block.

    Args:
        parent: hash of the block before it, or a `root_hash`.
        token_ids: of this block, `block_size` of them or, of a sequence's last block, fewer.
    """
    return _hash(parent, array(_INTEGER, token_ids).tobytes())


def _hash(parent: BlockHash, tokens: bytes) -> BlockHash:
    return blake2b(parent + tokens, digest_size=_HASH_BYTES).digest()


def prompt_hashes(token_ids: Sequence[int], block_size: int, salt: str | None) -> bytes:
    """The hashes of a prompt's full blocks, one after the other.

    A server computes them when a request arrives, so that the engine need not between two steps.
    """
    parent, size = root_hash(salt), block_size * _TOKEN_BYTES
    tokens = array(_INTEGER, token_ids).tobytes()
    hashes: list[BlockHash] = []
    for first in range(0, len(tokens) - size + 1, size):
        parent = _hash(parent, tokens[first : first + size])
        hashes.append(parent)
    return b"".join(hashes)


class BlockHashes:
    """The hashes of one sequence's full blocks, each computed when it is first needed.

    Args:
        block_size: tokens per block.
        salt: sequences with another salt share no blocks with this one.
        known: the first hashes, as `prompt_hashes` returned them.
    """

    __slots__ = ("_block_size", "_hashes", "_root")

    def __init__(self, block_size: int, salt: str | None = None, known: bytes = b"") -> None:
        self._block_size = block_size
        self._root = root_hash(salt)
        self._hashes: list[BlockHash] = [known[i : i + _HASH_BYTES] for i in range(0, len(known), _HASH_BYTES)]

    def at(self, token_ids: Sequence[int], index: int) -> BlockHash:
        """The hash of block number `index` of the sequence."""
        size = self._block_size
        while len(self._hashes) <= index:
            parent = self._hashes[-1] if self._hashes else self._root
            start = len(self._hashes) * size
            self._hashes.append(block_hash(parent, token_ids[start : start + size]))
        return self._hashes[index]

    def first(self, token_ids: Sequence[int], count: int) -> Sequence[BlockHash]:
        """The hashes of the first `count` blocks of the sequence."""
        if count:
            self.at(token_ids, count - 1)
        return self._hashes[:count]

    def before(self, token_ids: Sequence[int], index: int) -> BlockHash:
        """The hash that block number `index` has as its parent."""
        return self.at(token_ids, index - 1) if index else self._root

    def copy(self) -> "BlockHashes":
        """A copy for a sequence that continues on its own from here."""
        duplicate = copy.copy(self)
        duplicate._hashes = list(self._hashes)  # noqa: SLF001 (of this class)
        return duplicate
