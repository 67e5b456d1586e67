"""The engine's end of the socket; never waits for the server while there is something to compute."""

import contextlib
import select
import socket

import msgspec

from bakeoff.reference_engine.serving.core.wire import Command, Frames, Notice, frame

_READ_BYTES = 1 << 20
_LEAVE_S = 5.0
_DECODER: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


class Channel:
    """Receives commands and sends notices.

    Args:
        sock: connected; the channel owns it.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._wakeup, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._frames = Frames()
        self._unsent = bytearray()

    def send(self, message: Notice) -> None:
        """Sends as much as the socket takes; later calls send the rest.

        Raises:
            ConnectionError: the server has closed its end.
        """
        data = frame(message)
        if self._unsent:
            self._unsent += data
            self._flush()
        else:  # usually the socket takes all of it
            self._unsent += data[self._sent(data) :]

    def wake(self) -> None:
        """Ends the current or next wait of `receive`; may be called from other threads."""
        with contextlib.suppress(OSError):  # a wake-up is pending, or the channel is closed
            self._waker.send(b"\0")

    def receive(self, *, wait: bool) -> list[Command]:
        """Returns the commands that have arrived.

        Args:
            wait: if there are none, wait for one or for `wake`.

        Raises:
            ConnectionError: the server has closed its end.
        """
        messages: list[Command] = []
        while True:
            self._flush()
            while (data := self._read()) is not None:
                messages += [_DECODER.decode(body) for body in self._frames.feed(data)]
            if messages or not wait:
                return messages
            # A report may still be unsent when the engine becomes idle, so wait for either direction.
            readable, _, _ = select.select([self._socket, self._wakeup], [self._socket] if self._unsent else [], [])
            if self._wakeup in readable:
                self._wakeup.recv(_READ_BYTES)
                return messages

    def close(self) -> None:
        """Sends the rest and closes the socket, after the server has closed its end.

        Until then the server may still be writing, and an early close would lose messages that it has not read yet.
        """
        self._wakeup.close()
        self._waker.close()
        with self._socket as sock, contextlib.suppress(OSError):
            sock.settimeout(_LEAVE_S)
            sock.sendall(self._unsent)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(_READ_BYTES):
                pass

    def _read(self) -> bytes | None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        if not data:
            raise ConnectionResetError("the other side has hung up")
        return data

    def _flush(self) -> None:
        while self._unsent and (sent := self._sent(self._unsent)):
            del self._unsent[:sent]

    def _sent(self, data: bytes | bytearray) -> int:
        """Sends as much as the socket takes now; returns the number of bytes."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
