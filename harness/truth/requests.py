"""Requests to the truth server: parses bytes into whole HTTP requests, and reads their bodies."""

from typing import Any, NamedTuple

import httptools
import msgspec

from bakeoff.harness.truth.answered import CHAT, COMPLETIONS, CompletionRequest
from bakeoff.harness.truth.payloads import error_reply, reply

MAX_TOKENS = 1_000_000
_DEFAULT_TOKENS = 16


class MalformedRequest(Exception):
    """The request cannot be answered; one line says why."""


class HttpRequest(NamedTuple):
    """One whole HTTP request.

    Attributes:
        method: such as ``POST``.
        path: without the query.
        body: with HTTP's framing removed.
        keep_alive: whether the connection stays open after the reply.
    """

    method: str
    path: str
    body: bytes
    keep_alive: bool


class RequestParser:
    """Incremental parser of the requests of one connection."""

    def __init__(self) -> None:
        self._message = _Message()
        self._parser = httptools.HttpRequestParser(self._message)

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for ``100 Continue`` before it sends the body; reading this clears it."""
        expects, self._message.expects_continue = self._message.expects_continue, False
        return expects

    def feed(self, data: bytes) -> HttpRequest | None:
        """Parse ``data``; returns the request that it completed, if it did.

        Raises:
            MalformedRequest: the bytes are not HTTP/1.1, or hold a second request before the reply to the first.
        """
        message = self._message
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise MalformedRequest(f"cannot parse this as an HTTP/1.1 request: {error}") from error
        if message.pipelined:
            raise MalformedRequest("requests cannot be pipelined: wait for the reply to the one before")
        if not message.complete:
            return None
        message.complete = False
        return HttpRequest(
            method=self._parser.get_method().decode("latin-1"),
            path=message.url.partition(b"?")[0].decode("latin-1"),
            body=bytes(message.body),
            keep_alive=message.keep_alive and self._parser.get_http_version() == "1.1",
        )


class _Message:
    """Callbacks of httptools; an object of its own so that it does not form a reference cycle with the parser."""

    def __init__(self) -> None:
        self.url = b""
        self.body = bytearray()
        self.keep_alive = True
        self.expects_continue = self.complete = self.pipelined = False

    def on_message_begin(self) -> None:
        self.pipelined = self.complete
        self.url = b""
        self.body.clear()
        self.keep_alive = True

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower(), value.lower():
            case b"expect", b"100-continue":
                self.expects_continue = True
            case b"connection", b"close":
                self.keep_alive = False
            case _:
                pass

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _ContentPart(msgspec.Struct):
    text: str | None = None


class ChatMessage(msgspec.Struct):
    """A message; a prefix cache reads more of it than its content."""

    content: str | list[_ContentPart] | None = None
    role: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    """The same as ``reasoning_content``, by its newer name."""
    tool_calls: Any = None

    @property
    def text(self) -> str:
        """Its content without pictures."""
        content = self.content or ""
        return content if isinstance(content, str) else "\n".join(part.text or "" for part in content)


class Body(msgspec.Struct):
    """The fields that affect an answer; all others are ignored, as the schedule fixes everything else."""

    model: str | None = None
    prompt: str | list[int | str | list[int]] | None = None
    messages: list[ChatMessage] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


_decoder = msgspec.json.Decoder(Body)


def body_of(path: str, data: bytes) -> Body:
    """Decode the body of a POST to one of the two completion paths.

    Raises:
        MalformedRequest: it is not JSON of the right shape, or has no prompt.
    """
    try:
        body = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRequest(f"the body is not a request: {error}") from error
    if path == CHAT and body.messages is None:
        raise MalformedRequest("messages is missing")
    if path != CHAT and body.prompt is None:
        raise MalformedRequest("prompt is missing")
    return body


def completion_request(
    path: str, body: Body, default_model: str, prompt_tokens: int | None = None
) -> CompletionRequest:
    """The request in a body.

    Args:
        path: one of the two completion paths.
        body: from :func:`body_of`.
        default_model: if the body names none.
        prompt_tokens: length of the prompt; None to count it here.

    Raises:
        MalformedRequest: it asks for no or too many tokens.
    """
    limits = (body.max_completion_tokens, body.max_tokens, _DEFAULT_TOKENS)
    tokens = next(count for count in limits if count is not None)
    if not 1 <= tokens <= MAX_TOKENS:
        raise MalformedRequest(f"max_tokens must be between 1 and {MAX_TOKENS}, not {tokens}")
    return CompletionRequest(
        path=path,
        model=body.model or default_model,
        tokens=tokens,
        prompt_tokens=max(1, _length(body, path) if prompt_tokens is None else prompt_tokens),
        stream=bool(body.stream),
        usage_asked=bool(body.stream_options and body.stream_options.include_usage),
    )


def other_reply(method: str, path: str, model: str) -> bytes:
    """The reply to any other request: what clients probe before they start, else 404."""
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


def _length(body: Body, path: str) -> int:
    """Tokens of a prompt: each id counts one, text counts its words."""
    if path == CHAT:
        return sum(len(message.text.split()) for message in body.messages or ())
    prompt = body.prompt or ""
    return len(prompt.split()) if isinstance(prompt, str) else sum(map(_piece_length, prompt))


def _piece_length(piece: int | str | list[int]) -> int:
    if isinstance(piece, str):
        return len(piece.split())
    return 1 if isinstance(piece, int) else len(piece)
