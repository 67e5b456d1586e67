"""The server's side: sends requests to the engine processes and delivers their tokens to streams.

With several replicas a request, with its siblings, goes to the one with the fewest sequences and stays there.
"""

import asyncio
import dataclasses
import itertools
import time
import zlib
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.outputs import StepReport
from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.errors import EngineUnavailableError, RequestError, UserMistakeError
from bakeoff.reference_engine.kv_cache.block_hashes import prompt_hashes
from bakeoff.reference_engine.scheduling.limits import check_queue
from bakeoff.reference_engine.serving.core.launch import Core, Starter
from bakeoff.reference_engine.serving.core.streams import TokenStream
from bakeoff.reference_engine.serving.core.wire import (
    Add,
    Cancel,
    Command,
    Done,
    Facts,
    Failed,
    Frames,
    Notice,
    Ready,
    Refused,
    Reset,
    Sent,
    Start,
    StartProfile,
    StartStepLog,
    StopProfile,
    StopStepLog,
    frame,
)

_DECODER: msgspec.msgpack.Decoder[Notice] = msgspec.msgpack.Decoder(Notice)

_STREAMS_AT_ONCE = 64  # encoded before the first is written; more would delay that one

OnReport = Callable[[int, StepReport], None]
"""Called with the number of a replica and its report, before the tokens of that report are delivered."""


class Replica(asyncio.Protocol):
    """One engine process.

    Args:
        core: the started process.
        take: called with this replica and every message.
        lose: called when the process has closed its socket.

    Attributes:
        facts: set when it is ready.
        num_open: sequences that have not ended.
        num_sent: requests sent so far, including those of its warm-up, without siblings and refused ones.
        last: its latest report; None before the first.
    """

    def __init__(
        self, core: Core, take: "Callable[[Replica, Notice], None]", lose: "Callable[[Replica], None]"
    ) -> None:
        self.core = core
        self.facts: asyncio.Future[Facts] = asyncio.get_running_loop().create_future()
        self.num_open = 0
        self.num_sent = 0
        self.last: StepReport | None = None
        self._take = take
        self._lose = lose
        self._frames = Frames()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of `asyncio.Protocol`."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's has no base class

    def data_received(self, data: bytes) -> None:
        """Part of `asyncio.Protocol`."""
        for body in self._frames.feed(data):
            self._take(self, _DECODER.decode(body))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (the base class's signature)
        """Part of `asyncio.Protocol`."""
        self._lose(self)

    @property
    def is_ready(self) -> bool:
        """Whether the engine has loaded its model."""
        return self.facts.done() and not self.facts.cancelled() and self.facts.exception() is None

    def send(self, command: Command) -> None:
        """Sends as soon as the socket takes it."""
        if self._transport is not None:
            self._transport.write(frame(command))

    def hang_up(self) -> None:
        """Closes the socket, which ends the process after its current step."""
        if self._transport is not None:
            self._transport.abort()

    def check_queue(self, most: int, count: int) -> None:
        """Refuses `count` more requests.

        Raises:
            QueueFullError: by the last report they would be refused now.
            RequestError: they would be refused even by an idle engine.
        """
        last, seats = self.last, self.facts.result().limits.max_num_seqs
        if count > most + seats:
            raise RequestError(
                f"{count} prompts in one request are more than the {seats} that run at the same time and the {most} "
                "that may wait; send fewer in one request or start the server with more --max-queue",
                param="prompt",
            )
        if last is None:
            check_queue(most, max(0, self.num_open - seats), seats - self.num_open, count)
        else:
            check_queue(most, last.waiting + self.num_sent - last.arrived, last.free_seats, count)


@dataclasses.dataclass(frozen=True, slots=True)
class _Open:
    stream: TokenStream
    replica: Replica


class EngineClient:
    """All replicas together. Used on the event loop only.

    Args:
        on_report: see `OnReport`.

    Attributes:
        failure: why no request is accepted any more; None while the engines work.
        reported_ns: when the latest report arrived, on the monotonic clock.
    """

    def __init__(self, on_report: OnReport) -> None:
        self.failure: EngineUnavailableError | None = None
        self.reported_ns: int = 0
        self._on_report = on_report
        self._replicas: list[Replica] = []
        self._open: dict[str, _Open] = {}
        self._calls: dict[int, asyncio.Future[str]] = {}
        self._numbers = itertools.count()
        self._idle = asyncio.Event()
        self._idle.set()
        self._obituaries: set[asyncio.Task[None]] = set()

    async def start(self, config: EngineConfig, start_core: Starter) -> Facts:
        """Starts the engines and waits until they have loaded the model.

        Returns:
            The facts of the engine with the smallest KV cache, whose limits apply to all.

        Raises:
            UserMistakeError: the model or the settings are at fault.
            EngineUnavailableError: an engine ended before it was ready.
        """
        loop = asyncio.get_running_loop()
        for number in range(config.data_parallel_size):
            replica = Replica(start_core(config, number), self._take, self._lose)
            self._replicas.append(replica)
            await loop.create_unix_connection(lambda: self._replicas[-1], sock=replica.core.socket)
            replica.send(Start(config))
        await asyncio.gather(*(replica.facts for replica in self._replicas))
        return self._facts

    @property
    def replicas(self) -> Sequence[Replica]:
        """In order of their numbers."""
        return self._replicas

    def submit(self, requests: Sequence[Request], session: str | None = None) -> TokenStream:
        """Sends requests with their siblings to the engines; returns one stream for all their tokens.

        Args:
            requests: each goes to the replica with the fewest open sequences.
            session: if given, all go to one replica, always the same for a session, whose cache has its prefixes.

        Raises:
            EngineUnavailableError: an engine crashed, or the server stops.
            RequestError: one of them can never be computed, or too many wait; then none is queued.
        """
        if self.failure is not None:
            raise self.failure
        shares: dict[int, list[Request]] = {}
        loads = [replica.num_open for replica in self._replicas]
        home = None if session is None else zlib.crc32(session.encode(errors="replace")) % len(loads)
        for leader in requests:
            self._facts.limits.check_request(leader)
            number = min(range(len(loads)), key=loads.__getitem__) if home is None else home
            loads[number] += leader.width
            shares.setdefault(number, []).append(leader)
        for number, share in shares.items():
            self._replicas[number].check_queue(self._facts.config.max_queue, len(share))
        members = [member for leader in requests for member in (leader, *leader.siblings)]
        stream = TokenStream(self.cancel, [member.request_id for member in members])
        now_s = time.perf_counter()  # the engines use the same monotonic clock of the machine
        for number, share in shares.items():
            facts = self._replicas[number].facts.result()
            for leader in share:
                leader.arrival_s = now_s
                if facts.config.enable_prefix_caching:  # here, because the engine would do it between two steps
                    leader.block_hashes = prompt_hashes(leader.token_ids, facts.limits.block_size, leader.cache_salt)
            self._send(share, stream, self._replicas[number])
        return stream

    def cancel(self, request_ids: Sequence[str]) -> None:
        """Ends requests; their blocks are free before the next step."""
        by_replica: dict[Replica, list[str]] = {}
        for request_id in request_ids:
            ended = self._close(request_id)
            if ended is not None:
                by_replica.setdefault(ended.replica, []).append(request_id)
        for replica, names in by_replica.items():
            replica.send(Cancel(names))

    def reset_prefix_cache(self) -> None:
        """Empties the prefix caches before the next step: later requests find nothing cached.

        Raises:
            EngineUnavailableError: an engine crashed, or the server stops.
        """
        if self.failure is not None:
            raise self.failure
        for replica in self._replicas:
            replica.send(Reset())

    async def start_profile(self) -> list[str]:
        """Starts a profile in every engine; returns the directories of the traces.

        Raises:
            RequestError: no directory is set for them, or a profile is running.
            EngineUnavailableError: an engine crashed, or the server stops.
        """
        return await self._call(StartProfile)

    async def stop_profile(self) -> list[str]:
        """Ends the profiles; returns the files of the traces.

        Raises:
            RequestError: no profile is running, or the directory cannot be written to.
            EngineUnavailableError: an engine crashed, or the server stops.
        """
        return await self._call(StopProfile)

    async def start_step_log(self) -> list[str]:
        """Starts a log of steps in every engine; returns the files.

        Raises:
            RequestError: no directory is set for them, or logs are being written.
            EngineUnavailableError: an engine crashed, or the server stops.
        """
        return await self._call(StartStepLog)

    async def stop_step_log(self) -> list[str]:
        """Ends the logs of steps; returns the files.

        Raises:
            RequestError: no log is being written, or one is incomplete.
            EngineUnavailableError: an engine crashed, or the server stops.
        """
        return await self._call(StopStepLog)

    async def drained(self) -> None:
        """Waits until no request is open."""
        await self._idle.wait()

    async def stop(self) -> None:
        """Fails requests in flight and waits for the engines, which end after their current step."""
        ready = [replica for replica in self._replicas if replica.is_ready]
        self._fail(EngineUnavailableError("the server is stopping"))
        for replica in self._replicas:
            replica.hang_up()
            if replica not in ready:
                replica.core.kill()  # it notices the closed socket only after loading, which may take minutes
        await asyncio.gather(*(replica.core.ended() for replica in self._replicas))

    @property
    def _facts(self) -> Facts:
        every = [replica.facts.result() for replica in self._replicas]
        return min(every, key=lambda facts: facts.limits.num_blocks)

    def _send(self, share: Sequence[Request], stream: TokenStream, replica: Replica) -> None:
        self._idle.clear()
        for leader in share:
            for member in (leader, *leader.siblings):
                self._open[member.request_id] = _Open(stream, replica)
            replica.num_open += leader.width
        replica.num_sent += len(share)
        replica.send(Add([Sent.of(leader) for leader in share]))

    def _close(self, request_id: str) -> _Open | None:
        ended = self._open.pop(request_id, None)
        if ended is not None:
            ended.replica.num_open -= 1
            if not self._open:
                self._idle.set()
        return ended

    async def _call(
        self, command: type[StartProfile] | type[StopProfile] | type[StartStepLog] | type[StopStepLog]
    ) -> list[str]:
        if self.failure is not None:
            raise self.failure
        calls: list[asyncio.Future[str]] = []
        for replica in self._replicas:
            number = next(self._numbers)
            calls.append(asyncio.get_running_loop().create_future())
            self._calls[number] = calls[-1]
            replica.send(command(number))
        return await asyncio.gather(*calls)

    def _take(self, replica: Replica, notice: Notice) -> None:
        match notice:
            case StepReport():
                self._deliver(replica, notice)
            case Refused():
                replica.num_sent -= 1  # it never arrives in the queue, so it would count as waiting for ever
                refused = self._open.get(notice.request_id)
                if refused is not None:
                    error = RequestError(notice.message, status=notice.status, param=notice.param, code=notice.code)
                    refused.stream.fail(error)
            case Done():
                call = self._calls.pop(notice.call)
                if call.cancelled():
                    return
                if notice.error is None:
                    call.set_result(notice.result or "")
                else:
                    call.set_exception(RequestError(notice.error))
            case Ready():
                replica.num_sent = notice.arrived
                replica.facts.set_result(notice.facts)
            case Failed():
                self._fail(
                    UserMistakeError(notice.message) if notice.is_users else EngineUnavailableError(notice.message)
                )

    def _deliver(self, replica: Replica, report: StepReport) -> None:
        self.reported_ns = time.monotonic_ns()
        replica.last = report
        self._on_report(self._replicas.index(replica), report)
        streams: list[TokenStream] = []
        for output in report.outputs:
            open_request = self._open.get(output.request_id)
            if open_request is None:
                continue  # cancelled while the step ran
            if output.finish_reason is not None:
                self._close(output.request_id)
            if open_request.stream.put(output):
                streams.append(open_request.stream)
        for first in range(0, len(streams), _STREAMS_AT_ONCE):
            part = streams[first : first + _STREAMS_AT_ONCE]
            for stream in [stream for stream in part if stream.deliver()]:
                stream.write()

    def _lose(self, replica: Replica) -> None:
        """The process has closed its socket: on request, after reporting an error, or because it was killed."""
        if self.failure is None:
            task = asyncio.ensure_future(self._report_end(replica))
            self._obituaries.add(task)
            task.add_done_callback(self._obituaries.discard)

    async def _report_end(self, replica: Replica) -> None:
        how = await replica.core.ended()
        self._fail(EngineUnavailableError(f"the engine's process has ended ({how}); restart the server"))

    def _fail(self, failure: EngineUnavailableError | UserMistakeError) -> None:
        if self.failure is None:
            self.failure = (
                failure if isinstance(failure, EngineUnavailableError) else EngineUnavailableError(str(failure))
            )
        for future in (*(replica.facts for replica in self._replicas), *self._calls.values()):
            if not future.done():
                future.set_exception(failure)
        self._calls.clear()
        for stream in {id(sequence.stream): sequence.stream for sequence in self._open.values()}.values():
            stream.fail(self.failure)
        for request_id in list(self._open):
            self._close(request_id)
