"""A fake of Anthropic's Messages API, as streams, with its prompt cache.

Faults: ``no-read-twice`` (usage of the prompt comes in the first event only, as llama-server does), ``novelties`` (an
event of an unknown type), ``torn`` (the connection ends before ``message_stop``).
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from aiohttp import web

from tests.engines.fakes.answers import Answering, ended, fails_after, part, shown
from tests.engines.fakes.stage import Script, Token, event

_FIELDS = {
    "model", "max_tokens", "messages", "system", "stream", "temperature", "top_p", "top_k", "stop_sequences",
    "thinking", "cache_control", "tools", "tool_choice", "metadata", "service_tier",
}  # fmt: skip
_ERRORS = {
    400: ("invalid_request_error", "the request is invalid"),
    401: ("authentication_error", "invalid x-api-key"),
    403: ("permission_error", "not permitted"),
    404: ("not_found_error", "model: none"),
    413: ("request_too_large", "Request exceeds the maximum size"),
    429: ("rate_limit_error", "This request would exceed your rate limit of output tokens per minute"),
    500: ("api_error", "Internal server error"),
    529: ("overloaded_error", "Overloaded"),
}
Usage = dict[str, Any]


class FakeAnthropic(Answering):
    """See the module."""

    def __init__(self, *args: Any, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.headers: list[dict[str, str]] = []
        self._kept: set[str] = set()

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/messages", self.messages), web.get("/v1/models", self.models)]

    async def models(self, request: web.Request) -> web.Response:
        if self.key and request.headers.get("x-api-key") != self.key:
            return _refused(401)
        entry = {"type": "model", "id": "claude-x", "display_name": "X", "created_at": "2026-01-01T00:00:00Z"}
        return web.json_response({"data": [entry], "has_more": False, "first_id": "claude-x", "last_id": "claude-x"})

    async def messages(self, request: web.Request) -> web.StreamResponse:
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        body = msgspec.json.decode(await request.read(), type=dict)
        self.bodies.append(body)
        if self.refusals:
            return _refused(self.refusals.pop(0))
        if self.key and request.headers.get("x-api-key") != self.key:
            return _refused(401)
        if problem := _problem(request, body):
            return _refused(400, problem)
        plain = [{"role": message["role"], "content": _text(message["content"])} for message in body["messages"]]
        script = self.script_for(plain)
        tokens = script.tokens(body["max_tokens"])
        usage = self._prompt_usage(body, plain)
        async with self.stream(request, **{"request-id": "req_1"}) as response:
            async for data in self._events(body, script, tokens, usage):
                await response.write(event(data, data["type"]))
        return response

    async def _events(
        self, body: dict, script: Script, tokens: Sequence[Token], usage: Usage
    ) -> AsyncIterator[dict[str, Any]]:
        yield {"type": "message_start", "message": {
            "id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "content": [],
            "stop_reason": None, "stop_sequence": None,
            "usage": {**usage, "output_tokens": 1, "service_tier": "standard"},
        }}  # fmt: skip
        index, opened, count = -1, None, 0
        thoughts = {id(token) for token in tokens[: part(script, "thinking")]}
        breaks = fails_after(script)
        async for group in script.paced(tokens):
            if breaks is not None and count >= breaks:
                yield _error(529)
                return
            count += len(group)
            for kind in ("thinking", "text"):
                text = shown([token for token in group if (id(token) in thoughts) == (kind == "thinking")])
                if not text:
                    continue
                if opened != kind:
                    for data in _turned(index, opened, kind):
                        yield data
                    index, opened = index + 1, kind
                yield {"type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", kind: text}}
            yield {"type": "ping"}
            if "novelties" in self.faults:
                yield {"type": "content_block_glimmer", "index": index, "delta": {"type": "glimmer", "text": "?"}}
        if opened:
            yield {"type": "content_block_stop", "index": index}
        if "torn" in self.faults:
            return
        made = {"output_tokens": len(tokens) + part(script, "hidden")}
        again = {} if "no-read-twice" in self.faults else {k: v for k, v in usage.items() if k != "cache_creation"}
        stop = {"stop_reason": "end_turn" if ended(tokens) else "max_tokens", "stop_sequence": None}
        yield {"type": "message_delta", "delta": stop, "usage": {**made, **again}}
        yield {"type": "message_stop"}

    def _prompt_usage(self, body: dict, plain: list[dict]) -> Usage:
        """The prompt up to a cache mark is read from the cache or written to it; the rest counts as input."""
        system = body.get("system") or ""
        whole = self.count([*([{"role": "system", "content": _text(system)}] if system else []), *plain])
        marked = _marked(system) or _marked(body["messages"][0]["content"])
        kept = self.count(marked) if marked else 0
        read = kept if marked in self._kept else 0
        if marked:
            self._kept.add(marked)
        written = {"ephemeral_5m_input_tokens": kept - read, "ephemeral_1h_input_tokens": 0}
        return {"input_tokens": whole - kept, "cache_creation_input_tokens": kept - read,
                "cache_read_input_tokens": read, "cache_creation": written}  # fmt: skip


def _problem(request: web.Request, body: dict) -> str | None:
    """The error of a request that the service refuses; it names the field."""
    if request.headers.get("anthropic-version") != "2023-06-01":
        return "anthropic-version: header is required"
    for name in ("model", "max_tokens", "messages"):
        if name not in body:
            return f"{name}: Field required"
    if unknown := sorted(set(body) - _FIELDS):
        return f"{unknown[0]}: Extra inputs are not permitted"
    roles = [message["role"] for message in body["messages"]]
    wrong = next((role for role in roles if role not in {"user", "assistant"}), None)
    return f'messages: Unexpected role "{wrong}"' if wrong else None


def _turned(index: int, opened: str | None, kind: str) -> list[dict[str, Any]]:
    """The events that end the open block, if any, and start the next one."""
    closed = [{"type": "content_block_stop", "index": index}] if opened else []
    if opened == "thinking":
        signature = {"type": "signature_delta", "signature": "EqQB"}
        closed.insert(0, {"type": "content_block_delta", "index": index, "delta": signature})
    block = {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}
    return [*closed, {"type": "content_block_start", "index": index + 1, "content_block": block}]


def _text(content: str | list[dict]) -> str:
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


def _marked(content: str | list[dict]) -> str | None:
    """The text to be cached; None without a cache mark."""
    blocks = [] if isinstance(content, str) else content
    return next((block["text"] for block in blocks if block.get("cache_control")), None)


def _error(status: int, message: str | None = None) -> dict[str, Any]:
    kind, usual = _ERRORS[status]
    return {"type": "error", "error": {"type": kind, "message": message or usual}, "request_id": "req_1"}


def _refused(status: int, message: str | None = None) -> web.Response:
    return web.json_response(_error(status, message), status=status, headers={"retry-after": "0"})
