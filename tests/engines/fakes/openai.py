"""A fake of OpenAI's service: chat, completions and Responses, as streams, padded unless disabled.

Faults: ``bare-events`` (no ``event:`` lines in Responses, as transformers serve), ``called-completed`` (a
truncated response has status ``completed`` and the reason in its details, as in vLLM), ``torn`` (no last events).
"""

import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from aiohttp import web

from tests.engines.fakes.answers import Answering, Prompt, ended, fails_after, part, shown
from tests.engines.fakes.stage import Script, Token, event

_SHARED = {
    "model", "stream", "stream_options", "temperature", "top_p", "service_tier", "user", "metadata", "store",
    "prompt_cache_key", "prompt_cache_retention", "seed", "stop", "n", "frequency_penalty", "presence_penalty",
    "logit_bias",
}  # fmt: skip
FIELDS = {
    "chat": _SHARED | {"messages", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs",
                       "reasoning_effort", "response_format", "tools", "tool_choice"},
    "completions": _SHARED | {"prompt", "max_tokens", "logprobs", "best_of", "echo", "suffix"},
    "responses": {"model", "stream", "stream_options", "temperature", "top_p", "service_tier", "input", "instructions",
                  "max_output_tokens", "include", "top_logprobs", "reasoning", "text", "prompt_cache_key",
                  "prompt_cache_options", "tools", "tool_choice", "metadata", "store"},
}  # fmt: skip
DONE = event("[DONE]")
_ERRORS = {
    400: ("invalid_request_error", "the request is invalid"),
    401: ("invalid_request_error", "Incorrect API key provided"),
    429: ("rate_limit_exceeded", "Rate limit reached for requests"),
    500: ("server_error", "The server had an error while processing your request"),
    503: ("server_error", "The engine is currently overloaded, please try again later"),
}
_FAILURE = {"message": "The server had an error while processing your request", "type": "server_error", "param": None,
            "code": None}  # fmt: skip


class FakeOpenAi(Answering):
    """See the module."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.completions),
            web.post("/v1/responses", self.responses),
            web.get("/v1/models", self.models),
        ]

    async def models(self, _: web.Request) -> web.Response:
        entry = {"id": "gpt-x", "object": "model", "created": 1, "owned_by": "system"}
        return web.json_response({"object": "list", "data": [entry]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request, "chat")
        if isinstance(body, web.Response):
            return body
        wanted = body.get("max_completion_tokens") or body.get("max_tokens") or 4096
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"],
                "service_tier": "default", "system_fingerprint": "fp_1"}  # fmt: skip
        return await self._chunks(request, body, head, body["messages"], wanted)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request, "completions")
        if isinstance(body, web.Response):
            return body
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body["model"]}
        return await self._chunks(request, body, head, body["prompt"], body.get("max_tokens", 16))

    async def _chunks(
        self, request: web.Request, body: dict, head: dict, prompt: Prompt, wanted: int
    ) -> web.StreamResponse:
        """The stream of a chat or a completion."""
        options = body.get("stream_options") or {}
        padding = itertools.cycle(["k3", "9xQ", "p"] if options.get("include_obfuscation", True) else [""])
        script = self.script_for(prompt)
        tokens = script.tokens(wanted)

        def written(choice: dict) -> bytes:
            chunk = {**head, "choices": [choice], **({"usage": None} if options.get("include_usage") else {})}
            pad = next(padding)
            return event({**chunk, "obfuscation": pad} if pad else chunk)

        async with self.stream(request) as response:
            if "messages" in body:
                await response.write(written(_choice(body, {"role": "assistant", "content": "", "refusal": None})))
            async for group in self._streamed(script, tokens):
                if group is None:
                    await response.write(event({"error": _FAILURE}))
                    return response
                for text, name in _split(script, tokens, group):
                    await response.write(written(_choice(body, {name: text}, group)))
            if "torn" in self.faults:
                return response
            reason = "stop" if ended(tokens) else "length"
            await response.write(written({**_choice(body, {}), "finish_reason": reason}))
            if options.get("include_usage"):
                usage = self._usage(prompt, script, tokens)
                await response.write(event({**head, "choices": [], "usage": usage}))
            await response.write(DONE)
        return response

    async def responses(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request, "responses")
        if isinstance(body, web.Response):
            return body
        padded = (body.get("stream_options") or {}).get("include_obfuscation", True)
        script = self.script_for(body["input"])
        tokens = script.tokens(body.get("max_output_tokens", 4096))
        numbers = itertools.count()

        def written(kind: str, **fields: Any) -> bytes:
            data = {"type": kind, "sequence_number": next(numbers), **fields}
            return event(data, None if "bare-events" in self.faults else kind)

        async with self.stream(request) as response:
            for kind in ("created", "in_progress"):
                await response.write(written(f"response.{kind}", response=_response("in_progress")))
            item = {"id": "m1", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
            await response.write(written("response.output_item.added", output_index=0, item=item))
            place = {"item_id": "m1", "output_index": 0, "content_index": 0}
            part_ = {"type": "output_text", "text": "", "annotations": []}
            await response.write(written("response.content_part.added", **place, part=part_))
            async for group in self._streamed(script, tokens):
                if group is None:
                    failed = {**_response("failed"), "error": {"code": "server_error", "message": _FAILURE["message"]}}
                    await response.write(written("response.failed", response=failed))
                    return response
                for text, name in _split(script, tokens, group):
                    kind = "output_text" if name == "content" else "reasoning_text"
                    fields = {**place, "delta": text, "logprobs": _logprobs(body, group)}
                    fields |= {"obfuscation": "k3"} if padded else {}
                    await response.write(written(f"response.{kind}.delta", **fields))
            if "torn" in self.faults:
                return response
            for data in self._closing(body, script, tokens, place):
                await response.write(written(**data))
        return response

    def _closing(self, body: dict, script: Script, tokens: Sequence[Token], place: dict) -> list[dict[str, Any]]:
        """The last events of a response."""
        text = {"type": "output_text", "text": shown(tokens[part(script, "thinking") :]), "annotations": []}
        status = "completed" if ended(tokens) else "incomplete"
        item = {"id": "m1", "type": "message", "status": status, "role": "assistant", "content": [text]}
        asked = body["input"]
        chat = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        usage = self._usage(chat, script, tokens)
        whole = {**_response(status), "output": [item], "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
            "total_tokens": usage["total_tokens"],
        }}  # fmt: skip
        if status == "incomplete":
            whole["incomplete_details"] = {"reason": "max_output_tokens"}
        named = "completed" if "called-completed" in self.faults else status
        return [
            {"kind": "response.output_text.done", **place, "text": text["text"], "logprobs": []},
            {"kind": "response.content_part.done", **place, "part": text},
            {"kind": "response.output_item.done", "output_index": 0, "item": item},
            {"kind": f"response.{named}", "response": whole},
        ]

    async def _streamed(self, script: Script, tokens: Sequence[Token]) -> AsyncIterator[Sequence[Token] | None]:
        """The groups of tokens in time; None when the answer fails."""
        count, breaks = 0, fails_after(script)
        async for group in script.paced(tokens):
            if breaks is not None and count >= breaks:
                yield None
                return
            count += len(group)
            yield group

    def _usage(self, prompt: Prompt, script: Script, tokens: Sequence[Token]) -> dict[str, Any]:
        """Hidden thoughts are counted; so is the end of sequence, although it has no text."""
        asked, hidden = self.count(prompt), part(script, "hidden")
        made = len(tokens) + hidden
        return {
            "prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": hidden + part(script, "thinking"), "audio_tokens": 0,
                "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
            },
        }  # fmt: skip

    async def _body(self, request: web.Request, route: str) -> dict | web.Response:
        if self.refusals:
            return _refused(self.refusals.pop(0))
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return _refused(401)
        body = msgspec.json.decode(await request.read(), type=dict)
        self.bodies.append(body)
        if unknown := sorted(set(body) - FIELDS[route]):
            return _refused(400, f"Unrecognized request argument supplied: {unknown[0]}")
        return body


def _refused(status: int, message: str | None = None) -> web.Response:
    kind, usual = _ERRORS[status]
    error = {"message": message or usual, "type": kind, "param": None, "code": None}
    return web.json_response({"error": error}, status=status, headers={"retry-after": "0"})


def _response(status: str) -> dict[str, Any]:
    fixed = {"created_at": 1, "model": "m", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    response = {"id": "r1", "object": "response", "status": status, "output": [], "usage": None, "error": None}
    return {**response, "incomplete_details": None, **fixed}


def _choice(body: dict, delta: dict, tokens: Sequence[Token] = ()) -> dict[str, Any]:
    if "messages" in body:
        logprobs = {"content": _logprobs(body, tokens), "refusal": None} if body.get("logprobs") and tokens else None
        return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None}
    return {"index": 0, "text": delta.get("content", ""), "logprobs": None, "finish_reason": None}


def _logprobs(body: dict, tokens: Sequence[Token]) -> list[dict[str, Any]]:
    if not (body.get("logprobs") or body.get("include")):
        return []
    return [
        {"token": token.text, "logprob": token.logprob, "bytes": list(token.text.encode()), "top_logprobs": []}
        for token in tokens
    ]


def _split(script: Script, tokens: Sequence[Token], group: Sequence[Token]) -> list[tuple[str, str]]:
    """The non-empty texts of a group, each with its field name in a chat."""
    thoughts = {id(token) for token in tokens[: part(script, "thinking")]}
    texts = (
        (shown([token for token in group if id(token) in thoughts]), "reasoning_content"),
        (shown([token for token in group if id(token) not in thoughts]), "content"),
    )
    return [(text, name) for text, name in texts if text]
