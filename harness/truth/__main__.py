"""The truth server's process: ``python -m harness.truth ORDER``; see :class:`harness.truth.process.Order`.

Prints ``ready PORT``, or one line that says why not. Then each line on stdin is answered by one line: ``answered`` by
the true times so far as JSON, ``reset`` by ``reset`` after they are forgotten. The end of stdin ends it.
"""

import os
import sys

import msgspec

from harness.errors import BadSchedule, TruthFailed
from harness.truth.process import Order
from harness.truth.server import TruthServer
from harness.truth.undisturbed import stay_on, without_collections

_READ_BYTES = 1 << 16


class _Orders:
    """Lines on stdin."""

    def __init__(self, server: TruthServer) -> None:
        self._server = server
        self._line = b""

    def read(self, _mask: int) -> None:
        """Take what is there."""
        data = os.read(sys.stdin.fileno(), _READ_BYTES)
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            if line == b"answered":
                _say(msgspec.json.encode(self._server.answered))
            elif line == b"reset":
                self._server.reset()
                _say(line)
        if not data:
            self._server.stop()


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    """Serve what the argument says."""
    try:
        order = msgspec.json.decode(sys.argv[1], type=Order)
        if order.core is not None:
            stay_on(order.core)
        server = TruthServer(order.schedule, order.port, host=order.host, model=order.model)
    except (BadSchedule, TruthFailed, msgspec.ValidationError) as error:
        _say(str(error).encode())
        return 2
    server.watch(sys.stdin.fileno(), _Orders(server).read)
    without_collections()
    _say(b"ready %d" % server.port)
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
