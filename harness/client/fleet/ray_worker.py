"""A client worker on another machine, reached through Ray.

Ray places and starts the worker and transfers files; it is never on the timed path. Between
:class:`~bakeoff.harness.client.wire.orders.Go` and :class:`~bakeoff.harness.client.wire.orders.Done` its only call
waits for the worker's next line.
"""

import asyncio
import contextlib
import ipaddress
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from bakeoff.engines.endpoint import endpoint
from bakeoff.harness.client.fleet.clock_offset import measured, spanning
from bakeoff.harness.client.fleet.forwarder import CHUNK_BYTES
from bakeoff.harness.client.fleet.machine import Machine
from bakeoff.harness.client.fleet.worker_host import WorkerClock
from bakeoff.harness.client.wire.orders import ClockTime, Order, Prepare, ReadClock, Ready, Reply
from bakeoff.harness.errors import ClientFailed, WorkerLost
from bakeoff.harness.host.environment import VERSION
from bakeoff.results.files.frames import FrameAppender, FrameLog
from bakeoff.results.records import StreamRecord

_FLUSH_EVERY = 256
_RENEW_S = 20.0

Untyped: TypeAlias = Any
"""Handles and references of Ray, and their results."""


class Description(msgspec.Struct, frozen=True):
    """The worker's process and machine; see :meth:`bakeoff.harness.client.fleet.forwarder.Forwarder.describe`."""

    version: str
    machine: Machine
    pid: int
    folder: str


class RayWorker:
    """A :class:`~bakeoff.harness.client.fleet.worker_host.WorkerHost` on a Ray node; see :meth:`connected`.

    Args:
        start: starts another :class:`~bakeoff.harness.client.fleet.forwarder.Forwarder` in place of the given one, if
            there is one, and returns its handle.
        forwarder: handle of a running one.
        description: its reply to ``describe``.
        measure_always: whether to measure the offset of its clock even if it is ours.

    Attributes:
        forwarder: the current one.
    """

    def __init__(
        self, start: Callable[[Untyped], Untyped], forwarder: Untyped, description: Description, *, measure_always: bool
    ) -> None:
        self._start = start
        self._measure_always = measure_always
        self._decode = msgspec.json.Decoder(Reply).decode
        self._enter(forwarder, description)

    def _enter(self, forwarder: Untyped, description: Description) -> None:
        """Use a forwarder from now on."""
        here = Machine.here()
        self.forwarder, self._description = forwarder, description
        self._measure_clock = self._measure_always or not description.machine.shares_clock(here)
        self._shares_loopback = description.machine.shares_loopback(here)
        self._next: asyncio.Future[bytes] | None = None
        self._is_lost = False
        self.host: str = description.machine.host
        self.pid: int | None = description.pid if description.machine.shares_pids(here) else None
        self.clock: WorkerClock = WorkerClock()

    @classmethod
    async def connected(cls, start: Callable[[Untyped], Untyped], *, measure_always: bool = False) -> "RayWorker":
        """Wait until the worker runs, check its version, and measure its clock unless it is ours.

        Raises:
            ClientFailed: it did not start, or runs another version of this package.
        """
        forwarder = start(None)
        try:
            plain = await called(forwarder.describe.remote(), "a Ray node")
        except ClientFailed as error:
            raise ClientFailed(f"{error}; the same bakeoff must be installed on every node") from error
        _require_version(plain)
        worker = cls(start, forwarder, msgspec.convert(plain, Description), measure_always=measure_always)
        await worker._set_clock()
        return worker

    async def renew(self) -> None:
        """Start another worker in place of a lost one, on any node that has a CPU for it.

        Raises:
            WorkerLost: no node has one.
        """
        if not self._is_lost:
            return
        forwarder = self._start(self.forwarder)
        try:
            async with asyncio.timeout(_RENEW_S):
                plain = await called(forwarder.describe.remote(), "a Ray node")
        except TimeoutError as error:
            import ray  # noqa: PLC0415  (optional dependency; present if there is a forwarder)

            ray.kill(forwarder)  # else it would take the first CPU that comes free
            raise WorkerLost(f"no node has a CPU for another worker in place of the one on {self.host}") from error
        _require_version(plain)
        self._enter(forwarder, msgspec.convert(plain, Description))
        await self._set_clock()

    async def _set_clock(self) -> None:
        if self._measure_clock:
            self.clock = await measured(self._read_clock)

    async def send(self, order: Order) -> None:
        """Send an order over the node's actor.

        Raises:
            ClientFailed: the node is gone, or cannot reach the engine.
        """
        if isinstance(order, Prepare) and not self._shares_loopback:
            for url in filter(_is_loopback, (target.base_url for target in order.targets)):
                raise ClientFailed(
                    f"the client worker on {self.host} cannot reach {url}, which is only on this machine; "
                    "start the engine where every node reaches it and give its url in the engine's options"
                )
        await self._call("send", msgspec.json.encode(order) + b"\n")

    async def reply(self) -> Reply:
        """The worker's next reply; measures its clock when it is ready."""
        reply = await self._reply()
        if isinstance(reply, Ready):
            await self._set_clock()
        return reply

    async def _reply(self) -> Reply:
        if self._next is None:
            self._next = asyncio.ensure_future(self._call("reply"))
            self._next.add_done_callback(_mark_retrieved)
        line = await asyncio.shield(self._next)  # if this caller is cancelled, the next one gets the line
        self._next = None
        if not line:
            message = await self._call("exit_message")
            self._is_lost = True
            raise WorkerLost(f"the client worker on {self.host} {message}")
        return self._decode(line)

    async def stage(self, path: Path) -> str:
        """Copy the file to the node."""
        with path.open("rb") as file:
            offset = 0
            while piece := file.read(CHUNK_BYTES):
                await self._call("write", path.name, offset, piece)
                offset += len(piece)
            if not offset:
                await self._call("write", path.name, 0, b"")
        return self.remote_path(path)

    def remote_path(self, path: Path) -> str:
        """A path in the node's temporary folder."""
        return f"{self._description.folder}/{path.name}"

    async def collect(self, path: Path) -> None:
        """Copy the log here with the clock's offset subtracted, and delete it on the node.

        Measures the clock again first, so that offset and uncertainty hold for the whole load.
        """
        if self._measure_clock:
            with contextlib.suppress(ClientFailed):  # the worker is gone: keep the measurement from before the load
                self.clock = spanning(self.clock, await measured(self._read_clock))
        with tempfile.TemporaryDirectory(prefix="bakeoff-") as scratch:
            raw = Path(scratch) / path.name
            if await self._fetched(raw):
                await asyncio.to_thread(copy_shifted, raw, path, self.clock.offset_ns)
        await self._call("remove", path.name)

    async def decode(self, setup: bytes, frames: bytes) -> bytes | None:
        try:
            return await self._call("decode", setup, frames)
        except WorkerLost:
            return None

    async def _fetched(self, path: Path) -> bool:
        """Copy the node's file of this name here; returns whether it has any bytes."""
        with path.open("wb") as file:
            while piece := await self._call("read", path.name, file.tell()):
                file.write(piece)
            return file.tell() > 0

    async def _read_clock(self) -> int:
        line = await self._call("call", msgspec.json.encode(ReadClock()) + b"\n")
        reply = self._decode(line) if line else None
        if not isinstance(reply, ClockTime):
            raise ClientFailed(f"the client worker on {self.host} does not report its clock")
        return reply.now_ns

    async def _call(self, method: str, *arguments: object) -> Untyped:
        try:
            return await called(getattr(self.forwarder, method).remote(*arguments), self.host)
        except WorkerLost:
            self._is_lost = True
            raise


async def called(reference: Untyped, host: str) -> Untyped:
    """The result of a Ray call.

    Raises:
        WorkerLost: the node, its actor or the call failed.
    """
    from ray.exceptions import RayError  # noqa: PLC0415  (optional dependency; present if there is a reference)

    try:
        return await reference
    except RayError as error:
        cause: BaseException = getattr(error, "cause", None) or error
        message = next(iter(str(cause).strip().splitlines()), "")
        raise WorkerLost(f"the client worker on {host} is lost: {type(cause).__name__}: {message}") from error


def _require_version(plain: Untyped) -> None:
    """Refuse a node's description by another version of this package."""
    if plain["version"] != VERSION:
        raise ClientFailed(
            f"bakeoff is {plain['version']} on {plain['machine']['host']} and {VERSION} here; "
            "install the same version on every node"
        )


def copy_shifted(source: Path, target: Path, offset_ns: int) -> None:
    """Append one stream log to another, ``offset_ns`` subtracted from every time, without a torn last record."""
    with FrameAppender(target) as log:
        for number, record in enumerate(FrameLog(source, StreamRecord)):
            log.append(shifted(record, offset_ns))
            if number % _FLUSH_EVERY == 0:
                log.flush()


def shifted(record: StreamRecord, offset_ns: int) -> StreamRecord:
    """The record with ``offset_ns`` subtracted from every time."""
    moved = {
        name: None if at_ns is None else at_ns - offset_ns
        for name in ("planned_ns", "due_ns", "dial_start_ns", "dial_end_ns", "sent_ns", "ended_ns")
        for at_ns in (getattr(record, name),)
    }
    return msgspec.structs.replace(record, read_ns=[read_ns - offset_ns for read_ns in record.read_ns], **moved)


def _mark_retrieved(reply: asyncio.Future[bytes]) -> None:
    """Keep asyncio from warning of an exception that nobody awaits because the load was aborted."""
    if not reply.cancelled():
        reply.exception()


def _is_loopback(url: str) -> bool:
    host = endpoint(url).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
