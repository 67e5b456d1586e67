"""Entry point of ``bakeoff``: an unexpected error is one line and exit code 3, whichever command met it.

Python's own exit code for an exception is 1, which is a verdict of ``gate``, ``history`` and ``claims``. Importing the
commands is part of what can fail, so they are imported inside.
"""

import os
import signal
import sys

from bakeoff.harness.host.streams import keep_streams, open_closed_streams
from bakeoff.harness.unexpected import EXIT_UNEXPECTED, unexpected


def main() -> None:
    """Run the command of ``sys.argv`` and exit with its code."""
    open_closed_streams()
    keep_streams()
    try:
        from bakeoff.harness.cli import make_app  # noqa: PLC0415
        from bakeoff.harness.cli.guarded import guarded  # noqa: PLC0415

        code = guarded(make_app(), sys.argv[1:])
    except KeyboardInterrupt:  # while modules are imported; later ones are answered where they come
        code = 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001
        code = unexpected(error)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:  # a full disk, or a limit on sizes of files
        if code != EXIT_UNEXPECTED:  # else it has been said
            sys.stderr.write(f"bakeoff: cannot write the output: {error.strerror}\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python fails once more at its end, with a code of its own
        code = EXIT_UNEXPECTED
    sys.exit(code)
