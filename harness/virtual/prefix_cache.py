"""The prefix cache of a virtual engine."""

import msgspec

from engines.dialects import HttpRequest
from harness.virtual.tokenizer import word_tokenizer
from workloads import EndlessCache


class PrefixCache:
    """Forgets nothing until it is emptied; hits are told, and cost as much time as misses.

    Args:
        block_tokens: prompts are kept in blocks of so many tokens.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._kept = EndlessCache(block_tokens)

    def add(self, prompt: str) -> int:
        """Take in a prompt; returns how many of its leading tokens were there already."""
        return self._kept.add(word_tokenizer().encode(prompt))

    def empty(self) -> None:
        """Forget everything."""
        self._kept = EndlessCache(self._block_tokens)


class _Message(msgspec.Struct):
    content: str


class _Body(msgspec.Struct):
    prompt: str = ""
    messages: list[_Message] = []


_decoder = msgspec.json.Decoder(_Body)


def prompt_of(request: HttpRequest) -> str:
    """The text of a request's prompt, a chat's messages one after the other."""
    body = _decoder.decode(request.body)
    return " ".join([body.prompt, *(message.content for message in body.messages)])
