"""The HTTP server: routes, start and orderly stop. The port opens at once, while the model loads in the background."""

import asyncio
import contextlib
import dataclasses
import errno
import gc
import importlib.metadata
import logging
import signal
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from bakeoff.reference_engine.errors import PortInUseError, UserMistakeError
from bakeoff.reference_engine.serving.openai_api.access import access_check
from bakeoff.reference_engine.serving.openai_api.answers import encode
from bakeoff.reference_engine.serving.openai_api.failures import errors_as_json, unknown_model
from bakeoff.reference_engine.serving.openai_api.generation import GenerationRoutes
from bakeoff.reference_engine.serving.openai_api.openapi import document
from bakeoff.reference_engine.serving.service import Service, Status

_log = logging.getLogger(__name__)

_SHUTDOWN_S = 0.5  # seconds that open connections get for their last bytes
# Threads that tokenise, render and compile. They wait for each other in the one arena of malloc (`share_one_arena`):
# a prompt of 512 tokens costs a single thread 1.4 ms of CPU, but 4.3 ms in each of twenty threads, on two cores.
_THREADS = 2


class StatusRoutes:
    """The handlers that generate no tokens.

    Args:
        service: that they report on and control.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self, _: web.Request) -> web.Response:
        """200 when requests are served, 503 with the reason otherwise. Empty body when well, like vLLM."""
        self._service.ready()
        return web.Response()

    async def version(self, _: web.Request) -> web.Response:
        """Versions and every setting; once loaded, with nothing left to decide."""
        answer: dict[str, object] = {
            "version": engine_version(),
            "status": self._service.status.value,
            "config": dataclasses.asdict(self._service.config),
        }
        if self._service.status is Status.READY:
            facts = self._service.ready().facts
            answer |= {"torch": facts.torch_version, "dtype": facts.config.dtype, "device": facts.config.device}
        return _json(answer)

    async def server_info(self, _: web.Request) -> web.Response:
        """How each engine process is built and how it stands: what vLLM's route of this name is for."""
        serving = self._service.ready()
        replicas = [
            {"facts": replica.facts.result(), "open_sequences": replica.num_open, "latest_step": replica.last}
            for replica in serving.engines.replicas
        ]
        return _json({"version": engine_version(), "status": self._service.status.value, "replicas": replicas})

    async def start_profile(self, _: web.Request) -> web.Response:
        """Records what the step loops do until POST /stop_profile, as in vLLM; needs --profile-dir."""
        return _json({"directories": await self._service.ready().engines.start_profile()})

    async def stop_profile(self, _: web.Request) -> web.Response:
        """Writes the traces; the answer says where, when they are there."""
        return _json({"traces": await self._service.ready().engines.stop_profile()})

    async def start_step_log(self, _: web.Request) -> web.Response:
        """Records the times of steps and requests until POST /stop_step_log; needs --step-log-dir."""
        engines = self._service.ready().engines
        front_end = self._service.front_end_log.start()
        try:
            return _json({"files": [front_end, *await engines.start_step_log()]})
        except BaseException:
            self._service.front_end_log.stop()
            raise

    async def stop_step_log(self, _: web.Request) -> web.Response:
        """Ends the record; the answer says where it lies, when it is there."""
        front_end = self._service.front_end_log.stop()
        return _json({"files": [front_end, *await self._service.ready().engines.stop_step_log()]})

    async def models(self, _: web.Request) -> web.Response:
        """The one model, in OpenAI's list shape."""
        return _json({"object": "list", "data": [self._entry()]})

    async def model(self, http: web.Request) -> web.Response:
        """The model of this name."""
        name = http.match_info["name"]
        if name != self._service.config.model_name:
            raise unknown_model(name, self._service.config.model_name)
        return _json(self._entry())

    def _entry(self) -> dict[str, object]:
        config = self._service.config
        return {
            "id": config.model_name,
            "object": "model",
            "created": self._service.created_s,
            "owned_by": "reference_engine",
            "root": config.model,
            "max_model_len": config.max_model_len,
        }

    async def reset_prefix_cache(self, _: web.Request) -> web.Response:
        """Forgets all cached prompts, as in vLLM: requests sent after the answer find none of them."""
        self._service.ready().engines.reset_prefix_cache()
        return _json({})

    async def openapi(self, http: web.Request) -> web.Response:
        """This description, in OpenAPI 3.1."""
        return _json(document(http.app.router, engine_version()))

    async def metrics(self, _: web.Request) -> web.Response:
        """Prometheus text format."""
        return web.Response(
            body=self._service.metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )


def engine_version() -> str:
    """Version of the distribution that contains this package; "unknown" in a checkout that is not installed."""
    try:
        return importlib.metadata.version("bakeoff")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _json(value: object) -> web.Response:
    return web.Response(body=encode(value), content_type="application/json")


def make_app(service: Service, api_key: str | None = None) -> web.Application:
    """The routes of one service, which the caller loads and stops; see `access_check` for the key."""
    app = web.Application(middlewares=[errors_as_json, access_check(service.config.host, api_key)])
    status, generation = StatusRoutes(service), GenerationRoutes(service)
    app.router.add_get("/health", status.health)
    app.router.add_get("/version", status.version)
    app.router.add_get("/metrics", status.metrics)
    app.router.add_get("/openapi.json", status.openapi)
    app.router.add_post("/reset_prefix_cache", status.reset_prefix_cache)
    app.router.add_post("/start_profile", status.start_profile)
    app.router.add_post("/stop_profile", status.stop_profile)
    app.router.add_post("/start_step_log", status.start_step_log)
    app.router.add_post("/stop_step_log", status.stop_step_log)
    app.router.add_get("/server_info", status.server_info)
    app.router.add_get("/v1/models", status.models)
    app.router.add_get("/v1/models/{name:.+}", status.model)
    app.router.add_post("/v1/completions", generation.completions)
    app.router.add_post("/v1/chat/completions", generation.chat)
    return app


async def serve(service: Service, api_key: str | None = None) -> None:
    """Serves until SIGINT, until SIGTERM, after which open requests may end, or until loading fails.

    Args:
        service: the model.
        api_key: that requests must carry; None for none.

    Raises:
        PortInUseError: the address is in use.
        UserMistakeError: the address cannot be used, or the model or the settings are at fault.
    """
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "worker"))
    # handler_cancellation: when a client disconnects, its blocks must be freed at once.
    app = make_app(service, api_key)
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S, auto_decompress=False
    )
    await runner.setup()
    try:
        await _open_port(runner, service)
        await _load_then_wait(service)
    finally:
        await service.stop()
        await runner.cleanup()


async def _open_port(runner: web.AppRunner, service: Service) -> None:
    host, port = service.config.host, service.config.port
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(f"{host}:{port} is in use; choose another --port (0 takes a free one)") from error
        raise UserMistakeError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    _log.info("listening on http://%s:%s, loading %s", host, runner.addresses[0][1], service.config.model)


async def _load_then_wait(service: Service) -> None:
    """Waits for a signal: the first SIGTERM drains; SIGINT or a second SIGTERM ends at once."""
    stop, drain = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGTERM, lambda: stop.set() if drain.is_set() else drain.set())
    stopping = asyncio.ensure_future(_first(drain.wait(), stop.wait()))
    loading = asyncio.ensure_future(service.load())
    await _first(stopping, loading)
    if loading.done():
        loading.result()
        gc.collect()
        gc.freeze()  # loaded objects would delay every later full collection by about 40 ms
        await stopping
        if not stop.is_set():
            _log.info("draining: no more requests are taken")
            await _first(service.drain(), stop.wait())
    else:
        loading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loading
    _log.info("stopping")


async def _first(*awaitables: Awaitable[object]) -> None:
    """Waits for the first of several and cancels the others, except those that were futures already."""
    futures = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for future, awaitable in zip(futures, awaitables, strict=True):
        if future is not awaitable:
            future.cancel()
