"""The prefix cache of a virtual engine."""

import msgspec

from bakeoff.engines.dialects import HttpRequest
from bakeoff.harness.virtual.tokenizer import word_tokenizer
from bakeoff.workloads.prefixes import LruCache, Pin, block_hashes


class PrefixCache:
    """Blocks of prompts, each from the time at which its request gets a slot.

    Args:
        block_tokens: tokens per cached block.
        capacity_tokens: size; None for no limit.
    """

    def __init__(self, block_tokens: int, capacity_tokens: int | None = None) -> None:
        self._blocks = LruCache[bytes](capacity_tokens, block_tokens)

    def use(self, prompt: str) -> Pin[bytes]:
        """Cache a prompt and keep its blocks until :meth:`release`; says how many leading tokens were cached."""
        ids = word_tokenizer().encode(prompt)
        return self._blocks.pin(list(block_hashes(ids, self._blocks.block_tokens)))

    def release(self, pin: Pin[bytes]) -> None:
        """Allow to evict the blocks of a prompt."""
        self._blocks.release(pin)

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
