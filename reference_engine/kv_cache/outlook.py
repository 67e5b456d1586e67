"""Which blocks would come free while a step is planned, where several requests go and several come.

A block is free when the last who holds it goes, unless a newcomer was promised it. Pure Python; nothing is changed.
"""

from collections import Counter
from typing import Self

from reference_engine.engine.request import Request
from reference_engine.kv_cache.block_table import RELEASED
from reference_engine.kv_cache.cache import Blocks, Hit, KvCache


class Outlook:
    """References as they would be.

    Args:
        cache: as it is.
    """

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._changes: list[Counter[int]] = [Counter() for _ in cache.groups]

    def copy(self) -> Self:
        """To look further without deciding."""
        twin = type(self)(self._cache)
        twin._changes = [changes.copy() for changes in self._changes]  # noqa: SLF001 (of this class)
        return twin

    def promise(self, hit: Hit) -> None:
        """Lets a newcomer begin with what was found."""
        for changes, blocks in zip(self._changes, hit.blocks, strict=True):
            changes.update(block for block in blocks if block != RELEASED)

    def give_up(self, request: Request) -> Blocks:
        """Lets a request go.

        Returns:
            How many blocks come free by that, for each group.
        """
        freed = [0] * len(self._changes)
        for number, table in enumerate(self._cache.blocks_of(request).tables):
            pool, changes = self._cache.groups[number].pool, self._changes[number]
            for block in table.held():
                changes[block] -= 1
                freed[number] += pool.references(block) + changes[block] == 0
        return tuple(freed)
