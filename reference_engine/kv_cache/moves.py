"""What must be copied before a step can be computed. Pure Python; `storage.py` carries it out."""

import msgspec

Move = tuple[int, int, int]
"""Group, block to read, block to write."""


class Moves(msgspec.Struct):
    """Blocks to copy, in this order, because a block that one kind reads may be written by the next.

    Attributes:
        to_host: from the cache to host memory: requests that are swapped out.
        to_device: back.
        copies: within the cache: blocks that a fork is about to write into.
    """

    to_host: list[Move] = []
    to_device: list[Move] = []
    copies: list[Move] = []

    def __bool__(self) -> bool:
        return bool(self.to_host or self.to_device or self.copies)
