"""Turns every expected error into one line and an exit code; anything else is our bug and keeps its traceback."""

import errno
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType

import cyclopts

from harness.cli.options import EXIT_INTERRUPTED, EXIT_INVALID, EXIT_OK, EXIT_USER
from harness.errors import expected_errors, first_leaf
from harness.shadowing import shadowed

_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
"""A disk that is full or read-only, met by something that has no words of its own for it, such as a temporary file."""


_JUDGES = {"gate", "history"}
"""Commands whose exit code 2 says that they cannot tell: a mistake is 3 there."""


def guarded(app: cyclopts.App, arguments: Sequence[str]) -> int:
    """Run the application on the words after ``bakeoff``.

    Returns:
        what the command returned, or 2 for a mistake of the user or the machine (of gate and history 3), 3 where what
        it made cannot be written, 130 after Ctrl-C.
    """
    mistake = EXIT_INVALID if arguments and arguments[0] in _JUDGES else EXIT_USER
    try:
        result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except cyclopts.CycloptsError as error:
        _complain(" ".join(str(error).split()), "see bakeoff --help")
        return mistake
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as raised:
        if isinstance(raised, ImportError | AttributeError) and (complaint := shadowed()):
            _complain(complaint)
            return mistake
        error = first_leaf(raised)
        if isinstance(error, OSError) and error.errno in _UNWRITABLE:
            _complain(f"cannot write {error.filename or 'a file'}: {error.strerror}", "free some space, or set TMPDIR")
            return EXIT_INVALID
        if not isinstance(error, expected_errors()):
            raise
        for line in getattr(error, "log_tail", ()):
            sys.stderr.write(_masked(f"  | {line}\n"))
        _complain(str(error))
        return EXIT_INVALID if isinstance(error, _unwritable()) else mistake
    return result if isinstance(result, int) else EXIT_OK


def complain_of_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The traceback of what nobody expected, without the secrets that may stand in it; for ``sys.excepthook``."""
    sys.stderr.write(_masked("".join(traceback.format_exception(kind, error, trace))))


def _complain(message: str, hint: str | None = None) -> None:
    sys.stderr.write(_masked(f"bakeoff: {message}{f'; {hint}' if hint else ''}\n"))


def _masked(text: str) -> str:
    """Without secrets; a command that has not come as far as importing engines knows none."""
    known = sys.modules.get("engines.secrets")
    return known.masked(text) if known else text


def _unwritable() -> type[Exception]:
    from results.errors import NotWritable

    return NotWritable
