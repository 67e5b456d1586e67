"""Turns every expected error into one line and an exit code; anything else is our bug and keeps its traceback."""

import sys
import traceback
from collections.abc import Sequence
from types import TracebackType

import cyclopts

from harness.cli.options import EXIT_INTERRUPTED, EXIT_OK, EXIT_USER
from harness.errors import expected_errors, first_leaf


def guarded(app: cyclopts.App, arguments: Sequence[str]) -> int:
    """Run the application on the words after ``bakeoff``.

    Returns:
        what the command returned, or 2 for a mistake of the user or the machine, 130 after Ctrl-C.
    """
    try:
        result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except cyclopts.CycloptsError as error:
        return _complain(" ".join(str(error).split()), "see bakeoff --help")
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as raised:
        error = first_leaf(raised)
        if not isinstance(error, expected_errors()):
            raise
        for line in getattr(error, "log_tail", ()):
            sys.stderr.write(_masked(f"  | {line}\n"))
        return _complain(str(error))
    return result if isinstance(result, int) else EXIT_OK


def complain_of_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The traceback of what nobody expected, without the secrets that may stand in it; for ``sys.excepthook``."""
    sys.stderr.write(_masked("".join(traceback.format_exception(kind, error, trace))))


def _complain(message: str, hint: str | None = None) -> int:
    sys.stderr.write(_masked(f"bakeoff: {message}{f'; {hint}' if hint else ''}\n"))
    return EXIT_USER


def _masked(text: str) -> str:
    """Without secrets; a command that has not come as far as importing engines knows none."""
    known = sys.modules.get("engines.secrets")
    return known.masked(text) if known else text
