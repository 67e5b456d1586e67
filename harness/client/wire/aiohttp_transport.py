"""A transport on aiohttp: slower, but independent code to compare the raw transport with."""

import asyncio
import time
from types import SimpleNamespace

import aiohttp

from bakeoff.engines import Access
from bakeoff.engines.addresses import ReplicaHeader
from bakeoff.engines.dialects import HttpRequest
from bakeoff.harness.client.wire.transport import CONNECT_S, Ended, StreamLog
from bakeoff.results.records import StreamEnd


class AiohttpTransport:
    """One aiohttp session without limits on connections; stamps each read of its stream reader.

    Args:
        base_url: ``http://host:port`` or ``https://host``, with an optional path prefix.
        access: credentials for every request.
        replica_header: where answers name the replica behind a router.
        connect_s: limit for opening one connection.
    """

    def __init__(
        self,
        base_url: str,
        access: Access = Access(),  # noqa: B008
        replica_header: ReplicaHeader | None = None,
        *,
        connect_s: float = CONNECT_S,
    ) -> None:
        self._connect_s = connect_s
        self._access = access
        self._replica_header = replica_header
        self._base_url = base_url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._tasks: dict[StreamLog, asyncio.Task[None]] = {}

    async def open(self, connections: int, *, growing: bool = False) -> None:  # noqa: ARG002  (aiohttp manages its connections)
        """Create the session."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s),
                trust_env=False, trace_configs=[_dial_stamps()],
            )  # fmt: skip

    def prepare(self, request: HttpRequest, conversation: str = "") -> HttpRequest:  # noqa: ARG002
        """The request itself: aiohttp encodes it when it sends it."""
        return request

    def start(self, prepared: HttpRequest, log: StreamLog, ended: Ended) -> None:
        self._tasks[log] = asyncio.get_running_loop().create_task(self._exchange(prepared, log, ended))

    def drop(self, log: StreamLog) -> None:
        task = self._tasks.pop(log, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Close every connection."""
        for log in list(self._tasks):
            self.drop(log)
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _exchange(self, request: HttpRequest, log: StreamLog, ended: Ended) -> None:
        await self.open(0)
        assert self._session is not None
        log.sent_ns = time.monotonic_ns()
        try:
            url = self._base_url + self._access.path(request.path)
            headers = request.headers | self._access.headers
            async with self._session.post(
                url, data=request.body, headers=headers, trace_request_ctx=log, allow_redirects=False
            ) as response:
                log.status = response.status
                if self._replica_header and (replica := response.headers.get(self._replica_header.name)):
                    log.address = self._replica_header.replica(replica)
                async for data in response.content.iter_any():
                    log.read_ns.append(time.monotonic_ns())
                    log.reads.append(data)
                    log.received_bytes += len(data)
                    if log.received_bytes > log.limit_bytes:
                        response.close()
                        log.end, log.detail = StreamEnd.TOO_LARGE, log.too_large
                        break
                else:
                    log.end = StreamEnd.COMPLETE
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            log.end, log.detail, log.sent_ns = StreamEnd.REFUSED, str(error), None
        except (aiohttp.ClientError, ConnectionError) as error:
            log.end, log.detail = StreamEnd.RESET, str(error) or type(error).__name__
        log.ended_ns = time.monotonic_ns()
        self._tasks.pop(log, None)
        ended(log)


def _dial_stamps() -> aiohttp.TraceConfig:
    """Stamp the opening of a connection, and the send that follows it."""

    async def begins(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
        context.trace_request_ctx.dial_start_ns = time.monotonic_ns()

    async def ends(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
        log: StreamLog = context.trace_request_ctx
        log.dial_end_ns = log.sent_ns = time.monotonic_ns()

    stamps = aiohttp.TraceConfig()
    stamps.on_connection_create_start.append(begins)
    stamps.on_connection_create_end.append(ends)
    return stamps
