"""Blocks to copy before a step can be computed. Pure Python; `storage.py` copies them."""

import msgspec

BlockCopy = tuple[int, int, int]
"""Group, block to read, block to write."""


class BlockCopies(msgspec.Struct):
    """Copies of one step, in this order: a block that one kind reads may be written by the next.

    Attributes:
        to_host: from the cache to host memory, for requests that are swapped out.
        to_device: from host memory back to the cache.
        within: within the cache, of shared blocks that a fork is about to write into.
    """

    to_host: list[BlockCopy] = []
    to_device: list[BlockCopy] = []
    within: list[BlockCopy] = []

    def __bool__(self) -> bool:
        return bool(self.to_host or self.to_device or self.within)
