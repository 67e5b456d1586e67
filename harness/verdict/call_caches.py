"""Simulated prefix caches with the calls that use them, of the engines whose cache gap is explained."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from bakeoff.workloads.prefixes import NO_BLOCK, LruCache, Pin

Admitted = Sequence[tuple[int, int]]
"""Calls that a cache admits, each with its number of cached blocks."""


class Cache(Protocol):
    """A cache, and the calls that wait for it or use it; calls have numbers, as blocks have."""

    def send(self, number: int, blocks: Sequence[int], shared: int) -> Admitted:
        """Send a call.

        Args:
            number: of the call.
            blocks: full ones of its prompt.
            shared: block in which its answer goes on after the prompt; :data:`NO_BLOCK` for none.
        """
        ...

    def start(self, number: int) -> Admitted:
        """Receive the first token of a call's answer."""
        ...

    def generate(self, number: int, block: int) -> None:
        """Begin a block of an answer."""
        ...

    def end(self, number: int, partial: int) -> Admitted:
        """End a call; ``partial`` is its last block if that is not full, else :data:`NO_BLOCK`."""
        ...


def cache_of(capacity_tokens: int | None, block_tokens: int) -> Cache:
    """An empty cache of this size; None for one without limit."""
    return _UnlimitedCache() if capacity_tokens is None else _LimitedCache(capacity_tokens, block_tokens)


class _LimitedCache:
    """A cache of limited size.

    It admits calls in the order in which they are sent, each once there is room for its prompt beside the calls in
    progress, and at the latest at the first token of its answer.
    """

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self._cache: LruCache[int] = LruCache(capacity_tokens, block_tokens)
        self._waiting: dict[int, tuple[Sequence[int], Sequence[int]]] = {}
        self._in_use: dict[int, list[Pin[int]]] = {}

    def send(self, number: int, blocks: Sequence[int], shared: int) -> Admitted:
        self._waiting[number] = blocks, () if shared == NO_BLOCK else (shared,)
        return self._admit()

    def start(self, number: int) -> Admitted:
        return [(number, self._use(number))] if number in self._waiting else []

    def generate(self, number: int, block: int) -> None:
        self._in_use[number].append(self._cache.pin([block]))

    def end(self, number: int, partial: int) -> Admitted:
        self._waiting.pop(number, None)  # it failed before its first token
        for pin in reversed(self._in_use.pop(number, ())):
            self._cache.release(pin, keep=partial not in pin.names)
        return self._admit()

    def _admit(self) -> Admitted:
        admitted: list[tuple[int, int]] = []
        while self._waiting:
            number, (blocks, shared) = next(iter(self._waiting.items()))
            if self._in_use and not self._cache.has_room([*blocks, *shared]):
                break
            admitted.append((number, self._use(number)))
        return admitted

    def _use(self, number: int) -> int:
        blocks, shared = self._waiting.pop(number)
        pin = self._cache.pin(blocks)
        self._in_use[number] = [pin, self._cache.pin(shared)]
        return pin.hit_tokens // self._cache.block_tokens


class _UnlimitedCache:
    """A cache that keeps everything, so that the cached blocks of a prompt are found by bisection.

    A block of an answer is cached at its end.
    """

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._generated: dict[int, list[int]] = {}

    def send(self, number: int, blocks: Sequence[int], shared: int) -> Admitted:
        known = self._known
        self._generated[number] = [] if shared == NO_BLOCK else [shared]
        cached = bisect_left(blocks, True, key=lambda block: block not in known)
        known.update(blocks[cached:])
        return [(number, cached)]

    def start(self, number: int) -> Admitted:  # noqa: ARG002
        return ()

    def generate(self, number: int, block: int) -> None:
        self._generated[number].append(block)

    def end(self, number: int, partial: int) -> Admitted:  # noqa: ARG002
        self._known.update(self._generated.pop(number))
        return ()
