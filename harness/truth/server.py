"""The truth server: one thread, one loop, no framework between a time stamp and its system call."""

import contextlib
import functools
import os
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator

from bakeoff.harness.errors import TruthFailed
from bakeoff.harness.truth.answered import CHAT, COMPLETIONS, Answered, Ending
from bakeoff.harness.truth.connection import Connection
from bakeoff.harness.truth.payloads import error_reply
from bakeoff.harness.truth.poller import poller
from bakeoff.harness.truth.replica import Replica
from bakeoff.harness.truth.requests import (
    HttpRequest,
    MalformedRequest,
    body_of,
    completion_request,
    other_reply,
)
from bakeoff.harness.truth.schedule import Fault, Schedule
from bakeoff.harness.truth.timetable import Answer, Change, Timetable

__all__ = ["Answered", "TruthServer"]

_BURST_NS = 100_000
"""Longest burst of writes: after it the loop looks for new requests, so that their arrival is stamped promptly."""
_QUIET_NS = 300_000
"""Run a deferred task when nothing is due for this long: a task takes 20 to 100 µs."""
_BUSY_NS = 1_000_000
"""Run one deferred task per this period when the server is never quiet."""
_MAX_DEFERRED = 256
"""Run one deferred task per round when there are more than this."""
_EVENTS_PER_ROUND = 8
"""Most events and accepted connections handled per round, so that a burst of arrivals does not delay due writes."""
_BACKLOG = 4096
_MAX_PORT = 65535
_IN = select.POLLIN | getattr(select, "POLLRDHUP", 0)


class TruthServer:
    """Serves one schedule from the thread that calls :meth:`serve`; listens from construction on.

    Args:
        schedule: timing and faults of every answer.
        port: to listen on; 0 for a free one.
        host: address to listen on.
        model: name that ``/v1/models`` lists, and of answers whose request names none.
        keep: whether to keep answers for :attr:`answered`.
        replica: number of this replica, from 1; None if it is none, unless the schedule simulates one.
        on_end: called with each finished answer, soon after its end, when nothing is due.

    Attributes:
        port: on which it listens.
        endings: count of answers by how they ended.
        accepted: connections so far.

    Raises:
        TruthFailed: it cannot listen there.
    """

    def __init__(
        self,
        schedule: Schedule,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        model: str = "truth",
        keep: bool = True,
        replica: int | None = None,
        on_end: Callable[[Answered], None] | None = None,
    ) -> None:
        self.port: int = port
        self.endings: Counter[Ending] = Counter()
        self.accepted: int = 0
        self._host = host
        self._model = model
        self._keep = keep
        self._on_end = on_end
        self._timetable = Timetable(schedule)
        self._timetable.script.warm(model)
        acts = replica is not None or schedule.is_replica
        self._replica = Replica(replica or 1, model, self._timetable) if acts else None
        self._listener: socket.socket | None = self._bind()
        self._poller = poller()
        self._answers: list[Answer] = []
        self._deferred: deque[Callable[[], None]] = deque()
        self._connections: dict[int, Connection] = {}
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._running = True
        self._pipe = [*os.pipe()]
        self.watch(self._pipe[0], self._stop)
        self.watch(self._listener.fileno(), self._accept)

    @property
    def answered(self) -> list[Answered]:
        """The record of all answers so far, those in progress included, in order of their requests."""
        return [answer.record(self._timetable.script) for answer in self._answers]

    def reset(self) -> None:
        """Forget every answer: the next request has number 0, and stalls and restart count from it."""
        self._answers.clear()
        self._timetable.reset()
        if self._listener is None:
            self._listen()

    def watch(self, fd: int, handler: Callable[[int], None]) -> None:
        """Call ``handler`` with the mask of its event whenever ``fd`` can be read."""
        self._poller.register(fd, select.POLLIN)
        self._handlers[fd] = handler

    def stop(self) -> None:
        """Make :meth:`serve` return; safe from any thread."""
        for wake in self._pipe[1:]:  # none once it is closed
            os.write(wake, b"\0")

    def serve(self) -> None:
        """Answer until :meth:`stop`."""
        clock, ready, wait = time.monotonic_ns, self._poller.ready, self._poller.wait
        timetable, handlers, deferred = self._timetable, self._handlers, self._deferred
        due, disruptions = timetable.due, timetable.disruptions
        busy_ns = 0
        while self._running:
            now_ns = clock()
            if now_ns >= disruptions.next_ns:
                for change in disruptions.run(now_ns):
                    self._restart(change, now_ns)
            next_ns = due(now_ns)
            if next_ns <= now_ns:
                next_ns = self._write(now_ns + _BURST_NS)
            remaining_ns = min(next_ns, disruptions.next_ns) - clock()
            if deferred and (remaining_ns > _QUIET_NS or now_ns > busy_ns or len(deferred) > _MAX_DEFERRED):
                deferred.popleft()()
                busy_ns = now_ns + _BUSY_NS
            elif remaining_ns > 0:
                wait(remaining_ns)
            for fd, mask in ready(_EVENTS_PER_ROUND):
                handler = handlers.get(fd)
                if handler is not None:  # else an earlier event of this round has closed it
                    handler(mask)

    def close(self) -> None:
        """Close every socket; closing twice is harmless."""
        for connection in self._drain():
            self._cut(connection, Ending.STOPPED, time.monotonic_ns())
            connection.close()
        self._run_deferred()
        if self._listener is not None:
            self._listener.close()
        self._poller.close()
        while self._pipe:
            os.close(self._pipe.pop())

    def _write(self, until_ns: int) -> int:
        """Write what is due, at most until ``until_ns``; returns when to write next."""
        timetable = self._timetable
        ready, sent = timetable.ready, timetable.sent
        write, clock = os.write, time.monotonic_ns
        until_ns = min(until_ns, timetable.disruptions.hold_ns)
        while ready:
            t_ns = clock()
            if t_ns >= until_ns:
                break
            answer = ready.popleft()
            data = answer.data
            try:
                count = write(answer.fd, data)
            except OSError as error:
                self._write_failed(answer, error)
                continue
            if count < len(data):
                answer.sent_part(t_ns, count)
                self._wait_writable(answer)
            elif not sent(answer, t_ns):
                self._complete(answer)
        return timetable.next_ns(clock())

    def _write_failed(self, answer: Answer, error: OSError) -> None:
        if isinstance(error, BlockingIOError):
            self._wait_writable(answer)
        elif answer.fd in self._connections:  # else the answer ended before this write was due
            self._disconnect(self._connections[answer.fd], time.monotonic_ns())

    def _wait_writable(self, answer: Answer) -> None:
        """Resume ``answer`` when the kernel takes bytes again."""
        self._poller.modify(answer.fd, _IN | select.POLLOUT)

    # Requests.

    def _on_event(self, connection: Connection, mask: int) -> None:
        if mask & select.POLLOUT and connection.answer is not None:
            self._poller.modify(connection.fd, _IN)
            self._timetable.resume(connection.answer)
        if mask & ~select.POLLOUT:
            self._read(connection)

    def _read(self, connection: Connection) -> None:
        data = connection.receive()
        if data is None:
            return
        now_ns = time.monotonic_ns()
        if not data:
            self._disconnect(connection, now_ns)
            return
        try:
            request = connection.parser.feed(data)
        except MalformedRequest as error:
            self._refuse(connection, str(error), now_ns)
            return
        if connection.parser.expects_continue:
            connection.send_continue()
        if request is not None:
            connection.keep_alive = request.keep_alive
            self._respond(connection, request, now_ns)

    def _respond(self, connection: Connection, request: HttpRequest, now_ns: int) -> None:
        if connection.answer is not None:  # pipelined: hang up rather than mix two answers
            self._disconnect(connection, now_ns)
        elif request.method == "POST" and request.path in {CHAT, COMPLETIONS}:
            try:
                body = body_of(request.path, request.body)
                prompt = self._timetable.cache.prompt(request.path, body) if self._timetable.cache else None
                completion = completion_request(request.path, body, self._model, prompt.tokens if prompt else None)
            except MalformedRequest as error:
                self._reply(connection, error_reply(400, str(error)), now_ns)
                return
            answer = self._timetable.add_request(connection.fd, connection.number, completion, now_ns, prompt)
            connection.answer = answer
            if self._keep:
                self._answers.append(answer)
        else:
            self._reply(connection, self._other_reply(request.method, request.path), now_ns)

    def _other_reply(self, method: str, path: str) -> bytes:
        own = None
        if self._replica is not None:
            self._run_deferred()  # so that the figures include every answer that has ended
            own = self._replica.reply(method, path)
        return other_reply(method, path, self._model) if own is None else own

    def _refuse(self, connection: Connection, message: str, now_ns: int) -> None:
        """Reply 400 to bytes that cannot be parsed, then hang up."""
        if connection.answer is not None:
            self._disconnect(connection, now_ns)
            return
        connection.keep_alive = False
        self._reply(connection, error_reply(400, message), now_ns)

    def _reply(self, connection: Connection, data: bytes, now_ns: int) -> None:
        connection.answer = self._timetable.add_reply(connection.fd, connection.number, data, now_ns)

    # Ends of answers.

    def _complete(self, answer: Answer) -> None:
        """End an answer whose last write is out, in the way of its fault if it has one."""
        connection, fault = self._connections[answer.fd], answer.request.fault if answer.request else None
        self._end(answer, Ending.FAULT if fault else Ending.COMPLETE, time.monotonic_ns())
        if fault is Fault.STALL:
            return  # the answer stays on the connection, which is silent and takes no further request
        connection.answer = None
        if fault in {Fault.RESET, Fault.TRUNCATED} or not connection.keep_alive:
            self._forget(connection)
            connection.close(reset=fault is Fault.RESET)

    def _disconnect(self, connection: Connection, now_ns: int) -> None:
        """Drop a connection that the client has closed or misused."""
        self._cut(connection, Ending.HANGUP, now_ns)
        if self._forget(connection):
            self._poller.unregister(connection.fd)
            self._deferred.append(connection.close)

    def _cut(self, connection: Connection, ending: Ending, now_ns: int) -> None:
        if connection.answer is not None and connection.answer.ending is None:
            self._end(connection.answer, ending, now_ns)
        connection.answer = None

    def _end(self, answer: Answer, ending: Ending, now_ns: int) -> None:
        self._timetable.end(answer, ending, now_ns)
        if answer.request is not None:
            self.endings[ending] += 1
            if self._on_end is not None or self._replica is not None:
                self._deferred.append(functools.partial(self._record, answer))

    def _record(self, answer: Answer) -> None:
        answered = answer.record(self._timetable.script)
        if self._replica is not None:
            answered = self._replica.record(answered)
        if self._on_end is not None:
            self._on_end(answered)

    def _run_deferred(self) -> None:
        while self._deferred:
            self._deferred.popleft()()

    # Sockets.

    def _bind(self) -> socket.socket:
        """A listening socket; the port stays the same from the first one on."""
        reason = f"a port is between 0 and {_MAX_PORT}"
        try:
            if 0 <= self.port <= _MAX_PORT:
                listener = socket.create_server((self._host, self.port), backlog=_BACKLOG)
                listener.setblocking(False)
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # Linux: accepted sockets inherit it
                if hasattr(socket, "TCP_CONGESTION"):
                    with contextlib.suppress(OSError):  # BBR would pace writes by the rate of ACKs
                        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
                self.port = listener.getsockname()[1]
                return listener
        except OSError as error:
            reason = (error.strerror or str(error)).partition(" (")[0]
        raise TruthFailed(f"cannot listen on {self._host}:{self.port} ({reason}); choose another")

    def _listen(self) -> None:
        self._listener = self._bind()
        self.watch(self._listener.fileno(), self._accept)

    def _accept(self, _mask: int) -> None:
        assert self._listener is not None
        for _ in range(_EVENTS_PER_ROUND):
            try:
                accepted, _ = self._listener.accept()
            except OSError:  # no connection is waiting, or the client has already closed it
                return
            accepted.setblocking(False)
            connection = Connection(accepted, self.accepted)
            self.accepted += 1
            self._poller.register(connection.fd, _IN)
            self._connections[connection.fd] = connection
            self._handlers[connection.fd] = functools.partial(self._on_event, connection)

    def _forget(self, connection: Connection) -> bool:
        """Stop handling events of ``connection``; returns whether it was handled until now."""
        self._handlers.pop(connection.fd, None)
        return self._connections.pop(connection.fd, None) is not None

    def _drain(self) -> Iterator[Connection]:
        """Every connection, no longer handled."""
        while self._connections:
            fd, connection = self._connections.popitem()
            del self._handlers[fd]
            yield connection

    def _restart(self, change: Change, now_ns: int) -> None:
        """Reset every connection and stop listening, or listen again."""
        if change is Change.UP:
            self._listen()
            return
        assert self._listener is not None
        del self._handlers[self._listener.fileno()]
        self._listener.close()
        self._listener = None
        for connection in self._drain():
            self._cut(connection, Ending.RESTART, now_ns)
            connection.close(reset=True)
        if self._timetable.cache is not None:
            self._timetable.cache.clear()

    def _stop(self, _mask: int) -> None:
        os.read(self._pipe[0], 1)
        self._running = False
