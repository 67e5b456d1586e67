"""The prefix cache of a virtual engine."""

import msgspec

from bakeoff.engines.dialects import HttpRequest
from bakeoff.harness.virtual.tokenizer import word_tokenizer
from bakeoff.workloads import EndlessCache


class PrefixCache:
    """Keeps everything until it is emptied. Hits are reported, but take as much time as misses.

    Args:
        block_tokens: tokens per cached block.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._blocks = EndlessCache(block_tokens)

    def add(self, prompt: str) -> int:
        """Cache a prompt; returns the number of its leading tokens that were cached already."""
        return self._blocks.add(word_tokenizer().encode(prompt))

    def empty(self) -> None:
        """Drop all blocks."""
        self._blocks = EndlessCache(self._block_tokens)


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
