"""The simulated prefix cache of a truth server, and the rule by which prompts become tokens and blocks.

A token is a word with the white space before it; white space is any byte up to 0x20. A prompt of token ids has a token
per id. A chat is rendered first: each message as its role in a line of its own, then its reasoning, its content and its
tool calls without the white space around them; at the end comes the role of the answer. So the next prompt of the same
chat begins with this prompt and its answer. Pictures and the list of tools have no tokens.
"""

import contextlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from bakeoff.harness.truth.answered import CHAT
from bakeoff.harness.truth.payloads import VOCABULARY, AnswerTexts
from bakeoff.harness.truth.requests import Body, ChatMessage, MalformedRequest
from bakeoff.workloads.prefixes import LruCache, Pin

Form = Literal["chat", "text", "ids"]
"""What a prompt is given as."""
_LAST_SPACE = 0x20
_LAST_SPACE_BYTE = bytes([_LAST_SPACE])
_ID_BYTES = 8
_RECENT = 64
"""Prompts to compare a new one with: one of each conversation."""


class Prompt:
    """The blocks of one prompt, and the tokens after the last full one.

    A block's name is Python's hash of the name before it and its content: 100,000 tokens take a millisecond, a third of
    what a hash of :mod:`hashlib` takes, and names never leave the process.

    Args:
        content: a text, or token ids of 8 bytes each.
        form: what the content is.
        block_tokens: tokens of a block.
        beginning: an earlier prompt with which the content begins, whose blocks need no hashing.

    Attributes:
        tokens: number of tokens.
        blocks: names of its full blocks.
        head: content of those blocks.
    """

    def __init__(self, content: bytes, form: Form, block_tokens: int, beginning: "Prompt | None" = None) -> None:
        self._form: Form = form
        self._block_tokens = block_tokens
        known, start = (beginning.blocks, len(beginning.head)) if beginning else ([], 0)
        cuts, tokens = _cuts(content[start:], form, block_tokens)
        self.tokens: int = len(known) * block_tokens + tokens
        self.blocks: list[int] = known + _names(content[start:], cuts, known[-1] if known else 0)
        self.head: bytes = content[: start + cuts[-1]]
        self._rest = content[start + cuts[-1] :]

    def begins(self, content: bytes, form: Form) -> bool:
        """Whether ``content`` begins with the blocks of this prompt."""
        end = len(self.head)
        whole_word = form == "ids" or content[end : end + 1] <= _LAST_SPACE_BYTE  # the last word does not go on
        return form == self._form and whole_word and content.startswith(self.head)

    def answer_blocks(self, texts: AnswerTexts, tokens: int) -> list[int]:
        """Names of the blocks that are full once the answer follows the prompt.

        Args:
            texts: of the answer.
            tokens: of the answer.
        """
        match self._form:
            case "ids":
                answer = _ids_bytes(token % VOCABULARY for token in range(tokens))
            case "chat":
                answer = "".join(_lines(texts)).encode()
            case "text":
                answer = texts.content.encode()
        content = self._rest + answer
        cuts, _ = _cuts(content, self._form, self._block_tokens)
        return _names(content, cuts, self.blocks[-1] if self.blocks else 0)


class PrefixCache:
    """Cached blocks of prompts and answers.

    Blocks of a prompt enter the cache with its slot, those of an answer at its end. What does not fit beside the blocks
    of other answers in progress is computed and not kept.

    Args:
        capacity_tokens: its size, at least a block.
        block_tokens: tokens of a block.

    Attributes:
        block_tokens: tokens of a block.
        num_blocks: most blocks that it holds.
        queried_tokens: prompt tokens looked up so far.
        hit_tokens: those of them that were found.
    """

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.num_blocks: int = capacity_tokens // block_tokens
        self.queried_tokens: int = 0
        self.hit_tokens: int = 0
        self._blocks = LruCache[int](capacity_tokens, block_tokens)
        self._recent: deque[Prompt] = deque(maxlen=_RECENT)

    @property
    def usage(self) -> float:
        """Fraction of the blocks that answers in progress use."""
        return self._blocks.pinned_blocks / self.num_blocks

    def prompt(self, path: str, body: Body) -> Prompt:
        """The prompt of a request.

        Raises:
            MalformedRequest: a token id does not fit into 64 bits.
        """
        content, form = _rendered(body.messages or ()) if path == CHAT else _of_completion(body.prompt or "")
        earlier = [prompt for prompt in self._recent if prompt.begins(content, form)]
        longest = max(earlier, key=lambda prompt: len(prompt.head), default=None)
        prompt = Prompt(content, form, self.block_tokens, longest)
        if longest is not None:
            self._recent.remove(longest)
        self._recent.append(prompt)
        return prompt

    def begin(self, prompt: Prompt) -> tuple[Pin[int], int]:
        """Use the blocks of a prompt; returns them, and how many of its tokens need not be computed.

        At least the last token is computed, in whole blocks, because the first token of the answer follows from it.
        """
        pin = self._blocks.pin(prompt.blocks)
        longest = max(0, prompt.tokens - 1) // self.block_tokens * self.block_tokens
        hit_tokens = min(pin.hit_tokens, longest)
        self.queried_tokens += prompt.tokens
        self.hit_tokens += hit_tokens
        return pin, hit_tokens

    def end(self, prompt: Prompt, pin: Pin[int], answer_blocks: Sequence[int]) -> None:
        """Stop using blocks of a prompt, and keep those of its answer."""
        if len(pin.names) == len(prompt.blocks):
            self._blocks.insert(answer_blocks)  # first, so that the prompt is used after it and evicted later
        self._blocks.release(pin)

    def clear(self) -> bool:
        """Empty it; returns False and does nothing while an answer uses blocks, as vLLM does."""
        if self._blocks.pinned_blocks:
            return False
        self._blocks.clear()
        return True


def _cuts(content: bytes, form: Form, block_tokens: int) -> tuple[list[int], int]:
    """Where blocks begin and end within ``content``, from 0, and its number of tokens."""
    if form == "ids":
        return list(range(0, len(content) + 1, block_tokens * _ID_BYTES)), len(content) // _ID_BYTES
    is_space = np.frombuffer(content + b" ", np.uint8) <= _LAST_SPACE
    word_ends = np.flatnonzero(is_space[1:] > is_space[:-1]) + 1
    return [0, *word_ends[block_tokens - 1 :: block_tokens].tolist()], len(word_ends)


def _names(content: bytes, cuts: list[int], name: int) -> list[int]:
    """Names of the blocks between the cuts; ``name`` is that of the block before."""
    names: list[int] = []
    start = 0
    for end in cuts[1:]:
        name = hash((name, content[start:end]))
        names.append(name)
        start = end
    return names


def _of_completion(prompt: str | list[int | str | list[int]]) -> tuple[bytes, Form]:
    """A prompt of completions; several ones are one after the other."""
    pieces = [prompt] if isinstance(prompt, str) else prompt
    with contextlib.suppress(TypeError):  # else it is not one list of ids
        return _ids_bytes(pieces), "ids"
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if len(texts) == len(pieces):
        return "\n".join(texts).encode(), "text"
    ids: list[int] = []
    for piece in pieces:
        ids += [piece] if isinstance(piece, int) else map(hash, piece.split() if isinstance(piece, str) else piece)
    return _ids_bytes(ids), "ids"


def _ids_bytes(ids: Iterable[Any]) -> bytes:
    try:
        return array("q", ids).tobytes()
    except OverflowError as error:
        raise MalformedRequest("a token id must fit into 64 bits") from error


def _rendered(messages: Iterable[ChatMessage]) -> tuple[bytes, Form]:
    parts: list[str] = []
    for message in messages:
        parts.append(_opening(message.role))
        parts += _lines(_texts(message))
    return "".join([*parts, _opening("assistant")]).encode(), "chat"


def _opening(role: object) -> str:
    return f"\n<|{role}|>"


def _lines(texts: Iterable[str]) -> list[str]:
    return [f"\n{stripped}" for text in texts if (stripped := text.strip())]


def _texts(message: ChatMessage) -> Iterator[str]:
    yield str(message.reasoning_content or message.reasoning or "")
    yield message.text
    for call in message.tool_calls if isinstance(message.tool_calls, list) else ():
        function: Any = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield str(function.get("name") or "")
            yield str(function.get("arguments") or "")
