"""A fake of TGI 3.3: ``/generate_stream``, ``/`` and the OpenAI routes, as streams.

As a program it takes the launcher's command line and variables: ``python -m tests.engines.fakes.tgi --model-id M``.
The variable ``FAKE_SCRIPT``, a :class:`Script` as JSON, sets its timing.

Faults: ``comments`` (a keep-alive before each event), ``unfinished`` (the last event never comes).
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from tests.engines.fakes.answers import Answering, Prompt, by_tokenizer, by_words, ended, fails_after, shown
from tests.engines.fakes.stage import Script, Token, event, serve
from tests.engines.fakes.tgi_flags import Flags, arguments, resolved

PIECE_TOKENS = 1024
"""Longer answers return to the queue each time after this many tokens."""
DONE = event("[DONE]")
_STATUS = {"validation": 422, "overloaded": 429, "generation": 424, "incomplete_generation_stream": 500}
Event = dict[str, Any]


class FakeTgi(Answering):
    """See the module; ``flags`` are those of the command line."""

    def __init__(self, *args: Any, flags: Flags | None = None, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.flags = flags or resolved(arguments().parse_args(["--model-id", "m"]))
        self.key = self.key or self.flags.api_key
        self.prefills = 0
        self.running = 0
        self.totals: dict[str, float] = {}
        self._broken_batches = 0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/generate_stream", self.generate_stream),
            web.post("/", self.compatible),
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.completions),
            web.get("/health", self.health),
            web.get("/ping", self.health),
            web.get("/info", self.info),
            web.get("/metrics", self.metrics),
        ]

    # Requests outside the load.

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def info(self, _: web.Request) -> web.Response:
        flags = self.flags
        return web.json_response({
            "model_id": flags.model_id, "model_sha": None, "model_pipeline_tag": None,
            "max_concurrent_requests": flags.max_concurrent_requests, "max_best_of": 2, "max_stop_sequences": 4,
            "max_input_tokens": flags.max_input_tokens, "max_total_tokens": flags.max_total_tokens,
            "validation_workers": flags.validation_workers, "max_client_batch_size": flags.max_client_batch_size,
            "router": "text-generation-router", "version": "3.3.6-dev0", "sha": "db931fcf", "docker_label": None,
        })  # fmt: skip

    async def metrics(self, _: web.Request) -> web.Response:
        """A series appears only after its first use."""
        lines = ["# TYPE tgi_batch_max_total_tokens gauge", f"tgi_batch_max_total_tokens {self.flags.budget}"]
        if self.totals:
            lines += ["# TYPE tgi_queue_size gauge", "tgi_queue_size 0", f"tgi_batch_current_size {self.running}"]
        for name, value in self.totals.items():
            lines.append(f"{name} {value:g}")
        return web.Response(text="\n".join(lines) + "\n")

    def _count(self, name: str, value: float = 1) -> None:
        self.totals[name] = self.totals.get(name, 0) + value

    # Load.

    async def generate_stream(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request, "inputs")
        return body if isinstance(body, web.Response) else await self._native(request, body)

    async def compatible(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request, "inputs")
        if isinstance(body, web.Response):
            return body
        assert body.get("stream"), "this fake has streams only"
        return await self._native(request, body)

    async def _native(self, request: web.Request, body: dict) -> web.StreamResponse:
        params = body.get("parameters", {"do_sample": True})
        details = params.get("details", False)
        answer = self._answer(body["inputs"], params.get("max_new_tokens", 1024), _invalid(params))
        async with aclosing(answer), self.stream(request, **self._headers(body["inputs"])) as response:
            async for answer_event in answer:
                if "comments" in self.faults:
                    await response.write(b":\n\n")
                await response.write(
                    event(answer_event if details or "error" in answer_event else {**answer_event, "details": None})
                )
        return response

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request, "messages")
        return body if isinstance(body, web.Response) else await self._openai(request, body, body["messages"])

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request, "prompt")
        if isinstance(body, web.Response):
            return body
        if body.get("suffix"):
            refusal = {"error": "Suffix is not supported and can be achieved by preprocessing the prompt."}
            return web.json_response({**refusal, "error_type": "suffix not supported"}, status=422)
        prompt = body["prompt"] if isinstance(body["prompt"], str) else body["prompt"][0]
        return await self._openai(request, body, prompt)

    async def _openai(self, request: web.Request, body: dict, prompt: Prompt) -> web.StreamResponse:
        is_chat = not isinstance(prompt, str)
        wanted = body.get("max_completion_tokens") or body.get("max_tokens") or 1024
        head = {"object": "chat.completion.chunk" if is_chat else "text_completion", "id": "",
                "created": int(time.time()), "model": self.flags.model_id,
                "system_fingerprint": "3.3.6-dev0-sha-db931fc"}  # fmt: skip
        answer = self._answer(prompt, wanted, None)
        async with aclosing(answer), self.stream(request, **self._headers(prompt)) as response:
            async for answer_event in answer:
                if "error" in answer_event:
                    error = {"message": answer_event["error"], "http_status_code": _STATUS[answer_event["error_type"]]}
                    await response.write(event({"error": error}))
                    break
                for chunk in _chunks(body, answer_event, is_chat=is_chat):
                    await response.write(event({**head, **chunk}))
            await response.write(DONE)
        return response

    async def _body(self, request: web.Request, needed: str) -> dict | web.Response:
        """The request's body, or the web framework's own refusal, which is not JSON."""
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.Response(status=401)
        if request.content_type != "application/json":
            return web.Response(status=415, text="Expected request with `Content-Type: application/json`")
        try:
            body = msgspec.json.decode(await request.read(), type=dict)
        except msgspec.MsgspecError as error:
            return web.Response(status=400, text=f"Failed to parse the request body as JSON: {error}")
        if needed not in body:
            text = f"Failed to deserialize the JSON body into the target type: missing field `{needed}` at line 1"
            return web.Response(status=422, text=text)
        self.bodies.append(body)
        return body

    def _headers(self, prompt: Prompt) -> dict[str, str]:
        text = prompt if isinstance(prompt, str) else "".join(message["content"] for message in prompt)
        kind = {"x-compute-type": "gpu+optimized", "x-compute-characters": str(len(text))}
        return {**kind, "X-Accel-Buffering": "no"}

    async def _answer(self, prompt: Prompt, wanted: int, problem: str | None) -> AsyncGenerator[Event]:
        """The events of ``/generate_stream``; the other routes convert them."""
        self._count("tgi_request_count")
        length = self.count(prompt)
        problem = problem or self._too_long(length, wanted)
        if self.running >= self.flags.max_concurrent_requests:
            yield self._failure("overloaded", "Model is overloaded")
        elif problem:
            yield self._failure("validation", f"Input validation error: {problem}")
        else:
            self.running += 1
            generated = self._generated(prompt, length, min(wanted, self.flags.max_total_tokens - length))
            try:
                async with aclosing(generated):
                    async for answer_event in generated:
                        yield answer_event
            finally:
                self.running -= 1

    async def _generated(self, prompt: Prompt, length: int, wanted: int) -> AsyncGenerator[Event]:
        script = self.script_for(prompt)
        tokens, breaks = script.tokens(wanted), fails_after(script)
        batches, count, began_s = self._broken_batches, 0, time.monotonic()
        self.prefills += 1
        async for group in script.paced(tokens):
            for token in group:
                if count and count % PIECE_TOKENS == 0:
                    self.prefills += 1
                    await asyncio.sleep(script.ttft_s)
                self._broken_batches += count == breaks
                if batches != self._broken_batches:  # whichever request broke it: a failed batch fails all its requests
                    yield self._failure("generation", "Request failed during generation: Server error: CUDA error")
                    return
                if "unfinished" in self.faults and count == len(tokens) - 1:
                    yield self._failure("incomplete_generation_stream", "Incomplete generation stream")
                    return
                count += 1
                yield _event(token, count, tokens if count == len(tokens) else (), length)
        self._count("tgi_request_success")
        took_s = time.monotonic() - began_s
        for name, value in (
            ("input_length", length), ("generated_tokens", count), ("skipped_tokens", 0),
            ("duration", took_s), ("queue_duration", 0.0), ("inference_duration", took_s),
        ):  # fmt: skip
            self._count(f"tgi_request_{name}_sum", value)
            self._count(f"tgi_request_{name}_count")
            self._count(f'tgi_request_{name}_bucket{{le="+Inf"}}')

    def _failure(self, kind: str, message: str) -> Event:
        self._count(f'tgi_request_failure{{err="{kind}"}}')
        return {"error": message, "error_type": kind}

    def _too_long(self, length: int, wanted: int) -> str | None:
        """Only the first piece is checked against the total."""
        flags, wanted = self.flags, min(wanted, PIECE_TOKENS)
        if length > flags.max_input_tokens:
            return f"`inputs` must have less than {flags.max_input_tokens} tokens. Given: {length}"
        if length + wanted > flags.max_total_tokens:
            whole = f"`inputs` tokens + `max_new_tokens` must be <= {flags.max_total_tokens}"
            return f"{whole}. Given: {length} `inputs` tokens and {wanted} `max_new_tokens`"
        return None


def _invalid(params: dict) -> str | None:
    """The error in native parameters, or None."""
    if params.get("max_new_tokens", 1) <= 0:
        return "`max_new_tokens` must be strictly positive"
    if params.get("temperature") is not None and params["temperature"] <= 0:
        return "`temperature` must be strictly positive"
    if params.get("decoder_input_details"):
        return "`decoder_input_details` == true is not supported when streaming tokens"
    return None


def _event(token: Token, index: int, whole: Any, length: int) -> Event:
    """One token; with all of them, the last."""
    details = None
    if whole:
        reason = "eos_token" if ended(whole) else "length"
        details = {"finish_reason": reason, "generated_tokens": len(whole), "seed": None, "input_length": length}
    fields = {"id": token.id, "text": token.text, "logprob": token.logprob, "special": token.special}
    return {"index": index, "token": fields, "generated_text": shown(whole) if whole else None, "details": details}


def _chunks(body: dict, answer_event: Event, *, is_chat: bool) -> list[Event]:
    """The chunks that an OpenAI route makes of an event."""
    token, details = answer_event["token"], answer_event["details"]
    usage = details and {"prompt_tokens": details["input_length"], "completion_tokens": details["generated_tokens"],
                         "total_tokens": details["input_length"] + details["generated_tokens"]}  # fmt: skip
    reason = details and details["finish_reason"]
    if not is_chat:
        choice = {"index": 0, "text": token["text"], "logprobs": None, "finish_reason": reason or ""}
        return [{"choices": [choice], "usage": usage} if usage else {"choices": [choice]}]
    delta = {"role": "assistant", "content": "" if token["special"] else token["text"]}
    logprobs = {"content": [{"token": token["text"], "logprob": token["logprob"], "top_logprobs": []}]}
    choice = {"index": 0, "delta": delta, "logprobs": logprobs if body.get("logprobs") else None,
              "finish_reason": "stop" if reason == "eos_token" else reason}  # fmt: skip
    last = (
        [{"choices": [], "usage": usage}] if usage and (body.get("stream_options") or {}).get("include_usage") else []
    )
    return [{"choices": [choice], "usage": None}, *last]


def main() -> None:
    flags = resolved(arguments().parse_args())
    script = msgspec.json.decode(os.environ.get("FAKE_SCRIPT", "{}"), type=Script)
    folder = Path(flags.model_id)
    count = by_tokenizer(folder) if (folder / "tokenizer.json").is_file() else by_words
    serve(FakeTgi(script, count=count, flags=flags), flags.port)


if __name__ == "__main__":
    main()
