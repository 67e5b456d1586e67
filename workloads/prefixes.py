"""Simulated prefix caches: block hashes, an unlimited cache and an LRU cache.

A block's hash covers all tokens up to its end, so equal hashes mean equal prefixes (as in vLLM's prefix cache and in
Mooncake's trace, FAST'25). The hit rate of the unlimited cache is the bound; output tokens are not counted.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

BLOCK_TOKENS = 16
"""Block size of most engines. Smaller blocks would raise the bound by less than 16 tokens per request."""
_DIGEST_BYTES = 12


def block_hashes(ids: Sequence[int], block_tokens: int = BLOCK_TOKENS) -> Iterator[bytes]:
    """Hashes of a prompt's full blocks, in order."""
    numbers = array("I", ids)
    data, step = memoryview(numbers.tobytes()), block_tokens * numbers.itemsize
    running = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for end in range(step, len(data) + 1, step):
        running.update(data[end - step : end])
        yield running.digest()


class EndlessCache:
    """A prefix cache without limit; its hits are the bound."""

    def __init__(self, block_tokens: int = BLOCK_TOKENS) -> None:
        self.block_tokens = block_tokens
        self.hit_tokens = 0
        self.prompt_tokens = 0
        self._known: set[bytes] = set()

    def add(self, ids: Sequence[int]) -> int:
        """Add a prompt and return how many of its leading tokens hit."""
        hits, leading = 0, True
        for digest in block_hashes(ids, self.block_tokens):
            leading = leading and digest in self._known
            hits += leading
            if not leading:
                self._known.add(digest)
        self.hit_tokens += hits * self.block_tokens
        self.prompt_tokens += len(ids)
        return hits * self.block_tokens

    @property
    def distinct_blocks(self) -> int:
        """Number of cached blocks."""
        return len(self._known)


class LruCache:
    """A prefix cache of ``capacity_tokens`` that evicts the least recently used block, ends of prompts first."""

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self._capacity = capacity_tokens // block_tokens
        self._block_tokens = block_tokens
        self._used: OrderedDict[bytes, None] = OrderedDict()
        self.hit_tokens = 0

    def add(self, digests: Sequence[bytes]) -> None:
        """Add the block hashes of one prompt."""
        used = self._used
        hits = 0
        for digest in digests:
            if digest not in used:
                break
            hits += 1
        self.hit_tokens += hits * self._block_tokens
        for digest in reversed(digests):  # the front is touched last, because later blocks are useless without it
            used[digest] = None
            used.move_to_end(digest)
        while len(used) > self._capacity:
            used.popitem(last=False)
