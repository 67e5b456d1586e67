"""The OpenAI wire format: ``/v1/chat/completions`` and ``/v1/completions``, streamed.

Source: https://platform.openai.com/docs/api-reference. Engines extend it differently and treat unknown fields
differently: vLLM ignores them, Transformers answers 422. So this class sends only fields of the official format, and
each engine's dialect overrides the methods in which it differs, above all :meth:`OpenAiDialect.sampling`.
"""

from typing import Any

import msgspec

from bakeoff.engines.dialects import failures
from bakeoff.engines.dialects.base import (
    EmptyChunk,
    Event,
    EventReader,
    Finish,
    HttpRequest,
    StreamFault,
    TokenDelta,
    TokenKind,
    Usage,
)
from bakeoff.workloads.types import Turn

STREAM_HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _TokenLogProb(msgspec.Struct):
    logprob: float


class _LogProbs(msgspec.Struct):
    token_logprobs: list[float | None] | None = None
    """In completions."""
    content: list[_TokenLogProb] | None = None
    """In chats."""

    def values(self) -> tuple[float, ...] | None:
        """One value per token; None if any is missing."""
        of_chat = [token.logprob for token in self.content or ()]
        logprobs = self.token_logprobs or of_chat
        return tuple(value for value in logprobs if value is not None) if logprobs and None not in logprobs else None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    logprobs: _LogProbs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None
    message: str | None = None


class OpenAiDialect:
    """Chats and completions of any OpenAI-compatible server.

    The requested length is an upper bound, because the official format cannot force it.
    """

    name = "openai"
    exact_length = False
    ends_by_closing = False
    takes_messages = True

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(_Chunk)

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        """A streamed, greedy request; see :class:`~bakeoff.engines.dialects.base.Dialect`."""
        body: dict[str, Any] = {"model": model, "stream": True, **self.sampling(turn), **self.answer_format(turn)}
        if logprobs:
            body |= self.asking_logprobs(turn)
        if turn.messages is not None:
            body["messages"] = [{"role": message.role, "content": message.content} for message in turn.messages]
            return HttpRequest("/v1/chat/completions", STREAM_HEADERS, msgspec.json.encode(body))
        body["prompt"] = self.prompt(turn)
        return HttpRequest("/v1/completions", STREAM_HEADERS, msgspec.json.encode(body))

    def prompt(self, turn: Turn) -> Any:  # noqa: ANN401  (any JSON value)
        """Value of the field ``prompt`` of a completion."""
        return turn.prompt

    def asking_logprobs(self, turn: Turn) -> dict[str, Any]:
        """Fields that request each token's log-probability."""
        return {"logprobs": True} if turn.messages is not None else {"logprobs": 0}

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """Fields that request greedy decoding, bound or force the length, and request usage."""
        return {"max_tokens": turn.output_tokens, "temperature": 0, "stream_options": {"include_usage": True}}

    def answer_format(self, turn: Turn) -> dict[str, Any]:
        """Fields that enforce the turn's JSON schema; empty without a schema."""
        if turn.json_schema is None:
            return {}
        schema = {"name": "answer", "schema": msgspec.Raw(turn.json_schema.encode()), "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}

    def reader(self) -> EventReader:
        """The dialect itself, because events of this format do not depend on earlier ones."""
        return self

    def events(self, data: bytes) -> list[Event]:
        """Decode one payload; see :class:`~bakeoff.engines.dialects.base.EventReader`."""
        if data.startswith(b"[DONE]"):
            return []
        try:
            return _chunk_events(self._decoder.decode(data), data)
        except failures.UNREADABLE as error:
            return [failures.unreadable(error, data)]

    def refusal(self, status: int, body: bytes) -> str:
        """See :func:`bakeoff.engines.dialects.failures.refusal`."""
        return failures.refusal(status, body)


def _chunk_events(chunk: _Chunk, data: bytes) -> list[Event]:
    if chunk.error:
        return [StreamFault(failures.error_text(chunk.error))]
    if chunk.object == "error":
        return [StreamFault(failures.clip((chunk.message or "").encode() or data))]
    events = [event for choice in chunk.choices for event in _choice_events(choice)]
    if chunk.usage is not None:
        details = chunk.usage.prompt_tokens_details
        cached = details.cached_tokens if details else None
        events.append(Usage(chunk.usage.prompt_tokens, chunk.usage.completion_tokens, cached, bool(chunk.choices)))
    return events


def _choice_events(choice: _Choice) -> list[Event]:
    ids = tuple(choice.token_ids) if choice.token_ids else None
    logprobs = choice.logprobs.values() if choice.logprobs else None
    delta = choice.delta or _Delta()
    pieces = [
        (TokenKind.REASONING, delta.reasoning_content or delta.reasoning or ""),
        (TokenKind.TEXT, choice.text or delta.content or ""),
        (TokenKind.TOOL, msgspec.json.encode(delta.tool_calls).decode() if delta.tool_calls else ""),
    ]
    present = [piece for piece in pieces if piece[1]] or ([(TokenKind.TEXT, "")] if ids else [])
    # A chunk with several pieces does not tell which ids belong to which piece; the last piece gets them all.
    events: list[Event] = [TokenDelta(text, kind=kind) for kind, text in present[:-1]]
    events += [TokenDelta(text, ids, logprobs, kind) for kind, text in present[-1:]]
    if not present:
        events.append(EmptyChunk())
    if choice.finish_reason is not None:
        events.append(Finish(choice.finish_reason))
    return events
