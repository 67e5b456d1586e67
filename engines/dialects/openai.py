"""The OpenAI wire format: ``/v1/chat/completions`` and ``/v1/completions``, streamed.

Source: https://platform.openai.com/docs/api-reference. Engines extend it differently and treat unknown fields
differently: vLLM ignores them, Transformers answers 422. So this class sends only fields of the official format, and
each engine's dialect overrides the methods in which it differs, above all :meth:`OpenAiDialect.sampling`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

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
)
from bakeoff.engines.dialects.fields import EXTENDED, EXTENDED_CHAT, OFFICIAL, OFFICIAL_CHAT, Carriers
from bakeoff.engines.dialects.messages import chat_messages
from bakeoff.engines.dialects.plain_chunks import plain_events
from bakeoff.engines.dialects.sse import DONE, KEEP_ALIVE
from bakeoff.engines.dialects.usage import stated_usage
from bakeoff.engines.dialects.values import count, items, mapping, number, text
from bakeoff.workloads.types import Turn

STREAM_HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}

_SAYS_NOTHING = KEEP_ALIVE | {b"null", b"[]"}
"""Data of events that only keep a connection open."""
_LONGEST_NOTHING = 20
_REASONING_FIELDS = (
    "reasoning_content", "reasoning", "reasoning_text", "thinking", "thinking_content", "thought", "thoughts",
    "reasoning_details", "thinking_blocks",
)  # fmt: skip
"""Of a delta, by DeepSeek, OpenRouter, MiniMax, LiteLLM and others; some send the same words in several."""
_READ = frozenset({"role", "content", "refusal", "tool_calls", "function_call", "token_ids", *_REASONING_FIELDS})
"""Fields of a delta that are read, or whose content is no part of the answer."""
_REASONING_PARTS = frozenset({"thinking", "reasoning", "reasoning.text", "reasoning.summary", "summary_text"})


class OpenAiDialect:
    """Chats and completions of any OpenAI-compatible server.

    The requested length is an upper bound, because the official format cannot force it.
    """

    name = "openai"
    exact_length = False
    ends_by_closing = False
    takes_messages = True
    reasoning_field: ClassVar[str | None] = "reasoning_content"
    """Field of an assistant's message for the reasoning of an earlier answer, as DeepSeek named it; None for none."""

    def request(self, turn: Turn, model: str, *, logprobs: bool = False) -> HttpRequest:
        """A streamed, greedy request; see :class:`~bakeoff.engines.dialects.base.Dialect`."""
        body: dict[str, Any] = {"model": model, "stream": True, **self.sampling(turn), **self.answer_format(turn)}
        if logprobs:
            body |= self.asking_logprobs(turn)
        if turn.messages is not None:
            body["messages"] = chat_messages(turn.messages, self.reasoning_field)
            return HttpRequest("/v1/chat/completions", STREAM_HEADERS, msgspec.json.encode(body))
        body["prompt"] = self.prompt(turn)
        return HttpRequest("/v1/completions", STREAM_HEADERS, msgspec.json.encode(body))

    def carriers(self, turn: Turn) -> Carriers:
        """The official settings, and those that most engines of this format add; see :class:`CarriesFields`."""
        of_chat = {} if turn.messages is None else {**OFFICIAL_CHAT, **EXTENDED_CHAT}
        return {**OFFICIAL, **EXTENDED, **of_chat}

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
        if (plain := plain_events(data)) is not None:
            return plain
        if data.startswith(DONE):
            return []
        if len(data) < _LONGEST_NOTHING and data.strip().strip(b'"').lower() in _SAYS_NOTHING:
            return []
        try:
            try:
                chunk = msgspec.json.decode(data, type=dict[str, Any])
            except (msgspec.DecodeError, UnicodeDecodeError):
                chunk = msgspec.convert(failures.lenient_json(data), dict[str, Any])
            return _chunk_events(chunk)
        except (*failures.UNREADABLE, ValueError) as error:
            return [failures.unreadable(error, data)]

    def refusal(self, status: int, body: bytes) -> str:
        return failures.refusal(status, body)


def passages_request(turn: Turn, model: str) -> HttpRequest:
    """Embeddings of a turn's passages, or their ranks if it has a query.

    OpenAI has only embeddings; engines have ``/v1/rerank`` in the form of Jina and Cohere.
    """
    headers = {**STREAM_HEADERS, "accept": "application/json"}
    if turn.prompt is None:
        body: dict[str, Any] = {"model": model, "input": turn.passages}
        return HttpRequest("/v1/embeddings", headers, msgspec.json.encode(body), is_streamed=False)
    body = {"model": model, "query": turn.prompt, "documents": turn.passages}
    return HttpRequest("/v1/rerank", headers, msgspec.json.encode(body), is_streamed=False)


def _chunk_events(chunk: Mapping[str, Any]) -> list[Event]:
    """Events of a chunk.

    Raises:
        msgspec.ValidationError: choices or their text have a type that no server sends.
    """
    if (error := failures.error_in(chunk)) is not None:
        return [StreamFault(error)]
    choices = msgspec.convert(chunk.get("choices") or [], list[dict[str, Any]])
    for choice in choices:
        if (error := failures.choice_error(choice)) is not None:
            return [StreamFault(error)]
    events = [event for choice in choices for event in choice_events(choice)]
    nested = (choice.get("usage") for choice in choices)  # as Moonshot sends it; Groq has a field of its own
    stated = (chunk.get("usage"), *nested, mapping(chunk.get("x_groq")).get("usage"))
    return [*events, *(stated_usage(usage, in_choice=bool(choices)) for usage in stated if isinstance(usage, dict))]


def choice_events(choice: Mapping[str, Any]) -> list[Event]:
    """Events of a chunk's choice."""
    index = (choice.get("index") and count(choice["index"])) or 0
    ids = tuple(token for token in items(choice.get("token_ids")) if isinstance(token, int)) or None
    delta = mapping(choice["delta"] if "delta" in choice else choice.get("message"))
    thoughts, said = _parts(delta.get("content"))
    calls = delta.get("tool_calls") or delta.get("function_call")
    shown = "" if delta.keys().isdisjoint(_REASONING_FIELDS) else _reasoning(delta)
    pieces = [
        (TokenKind.REASONING, shown or thoughts),
        (TokenKind.TEXT, msgspec.convert(choice.get("text") or "", str) or said or text(delta.get("refusal"))),
        (TokenKind.TOOL, _calls(calls) if calls else ""),
    ]
    present = [piece for piece in pieces if piece[1]] or ([(TokenKind.TEXT, "")] if ids else [])
    # A chunk with several pieces does not tell which ids belong to which piece; the last piece gets them all.
    events: list[Event] = [TokenDelta(piece, kind=kind, choice=index) for kind, piece in present[:-1]]
    logprobs = _log_probs(mapping(choice.get("logprobs")))
    tokens = None if ids or logprobs is None or len(present) > 1 else len(logprobs)
    events += [TokenDelta(piece, ids, logprobs, kind, tokens, index) for kind, piece in present[-1:]]
    if not present:
        events.append(EmptyChunk(next((f"delta.{name}" for name in delta if name not in _READ and delta[name]), "")))
    if isinstance(choice.get("finish_reason"), str):
        events.append(Finish(choice["finish_reason"]))
    return events


def _calls(calls: Any) -> str:  # noqa: ANN401  (a call or a list of calls)
    """The calls as JSON; empty if all that they say is their place, as in the last chunk of some servers."""
    return msgspec.json.encode(calls).decode() if _says_more(calls) else ""


def _says_more(call: Any) -> bool:  # noqa: ANN401  (any JSON value)
    """Whether a part of a call has more than its place, id and type."""
    if isinstance(call, dict):
        return any(_says_more(value) for name, value in call.items() if name not in {"index", "id", "type"})
    return any(map(_says_more, call)) if isinstance(call, list) else call not in (None, "")


def _parts(content: Any) -> tuple[str, str]:  # noqa: ANN401  (a string or parts)
    """Reasoning and text of a delta's content, which some servers send as a list of parts."""
    if not isinstance(content, list):
        return "", msgspec.convert(content or "", str)
    thoughts, said = "", ""
    for part in map(mapping, content):
        kind = text(part.get("type"))
        inner = part.get("text") or part.get(kind)
        words = text(inner) or "".join(text(mapping(piece).get("text")) for piece in items(inner))
        if kind in _REASONING_PARTS:
            thoughts += words
        else:
            said += words
    return thoughts, said


def _reasoning(delta: Mapping[str, Any]) -> str:
    return next(filter(None, (_words(delta.get(name)) for name in _REASONING_FIELDS)), "")


def _words(value: Any) -> str:  # noqa: ANN401  (a string, an object or parts)
    """The text of a string, of a part of a message, or of several."""
    if isinstance(value, dict):
        names = ("text", "summary", "thinking", "content", "reasoning")
        if "effort" in value:  # settings, which some servers repeat
            return ""
        return next(filter(None, (_words(value.get(name)) for name in names)), "")
    return text(value) or "".join(map(_words, items(value)))


def _log_probs(found: Mapping[str, Any]) -> tuple[float, ...] | None:
    """One value per token, from a completion or a chat; None if any is missing."""
    of_chat = [mapping(token).get("logprob") for token in items(found.get("content"))]
    values = items(found.get("token_logprobs")) or of_chat
    logprobs = tuple(logprob for logprob in map(number, values) if logprob is not None)
    return logprobs if logprobs and len(logprobs) == len(values) else None
