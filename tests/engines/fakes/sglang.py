"""A fake of SGLang 0.5: ``/generate`` and the OpenAI routes, written from its server's source.

As a program it takes the real server's command line: ``python -m tests.engines.fakes.sglang --model-path M …``. The
variable ``FAKE_SCRIPT``, a :class:`Script` as JSON, sets its timing.

Faults: ``slow-first`` (the server's first answer is slow), ``slow-abort`` (an abandoned answer keeps running),
``late-error`` (after the second event), ``pool`` (the KV pool holds eight tokens of each answer), ``retracts``.
"""

import argparse
import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from aiohttp import web

from tests.engines.fakes.sglang_flags import arguments
from tests.engines.fakes.stage import Fake, Script, Token, event, serve

SLOW_FIRST_S, SLOW_ABORT_S, POOL_TOKENS = 0.3, 0.3, 8
SAMPLING = {
    "max_new_tokens", "min_new_tokens", "ignore_eos", "temperature", "top_p", "top_k", "min_p", "stop",
    "stop_token_ids", "sampling_seed", "n", "stream_interval", "repetition_penalty", "frequency_penalty",
    "presence_penalty", "json_schema", "regex", "ebnf", "skip_special_tokens", "custom_params",
}  # fmt: skip
"""Anything else in ``sampling_params`` is refused."""
DONE = event("[DONE]")


def words(text: str) -> list[int]:
    """Ids of a prompt if no tokenizer is given."""
    return [sum(word.encode()) for word in text.split()]


class FakeSglang(Fake):
    """See the module.

    Args:
        script: what it generates.
        faults: some of those above.
        encode: the ids of a text.
        flags: of the command line.
    """

    def __init__(
        self,
        script: Script = Script(),  # noqa: B008
        faults: Sequence[str] = (),
        *,
        encode: Any = words,
        flags: argparse.Namespace | None = None,
    ) -> None:
        super().__init__(script, faults)
        self.encode = encode
        self.flags = flags or arguments().parse_args(["--model-path", "m"])
        self.health_tokens = 0
        self.flushes = 0
        self.running = 0
        self.retracted = 0
        self.totals = {"prompt": 0, "generation": 0, "cached": 0, "requests": 0}
        self._seen: list[list[int]] = []
        self._idle = asyncio.Event()
        self._idle.set()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/generate", self.generate),
            web.post("/v1/completions", self.completions),
            web.post("/v1/chat/completions", self.chat),
            web.get("/health", self.health),
            web.get("/server_info", self.server_info),
            web.get("/v1/models", self.models),
            web.post("/flush_cache", self.flush_cache),
            web.get("/metrics", self.metrics),
        ]

    # Requests outside the load.

    async def health(self, _: web.Request) -> web.Response:
        if os.environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "true") == "true":
            self.health_tokens += 1
        return web.Response()

    async def server_info(self, _: web.Request) -> web.Response:
        resolved = {name: value for name, value in vars(self.flags).items() if value is not None}
        return web.json_response({**resolved, "version": "0.5.23", "internal_states": [{}], "launch_command": "x" * 9})

    async def models(self, _: web.Request) -> web.Response:
        name = self.flags.served_model_name or self.flags.model_path
        entry = {"id": name, "object": "model", "created": 1, "owned_by": "sglang", "root": name}
        return web.json_response({"object": "list", "data": [entry]})

    async def flush_cache(self, request: web.Request) -> web.Response:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), float(request.query.get("timeout", 0)))
        if self.running:
            return web.Response(status=400, text="Flush cache failed.\n")
        self.flushes += 1
        self._seen.clear()
        return web.Response(text="Cache flushed.\n")

    async def metrics(self, _: web.Request) -> web.Response:
        if not self.flags.enable_metrics:
            return web.json_response({"detail": "Not Found"}, status=404)
        rank = 'model_name="m",engine_type="unified",tp_rank="0",pp_rank="0",moe_ep_rank="0"'
        lines = [
            f"sglang:num_running_reqs{{{rank}}} {self.running:.1f}",
            f"sglang:num_queue_reqs{{{rank}}} 0.0",
            f"sglang:token_usage{{{rank}}} 0.25",
            "# TYPE sglang:num_retracted_requests_total counter",
            *([f"sglang:num_retracted_requests_total{{{rank}}} {self.retracted:.1f}"] if self.retracted else []),
            f'sglang:prompt_tokens_total{{model_name="m",is_streaming="true"}} {self.totals["prompt"]:.1f}',
            f'sglang:generation_tokens_total{{model_name="m",is_streaming="true"}} {self.totals["generation"]:.1f}',
            "# TYPE sglang:cached_tokens_total counter",
        ]
        if self.totals["cached"]:
            lines.append(
                f'sglang:cached_tokens_total{{model_name="m",cache_source="device"}} {self.totals["cached"]:.1f}'
            )
        return web.Response(text="\n".join(lines) + "\n", headers={"Content-Type": "text/plain; version=0.0.4"})

    # Load.

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        params = body.get("sampling_params", {})
        if unknown := sorted(set(params) - SAMPLING):
            return web.json_response({"error": f"Unknown sampling parameter: {unknown[0]}"}, status=400)
        ids = body.get("input_ids") or self.encode(body["text"])
        wanted, forced = params.get("max_new_tokens", 128), params.get("ignore_eos", False)
        if len(ids) + wanted > self.context:
            return web.json_response({"error": {"message": self._too_long(ids, wanted)}}, status=400)
        async with self.stream(request) as response:
            tokens: list[Token] = []
            async for new, meta in self._answer(ids, wanted, forced=forced):
                if meta is None:
                    message = {"message": "CUDA error", "type": "invalid_request_error", "code": 500}
                    await response.write(event({"error": {**message, "retryable": False}}))
                    break
                tokens += new
                shown = new if self.flags.incremental_streaming_output else tokens
                if body.get("return_logprob"):
                    meta["output_token_logprobs"] = [[token.logprob, token.id, None] for token in shown]
                    meta["output_token_logprobs_length"] = len(shown)
                text = "".join(token.text for token in shown if not token.special)
                state = {"text": text, "output_ids": [token.id for token in shown], "meta_info": meta}
                await response.write(event(state))
            await response.write(DONE)
        return response

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        ids = self.encode(body["prompt"]) if isinstance(body["prompt"], str) else body["prompt"]
        return await self._openai(request, body, ids, "text_completion")

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body.get("stream") and body.get("return_token_ids"):
            return _refused("return_token_ids is not supported with streaming on /v1/chat/completions.")
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in body["messages"])
        return await self._openai(request, body, self.encode(f"{text}<|im_start|>assistant\n"), "chat.completion.chunk")

    async def _openai(self, request: web.Request, body: dict, ids: list[int], kind: str) -> web.StreamResponse:
        self.bodies.append(body)
        wanted, forced = body.get("max_tokens", 16), body.get("ignore_eos", False)
        if len(ids) + wanted > self.context:
            return _refused(self._too_long(ids, wanted))
        head = {"id": "ab", "object": kind, "created": 1, "model": body["model"]}
        count, meta = 0, {}
        async with self.stream(request) as response:
            async for new, meta in self._answer(ids, wanted, forced=forced):
                if meta is None:
                    error = {"object": "error", "message": "CUDA error", "type": "INTERNAL", "param": None, "code": 500}
                    await response.write(event({"error": error}) + DONE)
                    return response
                if not count and kind != "text_completion":
                    await response.write(event({**head, "choices": [_delta({"role": "assistant", "content": ""})]}))
                count += len(new)
                so_far = self._usage(ids, count, meta) if _stream_option(body, "continuous_usage_stats") else None
                await response.write(event({**head, "choices": [_choice(body, new, meta, kind)], "usage": so_far}))
            if kind != "text_completion":
                ended = {**_delta({}), "finish_reason": meta["finish_reason"]["type"]}
                await response.write(event({**head, "choices": [ended]}))
            if _stream_option(body, "include_usage"):
                await response.write(event({**head, "choices": [], "usage": self._usage(ids, count, meta)}))
            await response.write(DONE)
        return response

    def _usage(self, ids: list[int], count: int, meta: dict) -> dict:
        usage = {"prompt_tokens": len(ids), "total_tokens": len(ids) + count, "completion_tokens": count}
        details = {"cached_tokens": meta["cached_tokens"]} if self.flags.enable_cache_report else None
        return {**usage, "prompt_tokens_details": details, "reasoning_tokens": 0}

    @property
    def context(self) -> int:
        return self.flags.context_length or 8192

    def _too_long(self, ids: Sequence[int], wanted: int) -> str:
        total = len(ids) + wanted
        return f"Requested token count exceeds the model's maximum context length of {self.context} tokens: {total}."

    async def _answer(
        self, ids: list[int], wanted: int, *, forced: bool
    ) -> AsyncIterator[tuple[Sequence[Token], dict[str, Any] | None]]:
        """The new tokens of each event, and its ``meta_info``; None instead of it when the answer fails."""
        cached = max((_common(ids, seen) for seen in self._seen), default=0)
        cached = 0 if self.flags.disable_radix_cache else min(cached, len(ids) - 1)
        self._seen.append(ids)
        self.totals["requests"] += 1
        if "slow-first" in self.faults and self.totals["requests"] == 1:
            await asyncio.sleep(SLOW_FIRST_S)
        tokens = self.script.tokens(min(wanted, POOL_TOKENS) if "pool" in self.faults else wanted, forced=forced)
        self.retracted += "retracts" in self.faults
        self.running += 1
        self._idle.clear()
        count, whole = 0, False
        try:
            async for group in self.script.paced(tokens):
                if "late-error" in self.faults and count:
                    yield (), None
                    return
                count += len(group)
                whole = count == len(tokens)
                yield group, self._meta(len(ids), count, cached, group[-1] if whole else None)
            self._count(len(ids), count, cached)
        finally:
            linger_s = SLOW_ABORT_S if "slow-abort" in self.faults and not whole else 0.0
            asyncio.get_running_loop().call_later(linger_s, self._release)

    def _release(self) -> None:
        self.running -= 1
        if not self.running:
            self._idle.set()

    def _count(self, prompt: int, generated: int, cached: int) -> None:
        for name, value in (("prompt", prompt), ("generation", generated), ("cached", cached)):
            self.totals[name] += value

    def _meta(self, prompt: int, count: int, cached: int, last: Token | None) -> dict[str, Any]:
        ended = {"type": "stop", "matched": last.id} if last and last.special else {"type": "length", "length": count}
        meta = {"id": "ab", "finish_reason": ended if last else None, "prompt_tokens": prompt}
        meta |= {"weight_version": "default", "num_retractions": int("retracts" in self.faults), "reasoning_tokens": 0}
        return {**meta, "completion_tokens": count, "cached_tokens": cached, **({"e2e_latency": 0.05} if last else {})}


def _refused(message: str) -> web.Response:
    flat = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
    return web.json_response(flat, status=400)


def _delta(delta: dict) -> dict[str, Any]:
    fields = {"reasoning_content": None, **delta}
    return {"index": 0, "delta": fields, "logprobs": None, "finish_reason": None, "matched_stop": None}


def _choice(body: dict, new: Sequence[Token], meta: dict, kind: str) -> dict[str, Any]:
    """One choice of a chunk; in a chat the finish reason comes in a chunk of its own."""
    text = "".join(token.text for token in new if not token.special)
    if kind != "text_completion":
        logprobs = [{"token": token.text, "logprob": token.logprob, "bytes": None, "top_logprobs": []} for token in new]
        return {**_delta({"content": text}), "logprobs": {"content": logprobs} if body.get("logprobs") else None}
    reason = meta["finish_reason"] or {}
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason.get("type")}
    if body.get("logprobs") is not None:
        values = [token.logprob for token in new]
        choice["logprobs"] = {
            "text_offset": [-1] * len(new),
            "token_logprobs": values,
            "tokens": [],
            "top_logprobs": [],
        }
    if body.get("return_token_ids"):
        choice["token_ids"] = [token.id for token in new]
    return {**choice, "matched_stop": reason.get("matched")}


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def main() -> None:
    flags = arguments().parse_args()
    script = msgspec.json.decode(os.environ.get("FAKE_SCRIPT", "{}"), type=Script)
    if flags.stream_interval > 1:
        script = msgspec.structs.replace(script, group=flags.stream_interval)
    file = Path(flags.model_path, "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(str(file)) if file.is_file() else None
    encode = (lambda text: tokenizer.encode(text).ids) if tokenizer else words
    serve(FakeSglang(script, encode=encode, flags=flags), flags.port or 30000)


if __name__ == "__main__":
    main()


def _stream_option(body: dict, option: str) -> bool:
    return bool((body.get("stream_options") or {}).get(option))
