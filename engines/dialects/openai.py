"""The OpenAI wire format as the engines speak it, and the seams where they differ.

One common body does not work: vLLM ignores unknown fields, Transformers answers 422. So this class sends only what
the official service knows, and each engine's dialect overrides :meth:`OpenAiDialect.sampling`.
"""

from typing import Any

import msgspec

from engines.dialects.base import Event, Finish, HttpRequest, StreamFault, TokenDelta, TokenKind, Usage
from workloads.types import Turn

_MAX_ERROR_CHARS = 500


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
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
    """Chat and completions against any OpenAI-compatible server.

    The wanted length is an upper bound here: the official format has no way to force it.
    """

    name = "openai"

    def __init__(self, api_key: str | None = None) -> None:
        self._headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._decoder = msgspec.json.Decoder(_Chunk)

    def request(self, turn: Turn, model: str) -> HttpRequest:
        """A streamed, greedy request; see :class:`~engines.dialects.base.Dialect`."""
        body: dict[str, Any] = {"model": model, "stream": True, **self.sampling(turn)}
        if turn.messages is not None:
            body["messages"] = [{"role": message.role, "content": message.content} for message in turn.messages]
            return HttpRequest("/v1/chat/completions", self._headers, msgspec.json.encode(body))
        body["prompt"] = turn.prompt
        return HttpRequest("/v1/completions", self._headers, msgspec.json.encode(body))

    def sampling(self, turn: Turn) -> dict[str, Any]:
        """Fields that ask for greedy decoding and bound the length."""
        return {"max_tokens": turn.output_tokens, "temperature": 0, "stream_options": {"include_usage": True}}

    def events(self, data: bytes) -> list[Event]:
        """Decode one payload; see :class:`~engines.dialects.base.Dialect`."""
        if data.startswith(b"[DONE]"):
            return []
        try:
            chunk = self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            return [StreamFault(f"not a chunk of this format ({error}): {_clip(data)}")]
        if chunk.error:
            return [StreamFault(_error_text(chunk.error))]
        if chunk.object == "error":
            return [StreamFault(chunk.message or _clip(data))]
        events = [event for choice in chunk.choices for event in _choice_events(choice)]
        if chunk.usage is not None:
            details = chunk.usage.prompt_tokens_details
            cached = details.cached_tokens if details else None
            events.append(Usage(chunk.usage.prompt_tokens, chunk.usage.completion_tokens, cached))
        return events

    def refusal(self, status: int, body: bytes) -> str:
        """``HTTP 400: message``, from whichever error shape the engine uses."""
        try:
            answer = msgspec.json.decode(body)
        except msgspec.MsgspecError:
            return f"HTTP {status}: {_clip(body)}"
        error: Any = answer
        if isinstance(answer, dict):
            error = answer.get("error") or answer.get("detail") or answer.get("message") or answer
        return f"HTTP {status}: {_error_text(error)}"


def _choice_events(choice: _Choice) -> list[Event]:
    events: list[Event] = []
    ids = tuple(choice.token_ids) if choice.token_ids else None
    delta = choice.delta or _Delta()
    text = choice.text or delta.content or ""
    thought = delta.reasoning_content or delta.reasoning or ""
    if thought:
        events.append(TokenDelta(thought, None if text else ids, TokenKind.REASONING))
    if delta.tool_calls:
        events.append(TokenDelta(msgspec.json.encode(delta.tool_calls).decode(), ids, TokenKind.TOOL))
    elif text or (ids and not thought):
        events.append(TokenDelta(text, ids))
    if choice.finish_reason is not None:
        events.append(Finish(choice.finish_reason))
    return events


def _error_text(error: Any) -> str:  # noqa: ANN401  (engines send strings, lists and objects)
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return _clip(error["message"].encode())
    return _clip(error.encode() if isinstance(error, str) else msgspec.json.encode(error))


def _clip(data: bytes) -> str:
    """One line of at most 500 characters."""
    text = " ".join(data.decode("utf-8", "replace").split())
    return text if len(text) <= _MAX_ERROR_CHARS else f"{text[:_MAX_ERROR_CHARS]}…"
