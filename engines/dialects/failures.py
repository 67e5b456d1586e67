"""Error messages in one line, from the shapes in which servers of the OpenAI format report errors.

vLLM and OpenAI send ``{"error": {"message": …}}``, older servers ``{"message": …}`` or ``{"error": "…"}``, and FastAPI
sends ``{"detail": …}``. Gateways have ``errors``, ``error_msg`` beside ``error_code`` (Baidu), ``base_resp`` (MiniMax),
``code`` and ``msg``, or an error in a choice or its delta (OpenRouter).
"""

import json
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from bakeoff.engines.dialects.base import StreamFault
from bakeoff.engines.dialects.values import count, items, mapping, number, text

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions of decoding invalid data: not JSON or another shape, invalid UTF-8, too deep nesting."""
_MAX_CHARS = 500
_ERRORS = ("error", "errors", "error_msg", "error_message", "err_msg", "errmsg", "exception")
_MESSAGES = ("message", "msg", "detail", "error_msg", "error_message", "status_msg", "title", "reason")
_CODES = ("code", "error_code", "errcode")
_SUSPECT = frozenset({*_ERRORS, *_CODES, "base_resp", "type", "status", "message", "detail"})
"""Fields without one of which an event is no error; few chunks of answers have one."""
_WELL = frozenset({"0", "200", "ok", "success", "succeeded", "none", "null", "completed"})
"""Codes and messages of events in which nothing is wrong, in lower case."""
_PENDING = frozenset({
    "queued", "pending", "waiting", "loading", "starting", "running", "processing", "in_progress", "generating",
})  # fmt: skip
"""States of notices before or within an answer, in lower case."""
_PHRASES = frozenset(status.phrase.lower() for status in HTTPStatus)
"""What servers say of any refusal with a status, in lower case."""
_LEAST_ERROR_STATUS, _END_OF_STATUS = 400, 600


def refusal(status: int, body: bytes) -> str:
    """``HTTP 400: message``; the whole body if it has no known shape."""
    try:
        error: Any = msgspec.json.decode(body)
        if isinstance(error, dict):
            error = _of_refusal(error)
        return f"HTTP {status}: {error_text(error)}"
    except UNREADABLE:
        return f"HTTP {status}: {clip(body) or 'empty answer'}"


def _of_refusal(answer: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """What explains a refusal: the fields that name what is wrong, before a title such as Bad Request."""
    error, named = answer.get("error"), answer.get("detail") or answer.get("errors") or answer.get("message")
    is_title = str(error).lower() in _PHRASES or (error is None and "title" in answer)
    if is_title and named:  # ASP.NET (RFC 9457); NestJS and Spring
        return "; ".join(map(error_text, named)) if isinstance(named, list) else named
    return error or answer.get("detail") or answer.get("message") or answer


def unreadable(error: Exception, data: bytes) -> StreamFault:
    """The fault of an event that could not be decoded."""
    return StreamFault(f"not a chunk of this format ({error}): {clip(data)}")


def error_in(chunk: Mapping[str, Any]) -> str | None:
    """The message of an error that an event of a stream holds, beside its choices; None if it holds none."""
    is_error = chunk.get("object") == "error"
    if not is_error and chunk.keys().isdisjoint(_SUSPECT):
        return None
    has_choices = bool(chunk.get("choices"))
    codes = [chunk[name] for name in (*_CODES, "status") if chunk.get(name) is not None]
    is_fine = any(str(code).lower() in _WELL for code in codes)
    for name in _ERRORS[:2] if has_choices or is_fine else _ERRORS:
        if (value := chunk.get(name)) and not _says_nothing(value):
            return error_text(value)
    result = mapping(chunk.get("base_resp"))
    if str(result.get("status_code") or 0) != "0":
        return error_text(result)
    if is_error or (chunk.get("type") == "error" and not has_choices):
        return error_text(chunk)
    is_fine = is_fine or any(str(code).lower() in _PENDING for code in codes)
    if not is_fine and not chunk.keys() & {"choices", "usage"}:
        is_coded = any((count(code) or 0) >= _LEAST_ERROR_STATUS for code in codes)
        said = chunk.get("detail") or chunk.get("message") or (chunk.get("msg") if is_coded else None)
        is_said = bool(said) and str(said).lower() not in _WELL
        if is_said or any(_LEAST_ERROR_STATUS <= (number(code) or 0) < _END_OF_STATUS for code in codes):
            return error_text(chunk["detail"] if isinstance(said, list) else chunk)
    return None


def choice_error(choice: Mapping[str, Any]) -> str | None:
    """The message of an error in a choice or its delta; None if it holds none."""
    error = choice.get("error") or mapping(choice.get("delta")).get("error")
    return error_text(error) if error and not _says_nothing(error) else None


def _says_nothing(error: Any) -> bool:  # noqa: ANN401  (any JSON value)
    """Whether an error's fields are empty, or say that nothing is wrong."""
    values = error.values() if isinstance(error, dict) else [error]
    return all(not value or str(value).lower() in _WELL for value in values)


def lenient_json(data: bytes) -> Any:  # noqa: ANN401  (any JSON value)
    """JSON as Python's and JavaScript's servers write it, with NaN, infinities, and characters that were cut in two.

    Numbers that are not finite become None, and what is no character becomes U+FFFD.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    return _mended(json.loads(data.decode("utf-8", "replace")))


def _mended(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_mended(part) for part in value]
    return {_mended(key): _mended(part) for key, part in value.items()} if isinstance(value, dict) else value


def error_text(error: Any) -> str:  # noqa: ANN401  (engines send strings, lists and objects)
    """The message of an error, or the whole error if it has none."""
    if isinstance(error, list) and len(error) == 1 and _message(error[0]):
        (error,) = error
    if message := _message(error):
        field = mapping(error).get("param")
        named = f"{message} (field {field})" if isinstance(field, str) and field not in message else message
        return clip(named.encode())
    return clip(error.encode() if isinstance(error, str) else msgspec.json.encode(error))


def _message(error: Any) -> str:  # noqa: ANN401
    message = next(filter(None, (text(mapping(error).get(name)) for name in _MESSAGES)), "")
    place = ".".join(str(part) for part in items(mapping(error).get("loc")) if part != "body")  # as FastAPI has it
    return f"{place}: {message}" if message and place else message


def clip(data: bytes, max_chars: int = _MAX_CHARS) -> str:
    """``data`` as one line of at most so many characters."""
    line = " ".join(data.decode("utf-8", "replace").split())
    return line if len(line) <= max_chars else f"{line[:max_chars]}…"
