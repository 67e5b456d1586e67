"""The server of Quill, the imaginary engine of docs/adapters.md: the OpenAI format with forced lengths and token ids.

Faults: ``never-ready`` (/health answers 503), ``starve`` (it runs out of memory before it listens), ``starve-later``
(at its first measured answer), ``starve-crowded`` (at its fifth concurrent answer), ``crash`` (it ends before it
listens).
"""

import argparse
import os
import resource
import sys
from typing import Any

import msgspec
from aiohttp import web

from tests.engines.fakes.stage import Fake, Script, event, serve

VERSION = "0.3"
_WARM_REQUESTS = 3
_CROWD = 4


class FakeQuill(Fake):
    """See the module.

    Args:
        name: what requests must call the model.
        version_fields: further fields of /version.
    """

    def __init__(self, script: Script, faults: list[str], name: str, version_fields: dict[str, Any]) -> None:
        super().__init__(script, faults)
        self.name = name
        self.version_fields = version_fields

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.health),
            web.get("/version", self.version),
            web.get("/metrics", self.metrics),
            web.post("/v1/completions", self.answer),
            web.post("/v1/chat/completions", self.answer),
        ]

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if "never-ready" in self.faults else 200)

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": VERSION, **self.version_fields})

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=f"quill_running {self.open}\nquill_waiting 0\n")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read(), type=dict)
        self.bodies.append(body)
        if body["model"] != self.name:
            message = f"the model {body['model']} does not exist"
            return web.json_response({"error": {"message": message, "code": 404}}, status=404)
        if "starve-later" in self.faults and len(self.bodies) > _WARM_REQUESTS:
            starve()
        if "starve-crowded" in self.faults and self.open >= _CROWD:
            starve()
        tokens = self.script.tokens(body["max_tokens"], forced="min_tokens" in body)
        async with self.stream(request) as response:
            async for group in self.script.paced(tokens):
                text = "".join(token.text for token in group)
                content = {"delta": {"content": text}} if "messages" in body else {"text": text}
                ids = [token.id for token in group]
                await response.write(event({"choices": [{"index": 0, **content, "token_ids": ids}]}))
            usage = {"prompt_tokens": None, "completion_tokens": len(tokens)}
            await response.write(event({"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": "length"}]}))
            await response.write(event({"choices": [], "usage": usage}))
            await response.write(event("[DONE]"))
        return response


def starve() -> None:
    """Exceed the memory limit and end, like an engine whose step loop fails."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
    try:
        bytearray(1 << 32)
    except MemoryError:
        sys.stderr.write("MemoryError: a buffer of 4.0 GiB\n")
        sys.stderr.flush()
        os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="quill-server", allow_abbrev=False)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--ink", choices=("black", "blue"))
    parser.add_argument("--dtype", choices=("auto", "bfloat16"))
    parser.add_argument("--slots", type=int)
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--gap-s", type=float, default=0.002)
    options = parser.parse_args()
    print(f"quill {VERSION} loads {options.model}", flush=True)
    if "starve" in options.fault:
        starve()
    if "crash" in options.fault:
        sys.exit("quill: the model is torn: 3 of 5 tensors")
    version_fields = {"ink": options.ink, "slots": options.slots}
    fake = FakeQuill(Script(options.gap_s, options.gap_s), options.fault, options.name, version_fields)
    serve(fake, int(options.listen.rpartition(":")[2]))


if __name__ == "__main__":
    main()
