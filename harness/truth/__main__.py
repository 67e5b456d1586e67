"""The truth server as a process: ``python -m bakeoff.harness.truth`` with :class:`~.process.Options` as JSON.

Prints ``ready PORT``, or one line that says why it cannot start. Then it replies to each line on stdin with one line:
to ``answered`` with the record so far as JSON, to ``reset`` with ``reset`` once the record is cleared. It exits at the
end of stdin.
"""

import sys

import msgspec

from bakeoff.harness.errors import BadSchedule, TruthFailed
from bakeoff.harness.truth.isolation import disable_gc, pin_to_core
from bakeoff.harness.truth.process import Options
from bakeoff.harness.truth.server import TruthServer


def _execute(server: TruthServer, command: bytes) -> None:
    """Execute one line of stdin; an empty one is its end."""
    if command == b"answered\n":
        _print(msgspec.json.encode(server.answered))
    elif command == b"reset\n":
        server.reset()
        _print(b"reset")
    elif not command:
        server.stop()


def _print(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    """Serve the schedule that the argument holds."""
    try:
        options = msgspec.json.decode(sys.argv[1], type=Options)
        if options.core is not None:
            pin_to_core(options.core)
        server = TruthServer(options.schedule, options.port, host=options.host, model=options.model)
    except (BadSchedule, TruthFailed, msgspec.ValidationError) as error:
        _print(str(error).encode())
        return 2
    # Unbuffered: of two commands that arrive together, a buffer would hold the second, which does not wake epoll.
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        server.watch(0, lambda _mask: _execute(server, stdin.readline()))
        disable_gc()
        _print(b"ready %d" % server.port)
        server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
