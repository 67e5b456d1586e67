"""Chunks that hold nothing but the next words of one answer, which almost all chunks are, decoded in one step.

A field that is not declared here, or holds more than is declared, makes a chunk one for the general reader. So a server
that says something else is never misread, and both give the same events for what this one reads.
"""

from typing import Any, Literal

import msgspec

from bakeoff.engines.dialects.base import Event, Finish, TokenDelta, TokenKind
from bakeoff.engines.dialects.failures import UNREADABLE


class _Delta(msgspec.Struct, forbid_unknown_fields=True):
    content: str | None = None
    role: str | None = None
    refusal: None = None
    reasoning: None = None
    reasoning_content: None = None
    tool_calls: None = None
    function_call: None = None


class _Choice(msgspec.Struct, forbid_unknown_fields=True):
    delta: _Delta | None = None
    text: str | None = None
    index: int = 0
    logprobs: None = None
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: None = None
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: None = None
    prompt_logprobs: None = None
    matched_stop: None = None


class _Chunk(msgspec.Struct, forbid_unknown_fields=True):
    choices: tuple[_Choice]
    id: Any = None
    object: Literal["chat.completion.chunk", "text_completion"] | None = None
    created: Any = None
    model: Any = None
    system_fingerprint: Any = None
    service_tier: Any = None
    usage: None = None
    prompt_token_ids: None = None


_DECODER = msgspec.json.Decoder(_Chunk)


def plain_events(data: bytes) -> list[Event] | None:
    """Events of a chunk with the next words of one answer; None for any other, and for what is no JSON."""
    try:
        (choice,) = _DECODER.decode(data).choices
    except UNREADABLE:
        return None
    words = choice.text if choice.delta is None else choice.delta.content
    if not words or (choice.delta is not None and choice.text):
        return None
    delta = TokenDelta(words, choice.token_ids or None, None, TokenKind.TEXT, None, choice.index)
    return [delta] if choice.finish_reason is None else [delta, Finish(choice.finish_reason)]
