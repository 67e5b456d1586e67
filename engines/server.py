"""An engine that answers, and how it is asked what is not load."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from engines import memory
from engines.access import Access
from engines.errors import EngineDied, OutOfMemory
from engines.secrets import masked
from engines.tail import status_text, tail

LOG_TAIL_LINES = 20
_CAUSE_LINES = 200
"""The reason of an end may stand well above the last lines: each process of an engine adds its own traceback."""
_KILLED = 128 + signal.SIGKILL
_ASK_S = 10.0


class Server:
    """An engine that answers: started by :func:`engines.launcher.launched`, or running already (:func:`attached`).

    Attributes:
        base_url: ``http://127.0.0.1:port``, without a trailing slash.
        access: what requests must carry.
        pid: of the engine's first process; None when it is not ours, or runs elsewhere.
        start_s: from launch to ready; None when it is not ours.
    """

    def __init__(self, base_url: str, access: Access = Access(), *, pid: int | None = None) -> None:  # noqa: B008
        self.base_url = base_url
        self.access = access
        self.pid = pid
        self.start_s: float | None = None
        self.exit_status: int | None = None
        """Set when the engine's process has ended while it should run; negative when a signal ended its guard."""
        self.starved = False
        """Whether the kernel killed something for lack of memory meanwhile."""
        self.ended = asyncio.Event()
        """Set together with ``exit_status``."""
        self.log: Path | None = None

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> list[str]:
        """The last lines of the engine's output; empty when the engine is not ours."""
        return tail(self.log, lines) if self.log else []

    def died(self) -> EngineDied | None:
        """The error to raise when the engine's process has ended, else None."""
        if self.exit_status is None:
            return None
        if self.exit_status < 0:
            how = status_text(self.exit_status)
            return EngineDied(f"the engine's guard was ended by {how}, and the engine with it", self.log_tail())
        return self.out_of_memory() or EngineDied(
            f"the engine's process ended by itself ({status_text(self.exit_status)})", self.log_tail()
        )

    def out_of_memory(self) -> OutOfMemory | None:
        """The error to raise when it ended for lack of memory: because it said so, or the kernel did it."""
        said = memory.complaint(self.log_tail(_CAUSE_LINES)) if self.exit_status else None
        by_kernel = self.starved and self.exit_status == _KILLED
        if not (said or by_kernel):
            return None
        reason = said or "killed by the kernel"
        how = status_text(self.exit_status or 0)
        return OutOfMemory(f"the engine ran out of memory ({how}): {reason}; {memory.REMEDY}", self.log_tail())

    async def get_json(self, path: str) -> Any:  # noqa: ANN401  (whatever the engine says)
        """What the engine says of itself at ``path``; None where it has no such page, or none in JSON."""
        status, body = await self.ask("GET", path)
        try:
            return msgspec.json.decode(body) if status == 200 else None
        except msgspec.MsgspecError:
            return None

    async def post(self, path: str, body: object = None) -> bool:
        """Whether the engine does what a POST to ``path`` asks of it."""
        return (await self.ask("POST", path, body))[0] == 200

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Status and body of one exchange that is no load; status 0 when there was no answer."""
        limit = aiohttp.ClientTimeout(total=_ASK_S)
        url = self.base_url + self.access.path(path)
        try:
            async with (
                aiohttp.ClientSession(headers=self.access.headers, timeout=limit) as session,
                session.request(method, url, json=body) as answer,
            ):
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:  # what is wrong with it shows in the trial
            return 0, masked(str(error)).encode()


def attached(base_url: str, access: Access = Access()) -> Server:  # noqa: B008
    """A server that somebody else runs."""
    return Server(base_url, access)
