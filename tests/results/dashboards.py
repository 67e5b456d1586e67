"""A dashboard on a loopback port, in a thread of its own."""

import asyncio
import contextlib
import http.client
import threading
from collections.abc import Iterator
from pathlib import Path

from aiohttp import web

from bakeoff.results.dashboard import AccessPolicy, access_policy, make_app
from bakeoff.results.dashboard.app import WATCHER
from bakeoff.results.index import Index


class Served:
    """The dashboard's address, and requests that a browser would not send."""

    def __init__(self, port: int, app: web.Application, loop: asyncio.AbstractEventLoop) -> None:
        self.port = port
        self.address = f"http://127.0.0.1:{port}"
        self._app = app
        self._loop = loop

    def settle(self) -> None:
        """Wait until all present runs are folded."""

        async def settled() -> None:
            watcher = self._app[WATCHER]
            await watcher.refresh(wait=True)
            await watcher.all_folded()

        asyncio.run_coroutine_threadsafe(settled(), self._loop).result(60)

    def ask(self, path: str, *, method: str = "GET", **headers: str) -> tuple[int, bytes, http.client.HTTPMessage]:
        """Send one request with the path unchanged, whatever it contains; ``Host`` may be given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True)
            for name, value in {"Host": f"127.0.0.1:{self.port}", **headers}.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.msg
        finally:
            connection.close()


@contextlib.contextmanager
def dashboard(root: Path, access: AccessPolicy | None = None, scan_s: float = 0.0) -> Iterator[Served]:
    """Serve a folder of runs."""
    started: list[Served] = []
    ready, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        app = make_app(Index(root), access or access_policy("127.0.0.1"), scan_s=scan_s)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        started.append(Served(runner.addresses[0][1], app, asyncio.get_running_loop()))
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(30)
        yield started[0]
    finally:
        started[0]._loop.call_soon_threadsafe(stop.set)
        thread.join(30)
