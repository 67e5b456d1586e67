"""An OpenAI server on the loopback, in a thread of its own, for scripts that note what clients send."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class LoopbackServer:
    """Serves ``/v1/models`` and what it is given, until the process ends.

    Args:
        posts: handler of each path.

    Attributes:
        url: of the server.
    """

    def __init__(self, posts: dict[str, Handler]) -> None:
        self.url = ""
        self._posts = posts
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()
        self._ready.wait()

    def _run(self) -> None:
        async def serve() -> None:
            app = web.Application(client_max_size=1 << 24)
            app.router.add_get("/v1/models", self._models)
            for path, handler in self._posts.items():
                app.router.add_post(path, handler)
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            self._ready.set()

        self._loop.run_until_complete(serve())
        self._loop.run_forever()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "timed", "object": "model"}]})
