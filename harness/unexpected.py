"""Reports an error that is Bakeoff's own; imports nothing that may be broken."""

import os
import sys
import traceback
from pathlib import Path

from bakeoff.installation import REPOSITORY

TRACEBACK_VARIABLE = "BAKEOFF_TRACEBACK"
"""Environment variable: 1 prints the traceback of an unexpected error."""
EXIT_UNEXPECTED = 3  # as for a run that is no evidence; bakeoff.harness.cli.exits may not be importable here
_MOST_CHARS = 500


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
        told = f"please report it at {REPOSITORY}/issues with the output of {TRACEBACK_VARIABLE}=1"
        text = f"bakeoff: unexpected error{place}: {what}; {told}\n"
    secrets = sys.modules.get("bakeoff.engines.secrets")  # until it has been imported, no secret is known
    sys.stderr.write(secrets.masked(text) if secrets else text)
    return EXIT_UNEXPECTED
