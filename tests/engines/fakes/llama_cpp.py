"""A fake of llama-server b11434: ``/completion``, the OpenAI routes and ``/props``.

It closes the connection after each stream, although its headers promise to keep it.
As a program it takes the real command line: ``python -m tests.engines.fakes.llama_cpp -m M.gguf --port P``. The
variable ``FAKE_SCRIPT``, a :class:`Script` as JSON, sets its timing. A token without text is half a character, which is
held back. The group of a script is the number of draft tokens that a step accepts.

Faults: ``loading`` (503 for the first two health checks), ``late-error`` (after the second token), ``pings``,
``progress`` (progress chunks, even if not requested), ``fits`` (half the requested context).
"""

import argparse
import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from tests.engines.fakes.answers import Answering, Prompt, by_tokenizer, by_words, ended
from tests.engines.fakes.llama_cpp_flags import arguments, defaults
from tests.engines.fakes.stage import Script, Token, event, serve

TRAINED_CONTEXT = 8192
AUTO_SLOTS = 4
DONE = event("[DONE]")
_NOT_NEUTRAL = {"temperature": 0.8, "repeat_penalty": 1.0, "top_k": 40, "n_predict": -1, "cache_prompt": True}


class _Task:
    """One request in its slot."""

    def __init__(self, body: dict, prompt: Prompt, length: int, cached: int, room: int) -> None:
        self.body, self.prompt, self.length, self.cached = body, prompt, length, cached
        asked = next((body[n] for n in ("n_predict", "max_tokens", "max_completion_tokens") if n in body), -1)
        self.wanted = min(asked, room) if asked >= 0 else room
        self.is_cut = asked > room
        self.predicted = 0
        self.drafted = self.verifications = 0

    def timings(self) -> dict[str, float]:
        counts = {"cache_n": self.cached, "prompt_n": self.length - self.cached, "prompt_ms": 1.5, "predicted_ms": 2.5}
        drafts = {"draft_n": self.drafted, "draft_n_accepted": self.drafted} if self.drafted else {}
        return {**counts, "predicted_n": self.predicted, "predicted_per_second": 100.0, **drafts}

    def final(self, reason: str) -> dict[str, Any]:
        """The last native event."""
        return {
            "index": 0, "content": "", "tokens": [], "id_slot": 0, "stop": True, "model": "m",
            "tokens_predicted": self.predicted, "tokens_evaluated": self.length, "generation_settings": {},
            "prompt": "", "has_new_line": False, "truncated": self.is_cut and reason == "limit", "stop_type": reason,
            "stopping_word": "", "tokens_cached": self.length + self.predicted - 1, "timings": self.timings(),
        }  # fmt: skip


class FakeLlamaServer(Answering):
    """See the module; ``flags`` are those of the command line."""

    def __init__(self, *args: Any, flags: argparse.Namespace | None = None, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.flags = flags or defaults()
        self.key = self.key or os.environ.get("LLAMA_API_KEY")
        asked = self.flags.parallel
        self.slots = asked if asked > 0 else AUTO_SLOTS
        whole = self.flags.ctx_size or TRAINED_CONTEXT
        whole //= 2 if "fits" in self.faults else 1
        self.slot_context = whole // self.slots if asked > 0 else whole
        self.totals = dict.fromkeys(("prompt", "cached", "predicted", "drafted", "verifications"), 0)
        self.running = self.deferred = self.most_running = 0
        self.erased: list[str] = []
        self._loading = 2 if "loading" in self.faults else 0
        self._free = asyncio.Semaphore(self.slots)
        self._seen: list[str] = []

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.health),
            web.get("/props", self.props),
            web.get("/v1/models", self.models),
            web.get("/metrics", self.metrics),
            web.post("/slots/{slot}", self.erase),
            web.post("/completion", self.completion),
            web.post("/v1/completions", self.completions),
            web.post("/v1/chat/completions", self.chat),
        ]

    # Requests outside the load.

    async def health(self, _: web.Request) -> web.Response:
        if self._loading:
            self._loading -= 1
            return _error(503, "Loading model", "unavailable_error")
        return web.json_response({"status": "ok"})

    async def props(self, _: web.Request) -> web.Response:
        params = {"seed": self.flags.seed, **_NOT_NEUTRAL}
        return web.json_response({
            "default_generation_settings": {"params": params, "n_ctx": self.slot_context},
            "total_slots": self.slots, "model_alias": self.flags.alias, "model_path": self.flags.model,
            "model_ftype": "BF16", "endpoint_slots": self.flags.slots, "endpoint_metrics": self.flags.metrics,
            "chat_template": "{% for m in messages %}…", "build_info": "b11434-fake", "is_sleeping": False,
        })  # fmt: skip

    async def models(self, _: web.Request) -> web.Response:
        meta = {"vocab_type": 2, "n_vocab": 9, "n_ctx": self.slot_context, "n_ctx_train": TRAINED_CONTEXT,
                "n_params": 7, "size": 14, "ftype": "BF16"}  # fmt: skip
        return web.json_response(
            {"object": "list", "data": [{"id": self.flags.alias, "owned_by": "llamacpp", "meta": meta}]}
        )

    async def metrics(self, _: web.Request) -> web.Response:
        if not self.flags.metrics:
            return _error(501, "This server does not support metrics endpoint.", "not_supported_error")
        values = {
            "prompt_tokens_total": self.totals["prompt"], "prompt_tokens_cached_total": self.totals["cached"],
            "tokens_predicted_total": self.totals["predicted"],
            "spec_decode_num_draft_tokens_total": self.totals["drafted"],
            "spec_decode_num_accepted_tokens_total": self.totals["drafted"],
            "spec_decode_num_drafts_total": self.totals["verifications"],
            "requests_processing": self.running, "requests_deferred": self.deferred,
        }  # fmt: skip
        lines = [f"# TYPE llamacpp:{name} counter\nllamacpp:{name} {value}" for name, value in values.items()]
        return web.Response(text="\n".join(lines) + "\n")

    async def erase(self, request: web.Request) -> web.Response:
        self.erased.append(request.path_qs)
        message = "This server does not support slots action. Start it with `--slot-save-path`"
        return _error(501, message, "not_supported_error")

    # Load.

    async def completion(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "prompt", _native)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "prompt", _text)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "messages", _chat)

    async def _answer(self, request: web.Request, needed: str, form: Any) -> web.StreamResponse:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return _error(401, "Invalid API Key", "authentication_error")
        body = msgspec.json.decode(await request.read(), type=dict)
        if needed not in body:
            return _error(400, f"[json.exception.out_of_range.403] key '{needed}' not found", "invalid_request_error")
        self.bodies.append(body)
        assert body.get("stream"), "this fake has streams only"
        prompt = body[needed]
        length = self.count(prompt)
        if length >= self.slot_context:
            message = f"request ({length} tokens) exceeds the available context size ({self.slot_context} tokens)"
            more = {"n_prompt_tokens": length, "n_ctx": self.slot_context}
            return _error(400, f"{message}, try increasing it", "exceed_context_size_error", **more)
        async with self._slot(), self.stream(request) as response:
            task = _Task(body, prompt, length, self._cached(body, prompt, length), self.slot_context - length)
            async for group in self._generated(task):
                for chunk in form(task, *group):
                    await response.write(event(chunk))
                if "pings" in self.faults:
                    await response.write(b":\n\n")
            if form is not _native and "late-error" not in self.faults:
                await response.write(DONE)
        if request.headers.get("connection") != "close" and request.transport:
            request.transport.close()  # contrary to its headers
        return response

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncGenerator[None]:
        self.deferred += 1
        await self._free.acquire()
        self.deferred -= 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            yield
        finally:
            self.running -= 1
            self._free.release()

    def _cached(self, body: dict, prompt: Prompt, length: int) -> int:
        """Cached tokens of a prompt: the longest common beginning with an earlier prompt."""
        text = prompt if isinstance(prompt, str) else repr(prompt)
        common = max((len(os.path.commonprefix([text, seen])) for seen in self._seen), default=0)  # noqa: RUF071
        self._seen.append(text)
        if not body.get("cache_prompt", self.flags.cache_prompt):
            return 0
        return min(length - 1, length * common // max(1, len(text)))

    async def _generated(self, task: _Task) -> AsyncIterator[tuple[str, Sequence[Token], str | None]]:
        """Text, its tokens, and at the end the reason; each token separately, except for the pieces of a character."""
        script = self.script_for(task.prompt)
        tokens = script.tokens(task.wanted, forced=task.body.get("ignore_eos", False))
        if "progress" in self.faults or task.body.get("return_progress"):
            yield "progress", (), None
        held: list[Token] = []
        async for group in script.paced(tokens):
            task.drafted += len(group) - 1
            task.verifications += len(group) > 1
            for token in group:
                if "late-error" in self.faults and task.predicted == 2:
                    yield "", (), "error"
                    return
                task.predicted += 1
                held.append(token)
                if token.text or token.special:
                    yield "" if token.special else token.text, held, None
                    held = []
        yield "", (), "eos" if ended(tokens) else "limit"
        for name, value in (("prompt", task.length - task.cached), ("cached", task.cached),
                            ("predicted", task.predicted), ("drafted", task.drafted),
                            ("verifications", task.verifications)):  # fmt: skip
            self.totals[name] += value


def _error(status: int, message: str, kind: str, **more: int) -> web.Response:
    return web.json_response({"error": {"code": status, "message": message, "type": kind, **more}}, status=status)


_FAILED = {"error": {"code": 500, "message": "Compute error.", "type": "server_error"}}
_PROGRESS = {"total": 5, "cache": 0, "processed": 5, "time_ms": 1}


def _native(task: _Task, text: str, tokens: Sequence[Token], end: str | None) -> list[dict[str, Any]]:
    """Events of ``/completion``: the id and the log-probability of the last token only."""
    if end:
        return [_FAILED if end == "error" else task.final(end)]
    counts = {"tokens_predicted": task.predicted, "tokens_evaluated": task.length}
    payload = {"index": 0, "content": text, "stop": False, "id_slot": -1, **counts}
    if text == "progress":
        return [{**payload, "content": "", "tokens": [0], "timings": task.timings(), "prompt_progress": _PROGRESS}]
    payload["tokens"] = [tokens[-1].id] if task.body.get("return_tokens") else []
    if task.body.get("n_probs") or task.body.get("logprobs"):
        payload["completion_probabilities"] = [_probability(tokens[-1], text)]
    return [payload]


def _text(task: _Task, text: str, tokens: Sequence[Token], end: str | None) -> list[dict[str, Any]]:
    """Chunks of ``/v1/completions``; the last one always has the usage."""
    native = _native(task, text, tokens, end)
    if end == "error":
        return native
    head = {"created": 1, "model": "m", "system_fingerprint": "b11434-fake", "object": "text_completion", "id": "c"}
    verbose = {"__verbose": native[0]} if task.body.get("verbose") else {}
    if text == "progress":
        return [{"choices": [_choice("")], **head, "prompt_progress": _PROGRESS, **verbose}]
    if end is None:
        logprobs = {"content": [_probability(tokens[-1], text)]} if task.body.get("logprobs") else None
        return [{"choices": [{**_choice(text), "logprobs": logprobs}], **head, **verbose}]
    choice = {**_choice(""), "finish_reason": "stop" if end == "eos" else "length"}
    return [{"choices": [choice], **head, "usage": _usage(task), "timings": task.timings(), **verbose}]


def _chat(task: _Task, text: str, tokens: Sequence[Token], end: str | None) -> list[dict[str, Any]]:
    """Chunks of ``/v1/chat/completions``: the role comes with the first token, and there are no ids."""
    if end == "error":
        return [_FAILED]
    head = {"created": 1, "id": "c", "model": "m", "system_fingerprint": "b11434-fake", "object": _CHUNK}
    if text == "progress":
        return [{"choices": [_delta({})], **head, "prompt_progress": _PROGRESS}]
    timings = {"timings": task.timings()} if task.body.get("timings_per_token") else {}
    if end is None:
        delta = _delta({"content": text})
        if task.body.get("logprobs"):
            delta["logprobs"] = {"content": [_probability(tokens[-1], text)]}
        role = [{"choices": [_delta({"role": "assistant", "content": None})], **head}]
        return [*(role if task.predicted == len(tokens) else []), {"choices": [delta], **head, **timings}]
    last = {"choices": [{**_delta({}), "finish_reason": "stop" if end == "eos" else "length"}], **head}
    if (task.body.get("stream_options") or {}).get("include_usage"):
        return [last, {"choices": [], **head, "usage": _usage(task), "timings": task.timings()}]
    return [{**last, "timings": task.timings()}]


_CHUNK = "chat.completion.chunk"


def _choice(text: str) -> dict[str, Any]:
    return {"text": text, "index": 0, "logprobs": None, "finish_reason": None}


def _delta(delta: dict) -> dict[str, Any]:
    return {"finish_reason": None, "index": 0, "delta": delta}


def _probability(token: Token, text: str) -> dict[str, Any]:
    return {"id": token.id, "token": text, "bytes": list(text.encode()), "logprob": token.logprob, "top_logprobs": []}


def _usage(task: _Task) -> dict[str, Any]:
    counts = {"completion_tokens": task.predicted, "prompt_tokens": task.length}
    whole = {"total_tokens": task.predicted + task.length}
    return {**counts, **whole, "prompt_tokens_details": {"cached_tokens": task.cached}}


def main() -> None:
    flags = arguments().parse_args()
    script = msgspec.json.decode(os.environ.get("FAKE_SCRIPT", "{}"), type=Script)
    folder = Path(flags.model).parent
    count = by_tokenizer(folder) if (folder / "tokenizer.json").is_file() else by_words
    faults = os.environ.get("FAKE_FAULTS", "").split()
    serve(FakeLlamaServer(script, faults, count=count, flags=flags), flags.port)


if __name__ == "__main__":
    main()
