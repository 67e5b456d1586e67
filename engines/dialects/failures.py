"""Error messages in one line, from the shapes in which servers of the OpenAI format report errors.

vLLM and OpenAI send ``{"error": {"message": …}}``, older servers ``{"message": …}`` or ``{"error": "…"}``, and FastAPI
sends ``{"detail": …}``.
"""

from typing import Any

import msgspec

from bakeoff.engines.dialects.base import StreamFault

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions of decoding invalid data: not JSON or another shape, invalid UTF-8, too deep nesting."""
_MAX_CHARS = 500


def refusal(status: int, body: bytes) -> str:
    """``HTTP 400: message``; the whole body if it has no known shape."""
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
    """The message of an error, or the whole error if it has none."""
    if isinstance(error, dict) and isinstance(message := error.get("message"), str):
        field = error.get("param")
        named = f"{message} (field {field})" if isinstance(field, str) and field not in message else message
        return clip(named.encode())
    return clip(error.encode() if isinstance(error, str) else msgspec.json.encode(error))


def clip(data: bytes, max_chars: int = _MAX_CHARS) -> str:
    """``data`` as one line of at most so many characters."""
    text = " ".join(data.decode("utf-8", "replace").split())
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"
