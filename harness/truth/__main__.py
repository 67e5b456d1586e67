"""The truth server as a process: ``python -m bakeoff.harness.truth`` with :class:`~.process.Options` as JSON.

Prints ``ready PORT``, or one line that says why it cannot start. Then it replies to each line on stdin with one line:
to ``answered`` with the record so far as JSON, to ``reset`` with ``reset`` once the record is cleared, to ``stop`` with
a :class:`~.process.Summary` as JSON once everything is closed. It exits then, or at the end of stdin.
"""

import contextlib
import sys
from pathlib import Path

import msgspec

from bakeoff.harness.errors import BadSchedule, TruthFailed
from bakeoff.harness.truth.isolation import disable_gc, pin_to_core
from bakeoff.harness.truth.process import Options, Summary
from bakeoff.harness.truth.server import TruthServer
from bakeoff.results.errors import NotWritable
from bakeoff.results.files.jsonl import Appender


class _Orders:
    """Executes the lines of stdin.

    Attributes:
        summarise: whether the end was an order, which wants a reply.
    """

    def __init__(self, server: TruthServer) -> None:
        self._server = server
        self.summarise = False

    def execute(self, command: bytes) -> None:
        """Execute one line; an empty one is the end of stdin."""
        match command:
            case b"answered\n":
                _print(msgspec.json.encode(self._server.answered))
            case b"reset\n":
                self._server.reset()
                _print(b"reset")
            case b"stop\n":
                self.summarise = True
                self._server.stop()
            case b"":
                self._server.stop()
            case _:
                pass


def _print(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    """Serve the schedule that the argument holds."""
    with contextlib.ExitStack() as cleanup:
        try:
            options = msgspec.json.decode(sys.argv[1], type=Options)
            if options.core is not None:
                pin_to_core(options.core)
            on_end = None if options.log is None else cleanup.enter_context(Appender(Path(options.log))).append
            server = TruthServer(
                options.schedule, options.port, host=options.host, model=options.model, keep=options.keep,
                replica=options.replica, on_end=on_end,
            )  # fmt: skip
        except (BadSchedule, TruthFailed, NotWritable, msgspec.ValidationError) as error:
            _print(str(error).encode())
            return 2
        cleanup.callback(server.close)
        orders = _Orders(server)
        # Unbuffered: of two commands that arrive together, a buffer would hold the second, which does not wake it.
        stdin = cleanup.enter_context(open(0, "rb", buffering=0, closefd=False))
        server.watch(0, lambda _mask: orders.execute(stdin.readline()))
        disable_gc()
        _print(b"ready %d" % server.port)
        server.serve()
        server.close()
        if orders.summarise:
            _print(msgspec.json.encode(Summary(server.accepted, server.endings)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
