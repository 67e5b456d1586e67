"""Entry point of ``bakeoff``: an unexpected error is one line and exit code 3, whichever command met it.

Python's own exit code for an exception is 1, which is a verdict of ``gate``, ``history`` and ``claims``. Importing the
commands is part of what can fail, so they are imported inside.
"""

import io
import os
import signal
import sys

from bakeoff.harness.unexpected import unexpected


def main() -> None:
    """Run the command of ``sys.argv`` and exit with its code."""
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # tests and notebooks replace the streams
            stream.reconfigure(errors="backslashreplace")  # in ASCII there is no "·", which tables contain
    try:
        from bakeoff.harness.cli import make_app  # noqa: PLC0415
        from bakeoff.harness.cli.guarded import guarded  # noqa: PLC0415

        code = guarded(make_app(), sys.argv[1:])
    except KeyboardInterrupt:  # while modules are imported; later ones are answered where they come
        code = 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001
        code = unexpected(error)
    sys.exit(code)


def open_closed_streams() -> None:
    """Open the null device in place of a standard stream that is closed.

    Its descriptor would become that of the next file or socket, which then would be read or written as that stream.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
