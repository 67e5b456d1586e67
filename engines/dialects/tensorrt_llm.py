"""trtllm-serve's dialect: the OpenAI routes, with every field that it does not know refused.

An exception in a stream breaks the connection without a word, and a proxy may close it in order after that. So an
answer is whole only where ``[DONE]`` follows its finish reason. Written from the server's sources; none was seen.
"""

from typing import Any

import msgspec

from engines.dialects.base import Event, EventReader, Finish, StreamFault
from engines.dialects.openai import OpenAiDialect
from workloads.types import Turn

NO_END = frozenset({"cancelled", "timeout"})
"""Finish reasons of answers that the engine gave up."""


class TensorRtLlmDialect(OpenAiDialect):
    """Exact lengths by ``ignore_eos`` and ``min_tokens``.

    Args:
        token_ids: ask completions for ids instead of text, for exact counts; chats have none.
    """

    name = "tensorrt_llm"
    exact_length = True

    def __init__(self, *, token_ids: bool = False) -> None:
        super().__init__()
        self._token_ids = token_ids

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """Greedy decoding of exactly ``output_tokens`` tokens, said in both ways: either may be what it looks at.

        Under a schema it is at most so many: forbidding the end would leave no token that is allowed.
        """
        forced = {"ignore_eos": True, "min_tokens": turn.output_tokens} if turn.json_schema is None else {}
        as_ids = {"detokenize": False} if self._token_ids and turn.messages is None else {}
        return {**super().sampling(turn), **forced, "top_k": 1, **as_ids}

    def asking_logprobs(self, turn: Turn) -> dict[str, Any]:
        """As the format has it, but that 0 means none."""
        return {"logprobs": True} if turn.messages is not None else {"logprobs": 1}

    def answer_format(self, turn: Turn) -> dict[str, Any]:
        """The type that every release reads as a bare schema; the server refuses it without a backend for grammars."""
        if turn.json_schema is None:
            return {}
        return {"response_format": {"type": "json", "schema": msgspec.Raw(turn.json_schema.encode())}}

    def reader(self) -> EventReader:  # type: ignore[override]  (this one remembers)
        """One for each answer."""
        return _Reader(self)


class _Reader:
    """Holds the finish reason back until ``[DONE]``."""

    def __init__(self, dialect: TensorRtLlmDialect) -> None:
        self._dialect = dialect
        self._finish: Finish | None = None

    def events(self, data: bytes) -> list[Event]:
        """See :class:`~engines.dialects.base.EventReader`."""
        if data.startswith(b"[DONE]"):
            return [self._finish] if self._finish else []
        events = [ended(event) for event in self._dialect.events(data)]
        self._finish = next((event for event in events if isinstance(event, Finish)), self._finish)
        return [event for event in events if not isinstance(event, Finish)]


def ended(event: Event) -> Event:
    """The event; a fault where it is the end of an answer that the engine gave up."""
    if isinstance(event, Finish) and event.reason in NO_END:
        return StreamFault(f"the server gave the request up ({event.reason})")
    return event
