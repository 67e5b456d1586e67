"""Entry point of ``bakeoff``: an unexpected error is one line and exit code 3, whichever command met it.

Python's own exit code for an exception is 1, which is a verdict of ``gate``, ``history`` and ``claims``. Importing the
commands is part of what can fail, so they are imported inside.
"""

import io
import os
import sys
import traceback
from pathlib import Path

TRACEBACK_VARIABLE = "BAKEOFF_TRACEBACK"
"""Environment variable: 1 prints the traceback of an unexpected error."""
_EXIT_UNEXPECTED = 3  # as for a run that is no evidence; harness.cli.options may not be importable here
_MOST_CHARS = 500


def main() -> None:
    """Run the command of ``sys.argv`` and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # tests and notebooks replace the streams
            stream.reconfigure(errors="backslashreplace")  # in ASCII there is no "·", which tables contain
    try:
        from harness.cli import make_app  # noqa: PLC0415
        from harness.cli.guarded import guarded  # noqa: PLC0415

        code = guarded(make_app(), sys.argv[1:])
    except Exception as error:  # noqa: BLE001
        code = unexpected(error)
    sys.exit(code)


def unexpected(error: BaseException) -> int:
    """Report an error that is Bakeoff's own, with secrets masked.

    Returns:
        The exit code, 3.
    """
    if os.environ.get(TRACEBACK_VARIABLE) == "1":
        text = "".join(traceback.format_exception(error))
    else:
        last = traceback.extract_tb(error.__traceback__)[-1:]
        place = f" at {Path(last[0].filename).name}:{last[0].lineno}" if last else ""
        what = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_CHARS]
        text = f"bakeoff: unexpected error{place}: {what}; please report it with the output of {TRACEBACK_VARIABLE}=1\n"
    secrets = sys.modules.get("engines.secrets")  # until it has been imported, no secret is known
    sys.stderr.write(secrets.masked(text) if secrets else text)
    return _EXIT_UNEXPECTED
