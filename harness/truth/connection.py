"""One client's connection to the truth server."""

import contextlib
import socket
import struct

from bakeoff.harness.truth.requests import RequestParser
from bakeoff.harness.truth.timetable import Answer

_READ_BYTES = 1 << 16
_RESET = struct.pack("ii", 1, 0)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection:
    """One client's connection.

    Attributes:
        number: from 0, in order of acceptance.
        fd: of its socket; -1 once closed.
        parser: of its requests.
        answer: in progress, or the answer whose fault has silenced the connection.
        keep_alive: whether the connection stays open after its answer.
    """

    def __init__(self, accepted: socket.socket, number: int) -> None:
        self._socket = accepted
        self.number = number
        self.fd: int = accepted.fileno()
        self.parser: RequestParser = RequestParser()
        self.answer: Answer | None = None
        self.keep_alive = True

    def receive(self) -> bytes | None:
        """Bytes that have arrived; none at the end of the connection, and None if there was nothing to read."""
        try:
            return self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def send_continue(self) -> None:
        """Let the client send the body that it holds back."""
        with contextlib.suppress(OSError):
            self._socket.send(_CONTINUE)

    def close(self, *, reset: bool = False) -> None:
        """Close it, with ``reset`` by a RST instead of an orderly end. Closing twice is harmless."""
        if self.fd < 0:
            return
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.fd = -1
        self._socket.close()
