"""Bytes of answers: server-sent events in HTTP's chunked transfer coding, and whole replies."""

from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from bakeoff.harness.truth.answered import CompletionRequest
from bakeoff.harness.truth.schedule import Fault, Schedule

VOCABULARY = 960
"""Token ids count the tokens of an answer modulo this: neighbouring chunks differ, and the number of distinct chunks to
make is bounded."""
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: truth\r\ncache-control: no-cache\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"
_PLAIN_TEXT = " a"
_MULTIBYTE_TEXTS = ("é", "漢", "🙂")
_CREATED = 1_735_689_600
_DELTAS = {
    "t": b'"delta":{"content":"%b"}',
    "r": b'"delta":{"reasoning_content":"%b"}',
    "c": b'"delta":{"tool_calls":[{"index":0,"function":{"arguments":"%b"}}]}',
}
_ERROR = {"message": "the schedule wants this", "type": "server_error", "param": None}


class AnswerTexts(NamedTuple):
    """What a client assembles from a whole answer, and may send back in the next prompt.

    Attributes:
        reasoning: of a chat.
        content: of a chat, or the completion.
        arguments: of a chat's tool call.
    """

    reasoning: str
    content: str
    arguments: str


class Payloads:
    """Events of the answers on one path for one model.

    Args:
        schedule: their format.
        chat: whether the path is the chat path.
        model: name in each event.
        chunked: whether to frame each event as a chunk of HTTP's transfer coding.
    """

    def __init__(self, schedule: Schedule, *, chat: bool, model: str, chunked: bool = True) -> None:
        self._schedule = schedule
        self._framed = framed if chunked else bytes
        self._chat = chat
        self._kinds = schedule.kinds_of_tokens() if chat else ""
        self._line_end = b"\r\n" if schedule.crlf else b"\n"
        kind = {"id": "chatcmpl-" + "0" * 32, "object": "chat.completion.chunk"}
        kind = kind if chat else {"id": "cmpl-" + "0" * 32, "object": "text_completion"}
        self._envelope: dict[str, Any] = {**kind, "created": _CREATED, "model": model}
        self._opening = msgspec.json.encode(self._envelope)[:-1] + b',"choices":[{"index":0,'
        self.ping: bytes = self._framed(b": ping" + 2 * self._line_end)
        self.done: bytes = self._event(b"[DONE]") if schedule.done else b""

    def tokens(self, first: int, count: int, finish: bytes = b"null") -> bytes:
        """The chunk with ``count`` tokens from token ``first``; ``finish`` is its finish reason as JSON."""
        kind = self._kinds[first] if first < len(self._kinds) else "t"
        return self._choice(self._text(first, count).encode(), finish, self._ids(first, count), kind)

    def role(self) -> bytes:
        """The empty chunk that opens a chat stream."""
        return self._event(self._opening + b'"delta":{"role":"assistant","content":""},"finish_reason":null}]}')

    def finish(self) -> bytes:
        """The empty chunk with the finish reason."""
        return self._choice(b"", b'"length"', b"")

    def usage(self, request: CompletionRequest) -> bytes:
        """The chunk without choices that carries the usage; empty bytes if the answer has no usage."""
        if self._schedule.usage == "absent" or not request.usage_asked:
            return b""
        return self._event(msgspec.json.encode({**self._envelope, "choices": [], "usage": self._usage(request)}))

    def error(self) -> bytes:
        """An error event."""
        return self._event(msgspec.json.encode({"error": {**_ERROR, "code": 500}}))

    def whole(self, request: CompletionRequest) -> bytes:
        """The reply to a request that is not streamed."""
        if request.fault is Fault.ERROR_EVENT:
            return reply(200, {"error": {**_ERROR, "code": 500}})
        finish = None if request.fault is Fault.NO_FINISH else "length"
        text = self._text(0, request.tokens)
        answer = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice: dict[str, Any] = {"index": 0, **answer, "logprobs": None, "finish_reason": finish}
        if self._schedule.token_ids:
            choice["token_ids"] = [token % VOCABULARY for token in range(request.tokens)]
        body = {**self._envelope, "choices": [choice]}
        body["object"] = "chat.completion" if self._chat else "text_completion"
        if finish and self._schedule.usage != "absent":
            body["usage"] = self._usage(request)
        return reply(200, body)

    def texts(self, request: CompletionRequest) -> AnswerTexts:
        """All text of an answer."""
        kinds = self._kinds if request.stream else ""
        texts = {"r": "", "t": "", "c": ""}
        first, size = 0, self._schedule.tokens_per_chunk
        while first < min(len(kinds), request.tokens):
            count = min(size, request.tokens - first)
            texts[kinds[first]] += self._text(first, count)
            first += count
        texts["t"] += self._text(first, request.tokens - first)
        return AnswerTexts(texts["r"], texts["t"], texts["c"])

    def _text(self, first: int, count: int) -> str:
        if not self._schedule.multibyte:
            return _PLAIN_TEXT * count
        texts = len(_MULTIBYTE_TEXTS)
        return "".join(_MULTIBYTE_TEXTS[token % texts] for token in range(first, first + count))

    def _ids(self, first: int, count: int) -> bytes:
        if not self._schedule.token_ids:
            return b""
        return b',"token_ids":[%b]' % b",".join(b"%d" % (i % VOCABULARY) for i in range(first, first + count))

    def _usage(self, request: CompletionRequest) -> dict[str, Any]:
        tokens = request.tokens * (2 if self._schedule.usage == "lying" else 1)
        prompt = request.prompt_tokens
        hidden = self._schedule.hidden_tokens if self._chat else 0
        tokens += hidden
        usage: dict[str, Any] = {
            "prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens,
        }  # fmt: skip
        if reasoning := hidden + self._kinds[: request.tokens].count("r"):
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
        if request.cached_tokens is None:
            return usage
        return {**usage, "prompt_tokens_details": {"cached_tokens": request.cached_tokens}}

    def _choice(self, text: bytes, finish: bytes, ids: bytes, kind: str = "t") -> bytes:
        content = _DELTAS[kind] if self._chat else b'"text":"%b"'
        rest = b',"logprobs":null,"finish_reason":%b%b}]}' % (finish, ids)
        return self._event(self._opening + content % text + rest)

    def _event(self, data: bytes) -> bytes:
        return self._framed(b"data: " + data + 2 * self._line_end)


def framed(body: bytes) -> bytes:
    """One chunk of HTTP's chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def reply(status: int, body: object, *, content_type: str = "application/json", header: str = "") -> bytes:
    """A whole reply; ``body`` is bytes or anything that JSON can encode, ``header`` one additional header line."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "server: truth", f"content-type: {content_type}"]
    lines += [f"content-length: {len(content)}"] + ([header] if header else [])
    return "\r\n".join([*lines, "", ""]).encode() + content


def error_reply(status: int, message: str, *, header: str = "") -> bytes:
    """A reply in the error shape of the OpenAI API."""
    kind = "invalid_request_error" if status < 429 else "server_error"
    return reply(status, {"error": {"message": message, "type": kind, "param": None, "code": status}}, header=header)


def fault_reply(fault: Fault) -> bytes:
    """The reply to a request whose fault is an HTTP status."""
    status = int(fault.value.removeprefix("http_"))
    header = "retry-after: 1" if status == HTTPStatus.TOO_MANY_REQUESTS else ""
    return error_reply(status, _ERROR["message"] or "", header=header)
