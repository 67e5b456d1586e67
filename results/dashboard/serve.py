"""Serve the dashboard until it is stopped."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from aiohttp import web

from results.dashboard.app import make_app
from results.dashboard.doors import Doors
from results.errors import NotServed
from results.index import Index


async def serve(root: Path, doors: Doors, port: int, *, ready: Callable[[str], None], rebuild: bool = False) -> None:
    """Listen until SIGINT or SIGTERM.

    Args:
        root: folder of runs.
        doors: who is let in, and the address.
        port: 0 for a free one.
        ready: is told the address to open, with the token where one is needed.
        rebuild: make the index anew.

    Raises:
        RunNotFound: there is no such folder.
        NotServed: the port is taken, or not ours.
    """
    index = Index(root)
    if rebuild:
        index.forget()
    runner = web.AppRunner(make_app(index, doors), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, doors.host, port)
        try:
            await site.start()
        except OSError as error:
            raise NotServed(f"cannot listen on {doors.host}:{port}: {error.strerror}; choose another --port") from error
        ready(_address(runner, doors))
        await _stopped()
    finally:
        await runner.cleanup()


def _address(runner: web.AppRunner, doors: Doors) -> str:
    port = runner.addresses[0][1]
    host = f"[{doors.host}]" if ":" in doors.host else doors.host
    return f"http://{host}:{port}/" + (f"?token={quote(doors.token)}" if doors.token else "")


async def _stopped() -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    await told.wait()
