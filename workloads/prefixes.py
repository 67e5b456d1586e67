"""How much of a prompt an engine that caches prefixes could have kept: blocks, their names, and caches of any size.

A block is named by all tokens up to its end, so equal names are equal prefixes (as in vLLM's prefix cache and in
Mooncake's trace, FAST'25). The bound is what a cache without limit would hit; output tokens are not counted.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

BLOCK_TOKENS = 16
"""As most engines have it; a bound for smaller blocks is higher by less than this for each request."""
_DIGEST_BYTES = 12


def block_names(ids: Sequence[int], block_tokens: int = BLOCK_TOKENS) -> Iterator[bytes]:
    """The names of a prompt's full blocks, in order."""
    numbers = array("I", ids)
    data, step = memoryview(numbers.tobytes()), block_tokens * numbers.itemsize
    running = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for end in range(step, len(data) + 1, step):
        running.update(data[end - step : end])
        yield running.digest()


class EndlessCache:
    """A prefix cache that forgets nothing: its hits are the bound."""

    def __init__(self, block_tokens: int = BLOCK_TOKENS) -> None:
        self.block_tokens = block_tokens
        self.hit_tokens = 0
        self.prompt_tokens = 0
        self._known: set[bytes] = set()

    def add(self, ids: Sequence[int]) -> int:
        """Take in a prompt; returns how many of its leading tokens were there already."""
        hits, leading = 0, True
        for name in block_names(ids, self.block_tokens):
            leading = leading and name in self._known
            hits += leading
            if not leading:
                self._known.add(name)
        self.hit_tokens += hits * self.block_tokens
        self.prompt_tokens += len(ids)
        return hits * self.block_tokens

    @property
    def distinct_blocks(self) -> int:
        """Blocks that it holds."""
        return len(self._known)


class LruCache:
    """A prefix cache of ``capacity_tokens`` that gives up what was used longest ago, the ends of prompts first."""

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self._capacity = capacity_tokens // block_tokens
        self._block_tokens = block_tokens
        self._used: OrderedDict[bytes, None] = OrderedDict()
        self.hit_tokens = 0

    def add(self, names: Sequence[bytes]) -> None:
        """Take in the blocks of one prompt."""
        used = self._used
        hits = 0
        for name in names:
            if name not in used:
                break
            hits += 1
        self.hit_tokens += hits * self._block_tokens
        for name in reversed(names):  # a prompt's front is touched last: without it the rest cannot be found
            used[name] = None
            used.move_to_end(name)
        while len(used) > self._capacity:
            used.popitem(last=False)
