"""Splits the text of an answer into reasoning, content and calls of functions, by the marks of the model's template."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from bakeoff.reference_engine.serving.openai_api.call_reader import CallReader
from bakeoff.reference_engine.serving.openai_api.reasoning import ReasoningSplitter
from bakeoff.reference_engine.serving.openai_api.tool_formats import CallPart


class Parts(NamedTuple):
    """What a token adds to a message."""

    reasoning: str
    content: str
    calls: Sequence[CallPart] = ()


class AnswerReader(Protocol):
    """Reads one answer, token by token."""

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Tokens of reasoning so far, marks included; None for a model that does not reason."""
        ...

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        ...

    def push(self, text: str, *, is_last: bool) -> Parts:
        """The parts that a token's text completes; the beginning of a possible mark is held back."""
        ...


class TaggedReader:
    """An `AnswerReader` for templates with thinking tags, with a format for calls, or with both.

    Args:
        splitter: of the reasoning; None for a model that does not reason.
        calls: finds calls in what follows the reasoning; None if there can be none.
    """

    def __init__(self, splitter: ReasoningSplitter | None, calls: CallReader | None) -> None:
        self._splitter, self._calls = splitter, calls

    @property
    def num_reasoning_tokens(self) -> int | None:
        return None if self._splitter is None else self._splitter.num_tokens

    @property
    def has_calls(self) -> bool:
        return self._calls is not None and self._calls.has_calls

    def push(self, text: str, *, is_last: bool) -> Parts:
        reasoning, content = ("", text) if self._splitter is None else self._splitter.push(text, is_last=is_last)
        if self._calls is None:
            return Parts(reasoning, content)
        return Parts(reasoning, *self._calls.push(content, is_last=is_last))
