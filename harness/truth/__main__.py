"""The truth server's process: ``python -m harness.truth ORDER``; see :class:`harness.truth.process.Order`.

Prints ``ready PORT``, or one line that says why not. Then each line on stdin is answered by one line: ``answered`` by
the true times so far as JSON, ``reset`` by ``reset`` after they are forgotten. The end of stdin ends it.
"""

import sys

import msgspec

from harness.errors import BadSchedule, TruthFailed
from harness.truth.process import Order
from harness.truth.server import TruthServer
from harness.truth.undisturbed import stay_on, without_collections


def _obey(server: TruthServer, order: bytes) -> None:
    """Carry out one line of stdin."""
    if order == b"answered\n":
        _say(msgspec.json.encode(server.answered))
    elif order == b"reset\n":
        server.reset()
        _say(b"reset")
    elif not order:
        server.stop()


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
    # Unbuffered: two orders may arrive together, and what waits in a buffer does not wake epoll.
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        server.watch(0, lambda _mask: _obey(server, stdin.readline()))
        without_collections()
        _say(b"ready %d" % server.port)
        server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
