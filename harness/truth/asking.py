"""What a request means: an answer wanted, or something to be told at once."""

from typing import Any

import msgspec

from harness.truth.answered import CHAT, COMPLETIONS, Asked
from harness.truth.payloads import error_reply, reply

MAX_TOKENS = 1_000_000
_DEFAULT_TOKENS = 16


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None


class _Body(msgspec.Struct):
    """What matters of a request; whatever else it says is ignored, as its answer is on the schedule anyway."""

    model: str | None = None
    prompt: str | list[int | str | list[int]] | None = None
    messages: list[_Message] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class NotUnderstood(Exception):
    """A request for an answer that is malformed; one line."""


_decoder = msgspec.json.Decoder(_Body)


def understand(path: str, body: bytes, model: str) -> Asked:
    """Read the body of a POST to one of the two paths; ``model`` is used when it names none.

    Raises:
        NotUnderstood: it is not JSON of the right shape, has no prompt, or asks for no or too many tokens.
    """
    try:
        wanted = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotUnderstood(f"the body is not a request: {error}") from error
    prompt = wanted.messages if path == CHAT else wanted.prompt
    if prompt is None:
        raise NotUnderstood(f"{'messages' if path == CHAT else 'prompt'} is missing")
    asked = (wanted.max_completion_tokens, wanted.max_tokens, _DEFAULT_TOKENS)
    tokens = next(count for count in asked if count is not None)
    if not 1 <= tokens <= MAX_TOKENS:
        raise NotUnderstood(f"max_tokens must be between 1 and {MAX_TOKENS}, not {tokens}")
    return Asked(
        path=path,
        model=wanted.model or model,
        tokens=tokens,
        prompt_tokens=max(1, _length(prompt)),
        stream=bool(wanted.stream),
        usage_asked=bool(wanted.stream_options and wanted.stream_options.include_usage),
    )


def told_at_once(method: str, path: str, model: str) -> bytes:
    """The reply to a request that wants no answer: what clients probe before they start, else 404."""
    if method == "GET":
        match path:
            case "/v1/models":
                return reply(200, {"object": "list", "data": [_model(model)]})
            case "/health" | "/ping":
                return reply(200, {})
            case "/metrics":
                return reply(200, b"", content_type="text/plain; version=0.0.4")
            case _:
                pass
    return error_reply(404, f"no {method} {path} here; POST {COMPLETIONS} or {CHAT}")


def _model(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 1_735_689_600,
        "owned_by": "bakeoff",
        "root": name,
        "parent": None,
        "max_model_len": MAX_TOKENS,
    }


def _length(prompt: str | list[Any]) -> int:
    """Tokens of a prompt: ids count one each, text counts its words."""
    if isinstance(prompt, str):
        return len(prompt.split())
    return sum(map(_piece_length, prompt))


def _piece_length(piece: int | str | list[int] | _Message) -> int:
    if isinstance(piece, _Message):
        content = piece.content or ""
        texts = [content] if isinstance(content, str) else [part.text or "" for part in content]
        return sum(len(text.split()) for text in texts)
    if isinstance(piece, str):
        return len(piece.split())
    return 1 if isinstance(piece, int) else len(piece)
