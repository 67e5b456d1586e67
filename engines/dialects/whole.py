"""Answers that are one JSON document: those that are not streamed, embeddings, and ranked documents.

The document tells its format by its fields: ``choices`` (OpenAI's chats and completions), ``output`` (Responses),
``content`` (Anthropic's messages), ``data`` and ``results`` (embeddings and ranks).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from bakeoff.engines.dialects import failures
from bakeoff.engines.dialects.anthropic import anthropic_usage
from bakeoff.engines.dialects.base import Event, Finish, StreamFault, TokenDelta, TokenKind, Usage
from bakeoff.engines.dialects.openai import choice_events
from bakeoff.engines.dialects.responses import response_end
from bakeoff.engines.dialects.usage import stated_usage
from bakeoff.engines.dialects.values import first_count, items, mapping, number, text

_UNKNOWN = "unknown"
_STREAM_FIELDS = (b"data:", b"event:", b": ")
_TEXT_FIELDS, _ROW_FIELDS = ("choices", "output", "content"), ("data", "results", "embeddings")
"""Lists that an answer has: of text, and of rows for passages."""
_KINDS = {"thinking": TokenKind.REASONING, "reasoning": TokenKind.REASONING, "tool_use": TokenKind.TOOL,
          "function_call": TokenKind.TOOL}  # fmt: skip


def whole_answer(data: bytes, passages: int | None = None) -> list[Event]:
    """Events of an answer in one document; invalid data is a :class:`StreamFault`, never an exception.

    Args:
        data: the document.
        passages: texts that were to be embedded or ranked, each of which needs a row of its own; None if unknown.
    """
    if data.lstrip().startswith(_STREAM_FIELDS):
        return [StreamFault("the server streams although a whole answer was asked for; leave out stream (--no-stream)")]
    try:
        document = msgspec.json.decode(data)
    except failures.UNREADABLE as error:
        return [failures.unreadable(error, data)]
    if isinstance(document, list):  # text-embeddings-inference answers without an object around it
        document = {"results": document}
    answer = mapping(document)
    choices = map(mapping, items(answer.get("choices")))
    has_text, has_rows = (
        any(isinstance(answer.get(field), list) for field in fields) for fields in (_TEXT_FIELDS, _ROW_FIELDS)
    )
    error = (failures.choice_error if has_text or has_rows else failures.error_in)(answer)
    error = error or next(filter(None, map(failures.choice_error, choices)), None)
    if error is not None:
        return [StreamFault(error)]
    if passages is not None or (not has_text and not answer.keys().isdisjoint(_ROW_FIELDS)):
        return _of_passages(answer, passages)
    usage_of = stated_usage
    if isinstance(answer.get("choices"), list):
        events = [event for choice in answer["choices"] for event in _of_choice(mapping(choice))]
    elif isinstance(answer.get("output"), list):
        events = [*_of_items(answer["output"]), response_end(answer, _UNKNOWN)]
    elif isinstance(answer.get("content"), list):
        reason = text(answer.get("stop_reason")) or _UNKNOWN
        events = [*(event for block in answer["content"] for event in _of_block(mapping(block))), Finish(reason)]
        usage_of = anthropic_usage
    else:
        return [StreamFault(f"not an answer of a known format: {failures.clip(data)}")]
    if isinstance(usage := answer.get("usage"), dict):
        events.append(usage_of(usage))
    return events


def _of_choice(choice: Mapping[str, Any]) -> list[Event]:
    """A whole message has the form of a streamed piece."""
    delta = choice.get("message")
    return choice_events({"delta": delta, "text": choice.get("text"), "finish_reason": choice.get("finish_reason")})


def _of_items(output: list[Any]) -> Iterator[Event]:
    """Items of Responses: reasoning, messages and calls of functions."""
    for item in map(mapping, output):
        kind = _KINDS.get(text(item.get("type")), TokenKind.TEXT)
        parts = [*items(item.get("summary")), *items(item.get("content"))]
        words = text(item.get("arguments")) or "".join(text(mapping(part).get("text")) for part in parts)
        if words:
            yield TokenDelta(words, kind=kind)


def _of_block(block: Mapping[str, Any]) -> Iterator[Event]:
    """A block of Anthropic's messages."""
    kind = _KINDS.get(text(block.get("type")), TokenKind.TEXT)
    words = text(block.get("thinking")) or text(block.get("text"))
    if kind is TokenKind.TOOL:
        words = msgspec.json.encode(block.get("input")).decode()
    if words:
        yield TokenDelta(words, kind=kind)


def _of_passages(answer: Mapping[str, Any], passages: int | None) -> list[Event]:
    """Embeddings and ranks: an arrival without tokens; each row must hold numbers."""
    rows = items(answer.get("data")) or items(answer.get("results")) or items(answer.get("embeddings"))
    if not rows or not all(map(_holds_numbers, rows)):
        return [
            StreamFault(f"the answer has no embeddings and no scores: {failures.clip(msgspec.json.encode(answer))}")
        ]
    places = {mapping(row).get("index", number) for number, row in enumerate(rows)}
    if passages is not None and (len(rows) != passages or len(places) != passages):
        return [StreamFault(f"the answer has {min(len(rows), len(places))} rows of its own for {passages} texts")]
    tokens = first_count(mapping(answer.get("usage")), "prompt_tokens", "input_tokens", "total_tokens") or None
    return [Usage(tokens), TokenDelta(""), Finish("complete")]


def _holds_numbers(row: Any) -> bool:  # noqa: ANN401  (any JSON value)
    values = row.get("embedding") or row.get("relevance_score", row.get("score")) if isinstance(row, dict) else row
    if isinstance(values, str):  # base64
        return bool(values)
    if isinstance(values, list):
        return bool(values) and all(isinstance(value, list) or number(value) is not None for value in values)
    return number(values) is not None
