"""The prefix cache of a virtual engine."""

import itertools
from typing import NamedTuple

import msgspec

from bakeoff.engines.dialects import HttpRequest
from bakeoff.harness.virtual.tokenizer import word_tokenizer
from bakeoff.workloads.prefixes import LruCache, Pin, block_hashes


class Room(NamedTuple):
    """Blocks that a request needs.

    Attributes:
        full: names of the blocks that its prompt and its answer fill.
        rest: that of the last one, if it is not full.
    """

    full: list[bytes]
    rest: list[bytes]


class Use(NamedTuple):
    """Blocks in use, to give to :meth:`PrefixCache.release`.

    Attributes:
        full: those that are full in the end.
        rest: the last one, if it is not.
    """

    full: Pin[bytes]
    rest: Pin[bytes]


class PrefixCache:
    """Blocks of prompts and answers, each from the time at which its request gets a slot.

    Nothing finds an answer, but it takes its whole room from that time.

    Args:
        block_tokens: tokens per cached block.
        capacity_tokens: size; None for no limit.
    """

    def __init__(self, block_tokens: int, capacity_tokens: int | None = None) -> None:
        self._blocks = LruCache[bytes](capacity_tokens, block_tokens)
        self._answers = itertools.count()

    def room(self, prompt: str, answer_tokens: int) -> Room:
        """What a prompt with an answer of so many tokens needs."""
        size = self._blocks.block_tokens
        ids = word_tokenizer().encode(prompt)
        blocks = list(block_hashes(ids, size))
        full, rest = divmod(len(ids) + answer_tokens, size)
        blocks += self._new(full - len(blocks))
        return Room(blocks, self._new(1 if rest else 0))

    def _new(self, count: int) -> list[bytes]:
        return [b"answer %d" % number for number in itertools.islice(self._answers, count)]

    def has(self, room: Room) -> bool:
        """Whether a request has room beside those that use blocks; alone, it always has."""
        return not self._blocks.pinned_blocks or self._blocks.has_room(room.full + room.rest)

    def use(self, room: Room) -> Use:
        """Use blocks until :meth:`release`; says how many leading tokens were cached."""
        return Use(self._blocks.pin(room.full), self._blocks.pin(room.rest))

    def release(self, use: Use) -> None:
        """Allow to evict the full blocks of a request, and free the other one."""
        self._blocks.release(use.rest, keep=False)
        self._blocks.release(use.full)

    def empty(self) -> None:
        """Drop all blocks that are not in use."""
        self._blocks.clear()


class _Message(msgspec.Struct):
    content: str | None = None
    """None in an answer that only calls tools."""


class _Body(msgspec.Struct):
    prompt: str = ""
    messages: list[_Message] = []


_decoder = msgspec.json.Decoder(_Body)


def prompt_of(request: HttpRequest) -> str:
    """The text of a request's prompt; for a chat, its messages joined."""
    body = _decoder.decode(request.body)
    return " ".join([body.prompt, *(message.content or "" for message in body.messages)])
