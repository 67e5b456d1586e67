"""A fake of trtllm-serve that follows its protocol file byte for byte.

Faults: ``break`` breaks the connection after the first chunk, ``break-at-end`` before the counts, ``no-done`` ends
without the end mark, ``gives-up`` ends with the finish reason of an abandoned request, ``too-long`` and ``unsupported``
refuse.
"""

import asyncio
import collections
import functools
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from tests.engines.fakes.answers import Count, by_words
from tests.engines.fakes.stage import Fake, Script, Token, event

BLOCK_TOKENS, BLOCKS = 32, 1000
_SHARED = {
    "model", "max_tokens", "min_tokens", "ignore_eos", "temperature", "top_p", "top_k", "min_p", "seed",
    "repetition_penalty", "use_beam_search", "stream", "stream_options", "logprobs", "add_special_tokens",
    "truncate_prompt_tokens", "return_context_logits", "stop", "stop_token_ids", "priority", "disaggregated_params",
    "response_format",
}  # fmt: skip
FIELDS = {"completions": {*_SHARED, "prompt", "detokenize"}, "chat": {*_SHARED, "messages", "prompt_token_ids",
                                                                       "top_logprobs"}}  # fmt: skip
_TYPES = {"max_tokens": int, "min_tokens": int, "top_k": int, "ignore_eos": bool, "stream": bool, "detokenize": bool}


class TensorRtLlmFake(Fake):
    """The server.

    Attributes:
        config: the contents of the YAML file.
        reads: how often the iterations were read, and so emptied.
        health_generations: how often the health check that generates a token was called.
        slow_s: extra time of each of the next iterations, in order, such as autotuning.
    """

    def __init__(
        self,
        script: Script = Script(),  # noqa: B008
        faults: Sequence[str] = (),
        *,
        name: str = "m",
        slow_s: Sequence[float] = (),
        wait_s: float = 0.02,
        count: Count = by_words,
        **config: Any,
    ) -> None:
        super().__init__(script, faults)
        self.name = name
        self.config = {"kv_cache_config": {"enable_block_reuse": True}, **config}
        self.slow_s = collections.deque(slow_s)
        self.reads = 0
        self.health_generations = 0
        self._wait_s = wait_s
        self._count = count
        self._iterations: collections.deque[dict[str, Any]] = collections.deque(maxlen=1000)
        self._number = self._iteration = self._reused = self._missed = 0
        self._seen: set[str] = set()

    def routes(self) -> list[web.RouteDef]:
        pages = [
            web.get("/health", self._health),
            web.get("/health_generate", self._health_generate),
            web.get("/version", self._version),
            web.get("/server_info", self._server_info),
            web.get("/v1/models", self._models),
            web.get("/metrics", self._metrics),
            web.post("/v1/completions", functools.partial(self._answer, api="completions")),
            web.post("/v1/chat/completions", functools.partial(self._answer, api="chat")),
        ]
        by_request = web.get("/prometheus/metrics", self._prometheus)
        return [*pages, by_request] if self.config.get("return_perf_metrics") else pages

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _health_generate(self, _: web.Request) -> web.Response:
        self.health_generations += 1
        return web.Response(text="Generation health check OK")

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "1.2.1"})

    async def _server_info(self, _: web.Request) -> web.Response:
        return web.json_response({"disaggregated_params": None})

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": self.name, "object": "model", "created": 1, "owned_by": "tensorrt_llm"}
        return web.json_response({"object": "list", "data": [model]})

    async def _metrics(self, _: web.Request) -> web.Response:
        """The iterations since the last call; waits a short time for the first one."""
        self.reads += 1
        if not self._iterations:
            await asyncio.sleep(self._wait_s)
        records = list(self._iterations)
        self._iterations.clear()
        return web.json_response(records)

    async def _prometheus(self, _: web.Request) -> web.Response:
        labels = '{engine_type="undefined",model_name="undefined"}'
        values = {"num_requests_running": self.open, "num_requests_waiting": 0, "kv_cache_utilization": 0.0}
        return web.Response(text="".join(f"trtllm_{name}{labels} {value}\n" for name, value in values.items()))

    async def _answer(self, request: web.Request, api: str) -> web.StreamResponse:
        body = await request.json()
        if complaint := _schema(body, FIELDS[api]):
            return web.json_response({"error": complaint}, status=400)
        self.bodies.append(body)
        for fault, status, kind in (("too-long", 400, "BadRequestError"), ("unsupported", 501, "NotImplementedError")):
            if fault in self.faults:
                flat = {"object": "error", "message": f"it is {fault}", "type": kind, "param": None, "code": status}
                return web.json_response(flat, status=status)
        self._number += 1
        prompt = body.get("prompt") or body.get("messages") or ""
        cached = self._look_up(
            prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)
        )
        async with self.stream(request) as response:
            writing = _Writing(self, body, api, self._number, self._count(prompt), cached)
            async for chunk, is_last in self._chunks(body, writing):
                await response.write(chunk)
                if "break" in self.faults or (is_last and "break-at-end" in self.faults):
                    assert request.transport is not None
                    request.transport.abort()
                    raise ConnectionResetError
            await response.write(writing.usage())
            if "no-done" not in self.faults:
                await response.write(event("[DONE]"))
        return response

    async def _chunks(self, body: dict[str, Any], writing: "_Writing") -> Any:
        tokens = self.script.tokens(body.get("max_tokens", 16), forced=body.get("ignore_eos", False))
        left = len(tokens)
        async for group in self.script.paced(tokens):
            await asyncio.sleep(self.slow_s.popleft() if self.slow_s else 0)
            left -= len(group)
            self._iterate(group)
            yield writing.chunk(group, None if left else "stop" if group[-1].special else "length"), not left

    def _look_up(self, prompt: str) -> int:
        """Tokens of the prompt's leading blocks that were seen before; a token is a word."""
        if not self.config["kv_cache_config"].get("enable_block_reuse", True):
            return 0
        words = prompt.split()
        heads = [" ".join(words[:end]) for end in range(BLOCK_TOKENS, len(words), BLOCK_TOKENS)]
        reused = sum(head in self._seen for head in heads)
        self._seen.update(heads)
        self._reused, self._missed = self._reused + reused, self._missed + len(heads) - reused
        return reused * BLOCK_TOKENS

    def _iterate(self, group: Sequence[Token]) -> None:
        self._iteration += 1
        if self.config.get("enable_iter_perf_stats"):
            self._iterations.append(self._record(len(group)))

    def _record(self, tokens: int) -> dict[str, Any]:
        looked_for = self._reused + self._missed
        used = min(BLOCKS, self.open)
        return {
            "timestamp": "11-20-2026 15:00:00.000000", "iter": self._iteration, "iterLatencyMS": 1.0,
            "newActiveRequestsQueueLatencyMS": 0.0, "numNewActiveRequests": 0, "numActiveRequests": self.open,
            "numQueuedRequests": 0, "numCompletedRequests": 0, "maxNumActiveRequests": 64, "maxBatchSizeStatic": 64,
            "maxBatchSizeRuntime": 64, "maxBatchSizeTunerRecommended": 0, "maxNumTokensStatic": 8192,
            "maxNumTokensRuntime": 8192, "maxNumTokensTunerRecommended": 0, "gpuMemUsage": 1, "cpuMemUsage": 0,
            "pinnedMemUsage": 0,
            "kvCacheStats": {
                "maxNumBlocks": BLOCKS, "freeNumBlocks": BLOCKS - used, "usedNumBlocks": used,
                "tokensPerBlock": BLOCK_TOKENS, "allocTotalBlocks": used, "allocNewBlocks": used,
                "reusedBlocks": self._reused, "missedBlocks": self._missed,
                "cacheHitRate": self._reused / looked_for if looked_for else 0.0,
            },
            "inflightBatchingStats": {
                "numScheduledRequests": self.open, "numContextRequests": 0, "numGenRequests": self.open,
                "numPausedRequests": 0, "numCtxTokens": 0, "microBatchId": 0, "avgNumDecodedTokensPerIter": 0.0,
            },
            "specDecodingStats": {
                "numDraftTokens": self.script.group - 1, "numAcceptedTokens": tokens - 1,
                "acceptanceLength": float(tokens), "draftOverhead": 0.0,
            },
        }  # fmt: skip


class _Writing:
    """The chunks of one answer."""

    def __init__(
        self, fake: TensorRtLlmFake, body: dict[str, Any], api: str, number: int, prompt_tokens: int, cached: int
    ) -> None:
        self._gives_up = "gives-up" in fake.faults
        self._body, self._is_chat = body, api == "chat"
        prefix, kind = ("chatcmpl", "chat.completion.chunk") if self._is_chat else ("cmpl", "text_completion")
        self._head = {"id": f"{prefix}-{number}", "object": kind, "created": 1, "model": body["model"]}
        self._prompt_tokens, self._cached = prompt_tokens, cached
        self._tokens = self._chunks = 0

    def chunk(self, group: Sequence[Token], finish: str | None) -> bytes:
        finish = "timeout" if finish and self._gives_up else finish
        self._tokens += len(group)
        self._chunks += 1
        text = "".join("" if token.special else token.text for token in group)
        if self._is_chat:
            return self._chat(group, text, finish)
        ids = None if self._body.get("detokenize", True) else [token.id for token in group]
        choice = {
            "index": 0, "text": "" if ids else text, "token_ids": ids, "logprobs": self._log_probs(group),
            "finish_reason": finish, "stop_reason": None,
            "avg_decoded_tokens_per_iter": self._tokens / self._chunks if finish else None,
        }  # fmt: skip
        return event({**self._head, "choices": [choice], "usage": None})

    def usage(self) -> bytes:
        options = self._body.get("stream_options")
        if options is None or not options.get("include_usage", True):
            return b""
        counts = {
            "prompt_tokens": self._prompt_tokens,
            "total_tokens": self._prompt_tokens + self._tokens,
            "completion_tokens": self._tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }
        return event({**self._head, "choices": [], "usage": counts})

    def _chat(self, group: Sequence[Token], text: str, finish: str | None) -> bytes:
        """Null fields are omitted; the role comes with the engine's first answer, with a blank after its data."""
        opening = event({**self._head, "choices": [{"index": 0, "delta": {"role": "assistant"}}]})
        choice: dict[str, Any] = {"index": 0, "delta": {"content": text, "reasoning_content": ""}}
        if self._body.get("logprobs"):
            choice["logprobs"] = {"content": [{"token": t.text, "logprob": t.logprob, "bytes": []} for t in group]}
        if finish:
            choice["finish_reason"] = finish
        content = event({**self._head, "choices": [choice]})
        return opening.removesuffix(b"\n\n") + b" \n\n" + content if self._chunks == 1 else content

    def _log_probs(self, group: Sequence[Token]) -> dict[str, Any] | None:
        if not self._body.get("logprobs"):
            return None
        return {
            "text_offset": [0] * len(group), "token_logprobs": [token.logprob for token in group],
            "tokens": [token.text for token in group], "top_logprobs": [],
        }  # fmt: skip


def _schema(body: dict[str, Any], fields: set[str]) -> str | None:
    """The complaint of a strict schema, or None."""
    stream_options = body.get("stream_options")
    extra = sorted({*body} - fields) + sorted({*(stream_options or {})} - {"include_usage", "continuous_usage_stats"})
    wrong = [name for name, kind in _TYPES.items() if name in body and type(body[name]) is not kind]
    if extra:
        return (
            f"[{{'type': 'extra_forbidden', 'loc': ('body', '{extra[0]}'), 'msg': 'Extra inputs are not permitted'}}]"
        )
    if wrong:
        return f"[{{'type': 'type', 'loc': ('body', '{wrong[0]}'), 'msg': 'Input should be another type'}}]"
    if "model" not in body:
        return "[{'type': 'missing', 'loc': ('body', 'model'), 'msg': 'Field required'}]"
    if stream_options is not None and not body.get("stream"):
        return "[{'type': 'value_error', 'msg': 'Value error, Stream options can only be defined when `stream=True`.'}]"
    return None
