"""The engine's end of the socket: never waits for the other side while there is something to compute."""

import contextlib
import select
import socket

import msgspec

from reference_engine.serving.core.wire import Command, Frames, Notice, frame

_READ_BYTES = 1 << 20
_LEAVE_S = 5.0
_DECODER: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


class Channel:
    """Commands come in, notices go out.

    Args:
        sock: connected; owned from now on.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._wakeup, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._frames = Frames()
        self._unsent = bytearray()

    def send(self, message: Notice) -> None:
        """Sends at once what the socket takes; the rest goes out with later calls.

        Raises:
            ConnectionError: the other side has gone.
        """
        data = frame(message)
        if self._unsent:
            self._unsent += data
            self._flush()
        else:  # as a rule the socket takes all of it
            self._unsent += data[self._sent(data) :]

    def wake(self) -> None:
        """Ends the wait of `receive`, or its next one; to be called from other threads."""
        with contextlib.suppress(OSError):  # it has been called often enough, or the channel is closed
            self._waker.send(b"\0")

    def receive(self, *, wait: bool) -> list[Command]:
        """What has come in.

        Args:
            wait: for the first message, if there is none, or for `wake`.

        Raises:
            ConnectionError: the other side has gone.
        """
        messages: list[Command] = []
        while True:
            self._flush()
            while (data := self._read()) is not None:
                messages += [_DECODER.decode(body) for body in self._frames.feed(data)]
            if messages or not wait:
                return messages
            # One side or the other: a report may still be on its way out when the engine falls idle.
            readable, _, _ = select.select([self._socket, self._wakeup], [self._socket] if self._unsent else [], [])
            if self._wakeup in readable:
                self._wakeup.recv(_READ_BYTES)
                return messages

    def close(self) -> None:
        """Sends what is left and hangs up, once the other side has.

        Until then it may still be writing, and what it had not read yet would be lost to it with an error.
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
        """Sends what the socket takes now, and says how much that is."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
