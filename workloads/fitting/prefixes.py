"""Prefixes that a trace's prompts share, from its block hashes."""

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from bakeoff.workloads.outline import Segment

MOST_BLOCKS = 1_000_000
"""Limit on distinct blocks in memory; the rest of the trace is ignored."""
_SESSIONS = 2_000
_DEPTH = 1_024
_NEARLY_ALL = 0.9


class Bound:
    """Hit rate of an unlimited prefix cache over the prompts so far, in whole blocks.

    A block is identified by all blocks up to it, so equal blocks after different prefixes do not hit. All prefixes of a
    known block are known, so the order of the prompts does not matter.
    """

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._hits = self._tokens = 0
        self.is_full = False
        self._last: Sequence[Hashable] = ()
        self._chain: list[int] = []

    @property
    def share(self) -> float | None:
        """Hit tokens over prompt tokens; None before the first prompt."""
        return self._hits / self._tokens if self._tokens else None

    def add(self, blocks: Sequence[Hashable], block_tokens: int, input_tokens: int) -> None:
        """Add a prompt given as complete blocks of equal size."""
        if not self.is_full:
            self._count(self._leading(blocks) * block_tokens, input_tokens)

    def add_segments(self, segments: Sequence[Segment], block_tokens: int, input_tokens: int) -> None:
        """Add a prompt given as segments; the known prefix counts in whole blocks."""
        if not self.is_full:
            known_tokens = sum(tokens for _, tokens in segments[: self._leading(segments)])
            self._count(known_tokens // block_tokens * block_tokens, input_tokens)

    def _count(self, hit_tokens: int, input_tokens: int) -> None:
        self._hits += min(hit_tokens, input_tokens - 1)
        self._tokens += input_tokens
        self.is_full = len(self._known) > MOST_BLOCKS

    def _leading(self, names: Sequence[Hashable]) -> int:
        """Number of leading blocks that are known. A prefix shared with the previous prompt is not looked up again."""
        num_common = _common(self._last, names)
        chain = self._chain[:num_common]
        link, is_known, hits = chain[-1] if chain else 0, True, num_common
        for name in names[num_common:]:
            link = hash((link, name))
            is_known = is_known and link in self._known
            hits += is_known
            chain.append(link)
        self._known.update(chain[hits:])
        self._last, self._chain = names, chain
        return hits


class Leading:
    """The prefix that nearly all sessions share, from an even sample of 1,000 to 2,000 sessions."""

    def __init__(self) -> None:
        self._sampled: list[NDArray[np.int64]] = []
        self._every = 1
        self._count = 0

    def add(self, blocks: Sequence[int]) -> None:
        """Add the complete blocks of a session's first prompt."""
        if self._count % self._every == 0:
            self._sampled.append(np.fromiter(map(hash, islice(blocks, _DEPTH)), np.int64))
            if len(self._sampled) >= _SESSIONS:
                self._sampled, self._every = self._sampled[::2], 2 * self._every
        self._count += 1

    def common(self) -> int:
        """Number of leading blocks that at least 90 % of the sessions share."""
        matching, needed = self._sampled, _NEARLY_ALL * len(self._sampled)
        depth = 0
        while True:
            names = Counter(int(blocks[depth]) for blocks in matching if len(blocks) > depth)
            name, count = names.most_common(1)[0] if names else (0, 0)
            if count < max(needed, 2):
                return depth
            matching = [blocks for blocks in matching if len(blocks) > depth and blocks[depth] == name]
            depth += 1


def _common(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Length of the common prefix, by bisection, because slices compare fast."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
