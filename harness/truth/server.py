"""The truth server: one thread, one epoll loop, no framework between a time stamp and its system call."""

import contextlib
import functools
import os
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator

from harness.errors import TruthFailed
from harness.truth.agenda import Agenda
from harness.truth.answer import Answer
from harness.truth.answered import CHAT, COMPLETIONS, Answered, Ending
from harness.truth.asking import NotUnderstood, told_at_once, understand
from harness.truth.connection import Connection
from harness.truth.payloads import error_reply
from harness.truth.pump import Pump
from harness.truth.schedule import Fault, Schedule
from harness.truth.script import Script
from harness.truth.slots import Slots
from harness.truth.waiting import Waiter

__all__ = ["Answered", "TruthServer"]

_QUIET_NS = 300_000
"""When nothing is due for so long, what was put off is done: each of those things takes 20 to 100 µs."""
_BUSY_NS = 1_000_000
"""While something always is, one of them is done every so often."""
_BACKLOG = 4096
_MOST_PORTS = 65535
_EVENTS = 8
"""Looked after in one round, so that what is due does not wait for a crowd of arrivals; the rest comes next round."""
_MOST_PUT_OFF = 256
"""With more of them than this, one is done in each round."""


class TruthServer:
    """Serves one schedule from the thread that calls :meth:`serve`; listens as soon as it is made.

    Args:
        schedule: the timetable.
        port: to listen on; 0 for a free one.
        host: address to listen on.
        model: the name that ``/v1/models`` lists, and that of answers whose request names none.
        keep: whether answers are kept for :attr:`answered`.
        on_end: called with each answer that has ended, soon after, when nothing is due.

    Attributes:
        port: on which it listens.
        endings: how many answers ended how.
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
        on_end: Callable[[Answered], None] | None = None,
    ) -> None:
        self.schedule = schedule
        self.port = port
        self.endings: Counter[Ending] = Counter()
        self.accepted = 0
        self._host = host
        self._model = model
        self._keep = keep
        self._on_end = on_end
        self._script = Script(schedule)
        self._script.warm(model)
        self._listener: socket.socket | None = self._bound()
        self.epoll = select.epoll()
        self.pump = Pump(self._ended, self._failed)
        self._slots = Slots(schedule.slots, self.pump.add)
        self._agenda = Agenda(schedule, self.pump, self._go_down, self._listen)
        self._number = 0
        self._answers: list[Answer] = []
        self._put_off: deque[Callable[[], None]] = deque()
        self._connections: dict[int, Connection] = {}
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._running = True
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch(self._wake, self._stop)
        self.watch(self._listener.fileno(), self._accept)

    @property
    def answered(self) -> list[Answered]:
        """What has been answered so far, in the order in which the requests came; those under way included."""
        return [answer.record(self._script) for answer in self._answers]

    def reset(self) -> None:
        """Forget every answer: the next request has number 0, and stalls and restart count from it."""
        self._answers.clear()
        self._number = 0
        self._agenda.clear()
        if self._listener is None:
            self._listen()

    def watch(self, fd: int, handler: Callable[[int], None]) -> None:
        """Call ``handler`` with epoll's mask whenever ``fd`` can be read."""
        self.epoll.register(fd, select.EPOLLIN)
        self._handlers[fd] = handler

    def stop(self) -> None:
        """Make :meth:`serve` return; from any thread."""
        os.eventfd_write(self._wake, 1)

    def serve(self) -> None:
        """Answer until :meth:`stop`."""
        clock, run, poll, wait = time.monotonic_ns, self.pump.run, self.epoll.poll, Waiter(self.epoll).wait
        agenda, handlers, put_off = self._agenda, self._handlers, self._put_off
        busy_ns = 0
        while self._running:
            now_ns = clock()
            if now_ns >= agenda.next_ns:
                agenda.run(now_ns)
            next_ns = min(run(now_ns), agenda.next_ns)
            remaining_ns = next_ns - clock()
            if put_off and (remaining_ns > _QUIET_NS or now_ns > busy_ns or len(put_off) > _MOST_PUT_OFF):
                put_off.popleft()()
                busy_ns = now_ns + _BUSY_NS
            elif remaining_ns > 0:
                wait(remaining_ns)
            for fd, mask in poll(0, _EVENTS):
                handler = handlers.get(fd)
                if handler is not None:  # else an earlier event of this round has closed it
                    handler(mask)

    def close(self) -> None:
        """Close every socket; closing twice is harmless."""
        for connection in self._drain():
            self._cut(connection, Ending.STOPPED, time.monotonic_ns())
            connection.close()
        self._catch_up()
        if self._listener is not None:
            self._listener.close()
        if not self.epoll.closed:
            self.epoll.close()
            os.close(self._wake)

    # Called by connections.

    def requested(self, connection: Connection, now_ns: int) -> None:
        """A whole request has come."""
        if connection.answer is not None:  # no client of ours pipelines; whoever does must not get mixed answers
            self.gone(connection, now_ns)
        elif connection.method == "POST" and connection.path in {CHAT, COMPLETIONS}:
            try:
                asked = understand(connection.path, connection.body, self._model)
            except NotUnderstood as error:
                self._tell(connection, error_reply(400, str(error)), now_ns)
                return
            asked.number = self._number
            asked.fault = self.schedule.fault(asked.number)
            self._number += 1
            self._agenda.begin(now_ns)
            answer = Answer(connection, asked, self._script.steps(asked), now_ns)
            connection.answer = answer
            self._slots.ask(answer)
            if self._keep:
                self._answers.append(answer)
        else:
            self._tell(connection, told_at_once(connection.method, connection.path, self._model), now_ns)

    def refuse(self, connection: Connection, message: str, now_ns: int) -> None:
        """What has come is no HTTP: say so and hang up."""
        if connection.answer is not None:
            self.gone(connection, now_ns)
            return
        connection.keep = False
        self._tell(connection, error_reply(400, message), now_ns)

    def gone(self, connection: Connection, now_ns: int) -> None:
        """The client has closed the connection, or may not use it any more."""
        self._cut(connection, Ending.HANGUP, now_ns)
        if self._connections.pop(connection.fd, None) is not None:
            del self._handlers[connection.fd]
            self.epoll.unregister(connection.fd)
            self._put_off.append(connection.close)

    # The life of an answer.

    def _tell(self, connection: Connection, data: bytes, now_ns: int) -> None:
        """A reply that is not recorded; it goes through the timetable because nothing may be written in a stall."""
        connection.answer = Answer(connection, None, iter([(0, data)]), now_ns)
        self.pump.add(connection.answer)

    def _ended(self, answer: Answer) -> None:
        """Its last write is out."""
        connection, fault = answer.connection, answer.asked.fault if answer.asked else None
        if connection is None:
            return
        self._finish(answer, Ending.FAULT if fault else Ending.COMPLETE, time.monotonic_ns())
        if fault is Fault.STALL:
            return  # the answer stays where it is: the connection is silent and takes no further request
        connection.answer = None
        if fault in {Fault.RESET, Fault.TRUNCATED} or not connection.keep:
            self._close(connection, reset=fault is Fault.RESET)

    def _failed(self, answer: Answer, error: OSError | None) -> None:
        """The kernel did not take all of a write."""
        connection = answer.connection
        if connection is None:
            return
        if error is None or isinstance(error, BlockingIOError):
            connection.wait_writable()
        else:
            self.gone(connection, time.monotonic_ns())

    def _cut(self, connection: Connection, ending: Ending, now_ns: int) -> None:
        if connection.answer is not None and connection.answer.ending is None:
            self._finish(connection.answer, ending, now_ns)
        connection.answer = None

    def _finish(self, answer: Answer, ending: Ending, now_ns: int) -> None:
        answer.finish(ending, now_ns)
        self._slots.ended(answer, now_ns)
        if answer.asked is not None:
            self.endings[ending] += 1
            if self._on_end is not None:
                self._put_off.append(functools.partial(self._report, answer))

    def _report(self, answer: Answer) -> None:
        assert self._on_end is not None
        self._on_end(answer.record(self._script))

    def _catch_up(self) -> None:
        while self._put_off:
            self._put_off.popleft()()

    # Sockets.

    def _bound(self) -> socket.socket:
        """A socket that listens; its port is the same ever after."""
        reason = f"a port is between 0 and {_MOST_PORTS}"
        try:
            if 0 <= self.port <= _MOST_PORTS:
                listener = socket.create_server((self._host, self.port), backlog=_BACKLOG)
                listener.setblocking(False)
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # Linux hands it on to what it accepts
                with contextlib.suppress(OSError):  # BBR would hold back what is to leave now, by how fast ACKs come
                    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
                self.port = listener.getsockname()[1]
                return listener
        except OSError as error:
            reason = (error.strerror or str(error)).partition(" (")[0]
        raise TruthFailed(f"cannot listen on {self._host}:{self.port} ({reason}); choose another")

    def _listen(self) -> None:
        self._listener = self._bound()
        self.watch(self._listener.fileno(), self._accept)

    def _accept(self, _mask: int) -> None:
        assert self._listener is not None
        for _ in range(_EVENTS):
            try:
                taken, _ = self._listener.accept()
            except OSError:  # nobody left, or the client has gone already
                return
            taken.setblocking(False)
            connection = Connection(self, taken, self.accepted)
            self.accepted += 1
            self._connections[connection.fd] = connection
            self._handlers[connection.fd] = connection.on_event

    def _close(self, connection: Connection, *, reset: bool = False) -> None:
        if self._connections.pop(connection.fd, None) is not None:
            del self._handlers[connection.fd]
        connection.close(reset=reset)

    def _drain(self) -> Iterator[Connection]:
        """Every connection, no longer watched."""
        while self._connections:
            fd, connection = self._connections.popitem()
            del self._handlers[fd]
            yield connection

    def _go_down(self, now_ns: int) -> None:
        """Every connection is reset, and nothing listens."""
        assert self._listener is not None
        del self._handlers[self._listener.fileno()]
        self._listener.close()
        self._listener = None
        for connection in self._drain():
            self._cut(connection, Ending.RESTART, now_ns)
            connection.close(reset=True)

    def _stop(self, _mask: int) -> None:
        os.eventfd_read(self._wake)
        self._running = False
