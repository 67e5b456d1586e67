"""A fake of Triton with TensorRT-LLM's models, the ensemble and the LLM API's; also as the program ``tritonserver``.

Faults: ``break`` breaks the connection after the first event, ``empty`` closes it without an event, ``error`` sends an
error in the stream, ``coupled`` is a model that cannot stream, ``full`` refuses before inference.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.engines.fakes.stage import Fake, Script, event, running

_HEAD = {"model_version": "1", "sequence_end": False, "sequence_id": 0, "sequence_index": 0, "sequence_start": False}


class TritonFake(Fake):
    """The server; its repository holds ``ensemble`` and, in the LLM API's fields, ``tensorrt_llm``."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v2/health/ready", self._ready),
            web.get("/v2/health/live", self._ready),
            web.get("/v2", self._about),
            web.get("/v2/models/{model}/config", self._config),
            web.post("/v2/models/{model}/generate_stream", self._generate),
        ]

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _about(self, _: web.Request) -> web.Response:
        return web.json_response({"name": "triton", "version": "2.62.0", "extensions": ["generate"]})

    async def _config(self, request: web.Request) -> web.Response:
        return web.json_response({"name": request.match_info["model"], "max_batch_size": 64})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        model = request.match_info["model"]
        if model not in {"ensemble", "tensorrt_llm_bls", "tensorrt_llm"}:
            return _error(f"Request for unknown model: '{model}' is not found")
        body = await request.json()
        self.bodies.append(body)
        is_llm_api = model == "tensorrt_llm"
        limit = "sampling_param_max_tokens" if is_llm_api else "max_tokens"
        if "text_input" not in body or limit not in body:
            return _error(f"[request id: <id_unknown>] expected input '{limit}' or 'text_input' is missing")
        if "full" in self.faults:
            return _error("[request id: <id_unknown>] Exceeds maximum queue size")
        async with self.stream(request) as response:
            async for answer in self._events(model, body, is_llm_api=is_llm_api):
                await response.write(event(answer if "error" in answer else {"model_name": model, **_HEAD, **answer}))
                if "break" in self.faults:
                    assert request.transport is not None
                    request.transport.abort()
                    raise ConnectionResetError
        return response

    async def _events(self, model: str, body: dict[str, Any], *, is_llm_api: bool) -> Any:
        if "coupled" in self.faults:
            yield {"error": "Streaming is only supported in decoupled mode."}
            return
        if "empty" in self.faults:
            return
        excluding = "sampling_param_exclude_input_from_output" if is_llm_api else "exclude_input_in_output"
        before = "" if body.get(excluding) else body["text_input"]
        wanted = body["sampling_param_max_tokens" if is_llm_api else "max_tokens"]
        tokens = self.script.tokens(wanted, forced=not is_llm_api and body.get("end_id") == -1)
        left, whole = len(tokens), ""
        async for group in self.script.paced(tokens):
            text = before + "".join("" if token.special else token.text for token in group)
            before, whole, left = "", whole + text, left - len(group)
            if not is_llm_api:
                yield {"text_output": text}
            elif body.get("return_finish_reason"):
                reason = "None" if left else "stop" if group[-1].special else "length"
                yield {"text_output": whole, "finish_reason": reason}
            else:
                yield {"text_output": whole}
            if "error" in self.faults:
                yield {"error": "the executor is gone"}
                return


class TritonMetrics(Fake):
    """The metrics page, on a separate port."""

    def __init__(self, server: TritonFake) -> None:
        super().__init__()
        self._server = server
        self.reads = 0

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self._metrics)]

    async def _metrics(self, _: web.Request) -> web.Response:
        self.reads += 1
        return web.Response(text=metrics_page(scheduled=self._server.open))


def metrics_page(*, scheduled: int = 0, waiting: int = 0, fraction: float = 0.0) -> str:
    """Gauges of one model."""
    families = {
        "nv_trt_llm_request_metrics": {
            "request_type": {
                "waiting": waiting, "context": 0, "scheduled": scheduled, "max": 64, "active": scheduled + waiting
            }
        },
        "nv_trt_llm_kv_cache_block_metrics": {
            "kv_cache_block_type": {"fraction": fraction, "tokens_per": 32, "used": 0, "free": 100, "max": 100}
        },
    }  # fmt: skip
    lines: list[str] = []
    for family, labels in families.items():
        lines += [f"# HELP {family} TRT LLM metrics", f"# TYPE {family} gauge"]
        for label, values in labels.items():
            lines += [
                f'{family}{{{label}="{name}",model="tensorrt_llm",version="1"}} {values[name]}' for name in values
            ]
    return "\n".join(lines) + "\n"


def _error(message: str) -> web.Response:
    return web.json_response({"error": message}, status=400)


def main(argv: Sequence[str]) -> None:
    """``tritonserver``: check every flag, print the result, serve requests and metrics."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model-repository", required=True)
    parser.add_argument("--http-address", default="0.0.0.0", choices=("127.0.0.1",))
    for name in ("http-port", "metrics-port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--allow-grpc", choices=("true", "false"), default="true")
    flags = vars(parser.parse_args(list(argv)))
    if not Path(flags["model_repository"]).is_dir():
        sys.exit(f"failed to stat file {flags['model_repository']}")
    print(json.dumps(flags), flush=True)

    async def serve_both() -> None:
        done = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, done.set)
        fake = TritonFake(Script(gap_s=0.002))
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(running(TritonMetrics(fake), flags["metrics_port"]))
            await stack.enter_async_context(running(fake, flags["http_port"]))
            await done.wait()

    asyncio.run(serve_both())


if __name__ == "__main__":
    main(sys.argv[1:])
