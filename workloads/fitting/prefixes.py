"""How far the prompts of a trace begin alike, where it names their blocks."""

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from workloads.outline import Segment

MOST_BLOCKS = 1_000_000
"""Different blocks that are remembered; a trace with more of them is looked at as far as these go."""
_SESSIONS = 2_000
_DEPTH = 1_024
_NEARLY_ALL = 0.9


class Bound:
    """What a prefix cache that forgets nothing would hit, in whole blocks, of the prompt tokens so far.

    A block is known by all blocks before it, so equal names at other places are no hits. Since what comes before a
    known block is known, the order of the prompts makes no difference.
    """

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._hits = self._tokens = 0
        self.is_full = False
        self._last: Sequence[Hashable] = ()
        self._chain: list[int] = []

    @property
    def share(self) -> float | None:
        """Hits over prompt tokens; None before the first prompt."""
        return self._hits / self._tokens if self._tokens else None

    def add(self, blocks: Sequence[Hashable], block_tokens: int, input_tokens: int) -> None:
        """Take in a prompt of equal blocks, whole ones only."""
        if not self.is_full:
            self._count(self._leading(blocks) * block_tokens, input_tokens)

    def add_segments(self, segments: Sequence[Segment], block_tokens: int, input_tokens: int) -> None:
        """Take in a prompt of segments; of what is known of it, whole blocks count."""
        if not self.is_full:
            known = sum(tokens for _, tokens in segments[: self._leading(segments)])
            self._count(known // block_tokens * block_tokens, input_tokens)

    def _count(self, hit_tokens: int, input_tokens: int) -> None:
        self._hits += min(hit_tokens, input_tokens - 1)
        self._tokens += input_tokens
        self.is_full = len(self._known) > MOST_BLOCKS

    def _leading(self, names: Sequence[Hashable]) -> int:
        """How many names are known from the first on; what the last prompt began with costs next to nothing."""
        same = _common(self._last, names)
        chain = self._chain[:same]
        link, known, hits = chain[-1] if chain else 0, True, same
        for name in names[same:]:
            link = hash((link, name))
            known = known and link in self._known
            hits += known
            chain.append(link)
        self._known.update(chain[hits:])
        self._last, self._chain = names, chain
        return hits


class Leading:
    """The blocks with which nearly all sessions begin, from an even sample of 1,000 to 2,000 of them."""

    def __init__(self) -> None:
        self._kept: list[NDArray[np.int64]] = []
        self._every = 1
        self._count = 0

    def add(self, blocks: Sequence[int]) -> None:
        """Take in the whole blocks of a session's first prompt."""
        if self._count % self._every == 0:
            self._kept.append(np.fromiter(map(hash, islice(blocks, _DEPTH)), np.int64))
            if len(self._kept) >= _SESSIONS:
                self._kept, self._every = self._kept[::2], 2 * self._every
        self._count += 1

    def common(self) -> int:
        """How many blocks at least 90 % of the sessions have in common."""
        alike, needed = self._kept, _NEARLY_ALL * len(self._kept)
        depth = 0
        while True:
            names = Counter(int(blocks[depth]) for blocks in alike if len(blocks) > depth)
            name, count = names.most_common(1)[0] if names else (0, 0)
            if count < max(needed, 2):
                return depth
            alike = [blocks for blocks in alike if len(blocks) > depth and blocks[depth] == name]
            depth += 1


def _common(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """How many names two prompts begin with alike, by halving: slices compare quickly."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
