"""Simulated prefix caches: block hashes, an unlimited cache and an LRU cache.

A block's hash covers all tokens up to its end, so equal hashes mean equal prefixes (as in vLLM's prefix cache and in
Mooncake's trace, FAST'25). The hit rate of the unlimited cache is the bound; output tokens are not counted.
"""

import hashlib
import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

Name = TypeVar("Name", bound=Hashable)

BLOCK_TOKENS = 16
"""Block size of most engines. Smaller blocks would raise the bound by less than 16 tokens per request."""
_DIGEST_BYTES = 12
_MOST_ENDS = 4096
"""Different ends known behind one block: a new one hardly shares more with further ones."""


def block_hashes(ids: Sequence[int], block_tokens: int = BLOCK_TOKENS) -> Iterator[bytes]:
    """Hashes of a prompt's full blocks, in order."""
    numbers = array("I", ids)
    data, step = memoryview(numbers.tobytes()), block_tokens * numbers.itemsize
    running = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for end in range(step, len(data) + 1, step):
        running.update(data[end - step : end])
        yield running.digest()


NO_BLOCK = -1
"""Number for the last block of a prompt that is shorter than one."""


class EndlessCache:
    """A prefix cache without limit; its hits are the bound.

    Blocks are numbered in the order in which they were first seen, so that the number of a prompt's last full block
    stands for all of them.

    Attributes:
        last_block: number of the last full block of the prompt that was added last.
        last_shared: leading tokens that earlier prompts began with. To the token among prompts that were added with
            `to_the_token` and part behind the same block, but for the first that parts there; else whole blocks.
    """

    def __init__(self, block_tokens: int = BLOCK_TOKENS) -> None:
        self.block_tokens = block_tokens
        self.hit_tokens: int = 0
        self.prompt_tokens: int = 0
        self.last_block: int = NO_BLOCK
        self.last_shared: int = 0
        self._known: dict[bytes, int] = {}
        self._ends: dict[int, list[bytes]] = {}
        """Up to a block of tokens of the prompts that parted from earlier ones behind a block, sorted."""
        self._firsts = array("q")
        self._parents = array("q")
        """First block of each row of blocks that were new together, and the block before it."""

    def add(self, ids: Sequence[int], *, to_the_token: bool = False) -> int:
        """Add a prompt and return how many of its leading tokens hit, in whole blocks.

        Args:
            ids: of the prompt.
            to_the_token: whether to keep its first tokens behind these, for `last_shared`: some hundred bytes.
        """
        known = self._known
        hits, block, parting = 0, NO_BLOCK, NO_BLOCK
        digests = block_hashes(ids, self.block_tokens)
        for digest in digests:
            if (number := known.get(digest)) is None:
                self._firsts.append(len(known))
                self._parents.append(block)
                for new in itertools.chain((digest,), digests):
                    known[new] = block = len(known)
                break
            hits, block, parting = hits + 1, number, number
        hit_tokens = hits * self.block_tokens
        self.last_shared = hit_tokens
        if to_the_token:
            self.last_shared += self._part(parting, ids[hit_tokens : hit_tokens + self.block_tokens])
        self.last_block = block
        self.hit_tokens += hit_tokens
        self.prompt_tokens += len(ids)
        return hit_tokens

    def _part(self, block: int, ids: Sequence[int]) -> int:
        """Add what follows the last block that a prompt shares; returns how many of its tokens followed it before."""
        end, ends = array("I", ids).tobytes(), self._ends.setdefault(block, [])
        place = bisect_left(ends, end)
        # Of all ends, those beside its place among them have most in common with it.
        beside = ends[max(0, place - 1) : place + 1]
        if end not in beside and len(ends) < _MOST_ENDS:
            ends.insert(place, end)
        return max((common_length(end, other) for other in beside), default=0) // array("I").itemsize

    def blocks_to(self, block: int) -> list[int]:
        """Numbers of all blocks of the prompt that ends with this one, in order."""
        rows: list[range] = []
        while block != NO_BLOCK:
            row = bisect_right(self._firsts, block) - 1
            rows.append(range(self._firsts[row], block + 1))
            block = self._parents[row]
        return list(itertools.chain.from_iterable(reversed(rows)))

    @property
    def distinct_blocks(self) -> int:
        """Number of cached blocks."""
        return len(self._known)


def common_length(a: Sequence[int], b: Sequence[int], at_a: int = 0, at_b: int = 0) -> int:
    """Number of equal elements from two positions on, by bisection: slices compare much faster than single elements."""
    low, high = 0, min(len(a) - at_a, len(b) - at_b)
    while low < high:
        middle = (low + high + 1) // 2
        if a[at_a + low : at_a + middle] == b[at_b + low : at_b + middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Pin(NamedTuple, Generic[Name]):
    """Blocks in use, to give to :meth:`LruCache.release`.

    Attributes:
        names: the leading blocks of a prompt, all of them unless blocks in use left too little room.
        hit_tokens: tokens of those of them that were cached already.
    """

    names: Sequence[Name]
    hit_tokens: int


class LruCache(Generic[Name]):
    """A prefix cache of limited size, in blocks.

    A prompt is given as the names of its full blocks, whatever they come from: :func:`block_hashes` of token ids, or
    the block ids of a trace. A name stands for its block and everything before it, so no prompt has a name twice. What
    hits is the leading blocks that are cached; engines compute at least the last token of a prompt, which is the
    caller's to subtract.

    The least recently used block is evicted first, and the end of a prompt before its front, because no block is of use
    without those before it. A block in use, from :meth:`pin` to :meth:`release`, is never evicted, and its release
    counts as its last use.

    Args:
        capacity_tokens: size, of which only whole blocks count; None for no limit.
        block_tokens: tokens of a block.

    Attributes:
        block_tokens: tokens of a block.
        capacity_blocks: most blocks that it holds; None for no limit.
        hit_tokens: sum of what :meth:`add` and :meth:`pin` found.
    """

    def __init__(self, capacity_tokens: int | None, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.capacity_blocks: int | None = None if capacity_tokens is None else capacity_tokens // block_tokens
        self.hit_tokens: int = 0
        self._pins: dict[Name, int] = {}
        self._unused: OrderedDict[Name, None] = OrderedDict()  # the next to be evicted first

    def __len__(self) -> int:
        return len(self._pins) + len(self._unused)

    @property
    def pinned_blocks(self) -> int:
        """Number of blocks in use."""
        return len(self._pins)

    def has_room(self, names: Sequence[Name]) -> bool:
        """Whether a prompt has room beside the blocks in use."""
        pins = self._pins
        return (
            self.capacity_blocks is None or len(pins) + sum(name not in pins for name in names) <= self.capacity_blocks
        )

    def look_up(self, names: Sequence[Name]) -> int:
        """Tokens of the leading blocks that are cached; changes nothing."""
        pins, unused = self._pins, self._unused
        cached = itertools.takewhile(lambda name: name in unused or name in pins, names)
        return sum(1 for _ in cached) * self.block_tokens

    def insert(self, names: Sequence[Name]) -> None:
        """Make blocks the most recently used ones, the first of them last, and evict what is too much."""
        pins, unused = self._pins, self._unused
        for name in reversed(names):
            if name not in pins:
                unused[name] = None
                unused.move_to_end(name)
        self._evict()

    def add(self, names: Sequence[Name]) -> int:
        """Look a prompt up, then insert it; returns the tokens that hit."""
        hit_tokens = self.look_up(names)
        self.hit_tokens += hit_tokens
        self.insert(names)
        return hit_tokens

    def pin(self, names: Sequence[Name]) -> Pin[Name]:
        """Look a prompt up and use its blocks, new ones as far as blocks in use leave room."""
        pins, unused = self._pins, self._unused
        cached = 0
        for name in names:
            if name in unused:
                del unused[name]
                pins[name] = 1
            elif name in pins:
                pins[name] += 1
            else:
                break
            cached += 1
        room = len(names) if self.capacity_blocks is None else self.capacity_blocks - len(pins)
        new = names[cached : cached + room]
        if pins.keys().isdisjoint(new) and unused.keys().isdisjoint(new):
            pins.update(dict.fromkeys(new, 1))  # a loop would take three times as long
        else:
            for name in new:
                unused.pop(name, None)
                pins[name] = pins.get(name, 0) + 1
        self._evict()
        hit_tokens = cached * self.block_tokens
        self.hit_tokens += hit_tokens
        return Pin(names[: cached + room], hit_tokens)

    def release(self, pin: Pin[Name], *, keep: bool = True) -> None:
        """End one use of blocks; those that nothing else uses become the most recently used, the first of them last.

        Args:
            pin: the use.
            keep: whether they stay cached.
        """
        pins, unused = self._pins, self._unused
        for name in reversed(pin.names):
            if pins[name] > 1:
                pins[name] -= 1
            else:
                del pins[name]
                if keep:
                    unused[name] = None

    def clear(self) -> None:
        """Evict every block that is not in use."""
        self._unused.clear()

    def _evict(self) -> None:
        if self.capacity_blocks is not None:
            for _ in range(len(self) - self.capacity_blocks):
                self._unused.popitem(last=False)
