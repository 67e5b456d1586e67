"""How many blocks would be free after releases and admissions that are only planned.

A block becomes free when its last holder releases it, unless an admitted request reserved it. Pure Python; nothing is
changed.
"""

from collections import Counter
from typing import Self

from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.kv_cache.block_table import RELEASED
from bakeoff.reference_engine.kv_cache.cache import Blocks, Hit, KvCache


class FreeBlockProjection:
    """Planned changes of reference counts.

    Args:
        cache: the present state.
    """

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._changes: list[Counter[int]] = [Counter() for _ in cache.groups]

    def copy(self) -> Self:
        """An independent copy, for changes that may be dropped."""
        duplicate = type(self)(self._cache)
        duplicate._changes = [changes.copy() for changes in self._changes]  # noqa: SLF001 (of this class)
        return duplicate

    def reserve(self, hit: Hit) -> None:
        """Plans that a request starts with cached blocks."""
        for changes, blocks in zip(self._changes, hit.blocks, strict=True):
            changes.update(block for block in blocks if block != RELEASED)

    def release(self, request: Request) -> Blocks:
        """Plans that a request releases its blocks.

        Returns:
            Blocks that become free, for each group.
        """
        freed = [0] * len(self._changes)
        for number, table in enumerate(self._cache.blocks_of(request).tables):
            pool, changes = self._cache.groups[number].pool, self._changes[number]
            for block in table.held():
                changes[block] -= 1
                freed[number] += pool.references(block) + changes[block] == 0
        return tuple(freed)
