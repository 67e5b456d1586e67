"""A fake of llama-cpp-python 0.3.36's server: one request at a time, OpenAI routes, no usage in streams.

As a program it takes the real command line: ``python -m tests.engines.fakes.llama_cpp_python --model M.gguf``. Like
the real server, it prefers the variables ``HOST`` and ``PORT`` to its flags. A token without text is held back.
"""

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from tests.engines.fakes.answers import Answering, Prompt, by_tokenizer, by_words, ended
from tests.engines.fakes.stage import Script, event, serve

DONE = event("[DONE]")


def _bool(word: str) -> bool:
    return {"true": True, "false": False}[word]


def arguments() -> argparse.ArgumentParser:
    """The flags of 0.3.36: the fields of its settings."""
    made = argparse.ArgumentParser(prog="llama_cpp.server", allow_abbrev=False)
    for name in ("model", "model_alias", "host", "chat_format", "draft_model", "api_key", "config_file"):
        made.add_argument(f"--{name}")
    for name in ("port", "n_ctx", "n_batch", "n_ubatch", "n_threads", "n_threads_batch", "n_gpu_layers", "seed",
                 "type_k", "type_v", "split_mode", "draft_model_num_pred_tokens"):  # fmt: skip
        made.add_argument(f"--{name}", type=int)
    for name in ("interrupt_requests", "logits_all", "flash_attn", "cache"):
        made.add_argument(f"--{name}", type=_bool)
    made.add_argument("--tensor_split", nargs="*", type=float)
    made.set_defaults(n_ctx=2048, interrupt_requests=True, logits_all=True)
    return made


class FakeLlamaCppPython(Answering):
    """See the module; ``flags`` are those of the command line."""

    def __init__(self, *args: Any, flags: argparse.Namespace | None = None, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.flags = flags or arguments().parse_args(["--model", "m.gguf", "--interrupt_requests", "false"])
        self.key = self.key or os.environ.get("API_KEY")
        self.running = self.most_running = 0
        self._lock = asyncio.Lock()
        self._waiting = 0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self.models),
            web.get("/openapi.json", self.openapi),
            web.post("/v1/completions", self.completions),
            web.post("/v1/chat/completions", self.chat),
        ]

    async def models(self, _: web.Request) -> web.Response:
        name = self.flags.model_alias or self.flags.model
        return web.json_response({"object": "list", "data": [{"id": name, "owned_by": "me"}]})

    async def openapi(self, _: web.Request) -> web.Response:
        return web.json_response({"info": {"title": "llama.cpp Python API", "version": "0.3.36"}})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "prompt")

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "messages")

    async def _answer(self, request: web.Request, needed: str) -> web.StreamResponse:
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.json_response({"detail": "Invalid API key"}, status=401)
        body = msgspec.json.decode(await request.read(), type=dict)
        self.bodies.append(body)
        prompt = body[needed]
        if needed == "prompt" and not isinstance(prompt, str):
            message = "3 validation errors:\n  {'type': 'string_type', 'loc': ('body', 'prompt', 'str')}"
            error = {"message": message, "type": "internal_server_error", "param": None, "code": None}
            return web.json_response({"error": error}, status=500)
        async with self.stream(request) as response:
            self._waiting += 1
            async with self._lock:
                self._waiting -= 1
                self.running += 1
                self.most_running = max(self.most_running, self.running)
                try:
                    if self.count(prompt) < self.flags.n_ctx:
                        await self._generate(response, body, prompt)
                finally:
                    self.running -= 1
        return response

    async def _generate(self, response: web.StreamResponse, body: dict, prompt: Prompt) -> None:
        is_chat = not isinstance(prompt, str)
        script = self.script_for(prompt)
        tokens = script.tokens(body["max_tokens"], forced=body.get("min_tokens", 0) >= body["max_tokens"])
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        head = {"id": "c", "object": kind, "created": 1, "model": self.flags.model_alias}
        if is_chat:
            await response.write(event({**head, "choices": [_choice({"delta": {"role": "assistant"}})]}))
        async for group in script.paced(tokens):
            for token in group:
                if self.flags.interrupt_requests and self._waiting:
                    raise ConnectionResetError  # the body breaks off
                if token.text and not token.special:
                    part = {"delta": {"content": token.text}} if is_chat else {"text": token.text}
                    await response.write(event({**head, "choices": [_choice(part)]}))
        part = {"delta": {}} if is_chat else {"text": ""}
        reason = "stop" if ended(tokens) else "length"
        await response.write(event({**head, "choices": [{**_choice(part), "finish_reason": reason}]}) + DONE)


def _choice(part: dict) -> dict[str, Any]:
    return {"index": 0, **part, "logprobs": None, "finish_reason": None}


def main() -> None:
    flags = arguments().parse_args()
    script = msgspec.json.decode(os.environ.get("FAKE_SCRIPT", "{}"), type=Script)
    folder = Path(flags.model).parent
    count = by_tokenizer(folder) if (folder / "tokenizer.json").is_file() else by_words
    serve(FakeLlamaCppPython(script, count=count, flags=flags), int(os.environ.get("PORT", flags.port)))


if __name__ == "__main__":
    main()
