"""What went wrong, in one line, from whichever shape an engine gives it."""

from typing import Any

import msgspec

from engines.dialects.base import StreamFault

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding hostile bytes may raise: no JSON or another shape, a string that is no UTF-8, nesting without end."""
_MAX_CHARS = 500


def refusal(status: int, body: bytes) -> str:
    """``HTTP 400: message``, from the shapes that servers of the OpenAI format use."""
    try:
        error: Any = msgspec.json.decode(body)
        if isinstance(error, dict):
            error = error.get("error") or error.get("detail") or error.get("message") or error
        return f"HTTP {status}: {error_text(error)}"
    except UNREADABLE:
        return f"HTTP {status}: {clip(body) or 'empty answer'}"


def unreadable(error: Exception, data: bytes) -> StreamFault:
    """The fault of an event that could not be decoded."""
    return StreamFault(f"not a chunk of this format ({error}): {clip(data)}")


def error_text(error: Any) -> str:  # noqa: ANN401  (engines send strings, lists and objects)
    """The message of an error, or all of it where it names none."""
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return clip(error["message"].encode())
    return clip(error.encode() if isinstance(error, str) else msgspec.json.encode(error))


def clip(data: bytes) -> str:
    """One line of at most 500 characters."""
    text = " ".join(data.decode("utf-8", "replace").split())
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}…"
