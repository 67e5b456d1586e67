"""A running engine, and requests to it that are not load."""

import asyncio
import signal
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import aiohttp
import msgspec

from bakeoff.engines import memory
from bakeoff.engines.access import Access
from bakeoff.engines.dialects.failures import UNREADABLE
from bakeoff.engines.endpoint import endpoint
from bakeoff.engines.errors import EngineDied, NotReady, OutOfMemory
from bakeoff.engines.secrets import masked
from bakeoff.engines.tail import status_text, tail

LOG_TAIL_LINES = 20
_CAUSE_LINES = 200
"""The cause can be well above the last lines, because each process of an engine adds a traceback."""
_KILLED = 128 + signal.SIGKILL
_ASK_S = 10.0
_CONNECT_S = 10.0


class Server:
    """A running engine: started by :func:`bakeoff.engines.launcher.launched`, or attached to.

    Attributes:
        base_url: ``http://127.0.0.1:port``, without a trailing slash.
        access: credentials of requests.
        pid: of the engine's first process; None if it was not started here or runs elsewhere.
        start_s: seconds from launch to ready; None if it was not started here.
    """

    def __init__(self, base_url: str, access: Access = Access(), *, pid: int | None = None) -> None:  # noqa: B008
        self.base_url = base_url
        self.access = access
        self.pid = pid
        self.start_s: float | None = None
        self.exit_status: int | None = None
        """Exit status if the engine ended unexpectedly; negative if a signal ended its guard."""
        self.starved = False
        """Whether the kernel killed a process for lack of memory while the engine ran."""
        self.ended: asyncio.Event = asyncio.Event()
        """Set together with ``exit_status``."""
        self.log: Path | None = None

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> list[str]:
        """The last lines of the engine's output; empty if it was not started here."""
        return tail(self.log, lines) if self.log else []

    def died(self) -> EngineDied | None:
        """The error to raise if the engine's process has ended, else None."""
        if self.exit_status is None:
            return None
        if self.exit_status < 0:
            how = status_text(self.exit_status)
            return EngineDied(f"the engine's guard was killed by {how}, and the engine with it", self.log_tail())
        return self.out_of_memory() or EngineDied(
            f"the engine's process ended by itself ({status_text(self.exit_status)})", self.log_tail()
        )

    def out_of_memory(self) -> OutOfMemory | None:
        """The error to raise if the engine ran out of memory, according to its log or the kernel; else None."""
        error_line = memory.error_line(self.log_tail(_CAUSE_LINES)) if self.exit_status else None
        by_kernel = self.starved and self.exit_status == _KILLED
        if not (error_line or by_kernel):
            return None
        reason = error_line or "killed by the kernel"
        how = status_text(self.exit_status or 0)
        return OutOfMemory(f"the engine ran out of memory ({how}): {reason}; {memory.REMEDY}", self.log_tail())

    def file(self, name: str) -> Path | None:
        """Path of ``{file:NAME}`` in the launch; None if the engine was not started here."""
        return file_beside(self.log, name) if self.log else None

    async def get_json(self, path: str) -> Any:  # noqa: ANN401  (any JSON value)
        """GET ``path`` as JSON; None if the page is missing or not JSON."""
        status, body = await self.ask("GET", path)
        try:
            return msgspec.json.decode(body) if status == 200 else None
        except UNREADABLE:
            return None

    async def post(self, path: str, body: object = None) -> bool:
        """POST to ``path``; whether the engine answered 200."""
        return (await self.ask("POST", path, body))[0] == 200

    async def ask(self, method: str, path: str, body: object = None, *, timeout_s: float = _ASK_S) -> tuple[int, bytes]:
        """Status and body of one request outside the load; status 0 without an answer."""
        limit = aiohttp.ClientTimeout(total=timeout_s)
        url = self.base_url + self.access.path(path)
        try:
            async with (
                aiohttp.ClientSession(headers=self.access.headers, timeout=limit) as session,
                session.request(method, url, json=body, allow_redirects=False) as answer,
            ):
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:  # the trial reports the failure
            return 0, masked(str(error)).encode()


def redirection(answer: aiohttp.ClientResponse) -> str | None:
    """The address that an answer redirects to, without its query; None if it does not redirect.

    Requests do not follow it: they carry the user's headers, which are meant for the origin that the user gave.
    """
    place = answer.headers.get("location")
    if not 300 <= answer.status < 400 or not place:
        return None
    target = urljoin(str(answer.url), "".join(char for char in place if char.isprintable()))
    return target.partition("#")[0].partition("?")[0]


def file_beside(log: Path, name: str) -> Path:
    """Path of ``{file:NAME}`` in a launch whose output goes to ``log``."""
    return log.with_name(f"{log.stem}-{name}")


def attached(base_url: str, access: Access = Access()) -> Server:  # noqa: B008
    """A running server that was not launched here."""
    return Server(base_url, access)


def reason_of(error: Exception) -> str:
    """Why a connection failed, in one line; what to do, where a certificate is the reason."""
    cause = getattr(error, "certificate_error", error)  # aiohttp's error holds that of the certificate
    if isinstance(cause, ssl.SSLCertVerificationError):
        trust = "name the file of its authority in SSL_CERT_FILE"
        return f"the server's certificate is not trusted ({cause.verify_message}); {trust}"
    return str(error) or type(error).__name__


async def require_listener(url: str) -> None:
    """Connect to the address of ``url`` once.

    Raises:
        NotReady: nothing listens there.
    """
    address = endpoint(url)
    try:
        connection = await asyncio.to_thread(socket.create_connection, (address.host, address.port), _CONNECT_S)
    except OSError as error:
        reason = error.strerror or str(error)
        raise NotReady(f"{url} cannot be reached: {reason}; start the server or correct the address") from error
    connection.close()
