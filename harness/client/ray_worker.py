"""A client worker on another machine, reached through Ray.

Ray places, starts and collects; it is never on the timed path. Between :class:`~harness.client.orders.Go` and
:class:`~harness.client.orders.Done` the one call under way waits for the worker's next line.
"""

import asyncio
import contextlib
import ipaddress
import tempfile
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec

from harness.client.clock_offset import measured, spanning
from harness.client.machine import Machine
from harness.client.orders import Answer, AskClock, Order, Prepare, Ready, TellClock
from harness.client.relay import CHUNK_BYTES
from harness.client.station import WorkerClock
from harness.errors import ClientFailed
from harness.host.environment import VERSION
from results.frames import FrameAppender, FrameLog
from results.records import StreamRecord

_FLUSH_EVERY = 256

Untyped: TypeAlias = Any
"""What Ray makes: handles, references and their results."""


class Hello(msgspec.Struct, frozen=True):
    """What a relay says of itself; see :meth:`harness.client.relay.Relay.hello`."""

    version: str
    machine: Machine
    pid: int
    folder: str


class RayWorker:
    """See :class:`~harness.client.station.Station`; made by :meth:`greeted`.

    Args:
        relay: handle of a running :class:`~harness.client.relay.Relay`.
        hello: what it said.
        measure_clock: whether its clock must be compared with ours, because it is not the same one.
    """

    def __init__(self, relay: Untyped, hello: Hello, *, measure_clock: bool) -> None:
        self._relay = relay
        self._hello = hello
        self._measure_clock = measure_clock
        self._shares_loopback = hello.machine.shares_loopback(Machine.here())
        self._decode = msgspec.json.Decoder(Answer).decode
        self._next: asyncio.Future[bytes] | None = None
        self.host = hello.machine.host
        self.pid: int | None = hello.pid if hello.machine.shares_pids(Machine.here()) else None
        self.clock = WorkerClock()

    @classmethod
    async def greeted(cls, relay: Untyped, *, measure_always: bool = False) -> "RayWorker":
        """Wait until the worker runs, check that it is ours, and compare clocks where there are two.

        Raises:
            ClientFailed: it did not start, or runs another version of this package.
        """
        try:
            said = await called(relay.hello.remote(), "a Ray node")
        except ClientFailed as error:
            raise ClientFailed(f"{error}; the same bakeoff must be installed on every node") from error
        if said["version"] != VERSION:
            raise ClientFailed(
                f"bakeoff is {said['version']} on {said['machine']['host']} and {VERSION} here; "
                "install the same version on every node"
            )
        hello = msgspec.convert(said, Hello)
        shared = hello.machine.shares_clock(Machine.here())
        worker = cls(relay, hello, measure_clock=measure_always or not shared)
        if worker._measure_clock:
            worker.clock = await measured(worker._ask_clock)
        return worker

    async def send(self, order: Order) -> None:
        """See :class:`~harness.client.station.Station`.

        Raises:
            ClientFailed: the node is gone, or cannot reach the engine.
        """
        if isinstance(order, Prepare) and not self._shares_loopback and _is_loopback(order.base_url):
            raise ClientFailed(
                f"the client worker on {self.host} cannot reach {order.base_url}, which is only on this machine; "
                "start the engine where every node reaches it and give its url in the engine's options"
            )
        await self._call("send", msgspec.json.encode(order) + b"\n")

    async def answer(self) -> Answer:
        """See :class:`~harness.client.station.Station`; a worker that is ready has its clock measured at once."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._call("answer"))
            self._next.add_done_callback(_seen)
        line = await asyncio.shield(self._next)  # a caller that gives up leaves the line to the next one
        self._next = None
        if not line:
            words = await self._call("last_words")
            raise ClientFailed(f"the client worker on {self.host} {words}")
        answer = self._decode(line)
        if self._measure_clock and isinstance(answer, Ready):
            self.clock = await measured(self._ask_clock)
        return answer

    async def stage(self, path: Path) -> str:
        """Copy the file to the node."""
        with path.open("rb") as file:
            offset = 0
            while piece := file.read(CHUNK_BYTES):
                await self._call("write", path.name, offset, piece)
                offset += len(piece)
            if not offset:
                await self._call("write", path.name, 0, b"")
        return self.place(path)

    def place(self, path: Path) -> str:
        """A path in the node's temporary folder."""
        return f"{self._hello.folder}/{path.name}"

    async def collect(self, path: Path) -> None:
        """Copy the log here, take the clock's offset out of it, and delete it there.

        The clock is measured again before, so that offset and uncertainty are those of the whole load.
        """
        if self._measure_clock:
            with contextlib.suppress(ClientFailed):  # the worker is gone: what was known before the load must do
                self.clock = spanning(self.clock, await measured(self._ask_clock))
        with tempfile.TemporaryDirectory(prefix="bakeoff-") as scratch:
            raw = Path(scratch) / path.name
            if await self._fetched(raw):
                await asyncio.to_thread(copy_shifted, raw, path, self.clock.offset_ns)
        await self._call("remove", path.name)

    async def _fetched(self, path: Path) -> bool:
        """Copy the node's file of that name here; returns whether it holds anything."""
        with path.open("wb") as file:
            while piece := await self._call("read", path.name, file.tell()):
                file.write(piece)
            return file.tell() > 0

    async def _ask_clock(self) -> int:
        line = await self._call("ask", msgspec.json.encode(AskClock()) + b"\n")
        answer = self._decode(line) if line else None
        if not isinstance(answer, TellClock):
            raise ClientFailed(f"the client worker on {self.host} does not tell its time")
        return answer.now_ns

    async def _call(self, method: str, *arguments: object) -> Untyped:
        return await called(getattr(self._relay, method).remote(*arguments), self.host)


async def called(reference: Untyped, host: str) -> Untyped:
    """The result of a call of Ray's.

    Raises:
        ClientFailed: the node, its actor or the call failed; one line.
    """
    from ray.exceptions import RayError  # noqa: PLC0415  (an extra; whoever holds a reference has it)

    try:
        return await reference
    except RayError as error:
        cause: BaseException = getattr(error, "cause", None) or error
        words = next(iter(str(cause).strip().splitlines()), "")
        raise ClientFailed(f"the client worker on {host} is lost: {type(cause).__name__}: {words}") from error


def copy_shifted(source: Path, target: Path, offset_ns: int) -> None:
    """Append one stream log to another with ``offset_ns`` taken out of every time; a torn end is left out."""
    with FrameAppender(target) as log:
        for number, record in enumerate(FrameLog(source, StreamRecord)):
            log.append(shifted(record, offset_ns))
            if number % _FLUSH_EVERY == 0:
                log.flush()


def shifted(record: StreamRecord, offset_ns: int) -> StreamRecord:
    """The record on a clock that is ``offset_ns`` behind the one on which it was stamped."""
    moved = {
        name: None if at_ns is None else at_ns - offset_ns
        for name in ("planned_ns", "due_ns", "dial_start_ns", "dial_end_ns", "sent_ns", "ended_ns")
        for at_ns in (getattr(record, name),)
    }
    return msgspec.structs.replace(record, read_ns=[read_ns - offset_ns for read_ns in record.read_ns], **moved)


def _seen(answer: asyncio.Future[bytes]) -> None:
    """An answer that nobody comes for any more, because the load was given up, is nothing to complain about."""
    if not answer.cancelled():
        answer.exception()


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
