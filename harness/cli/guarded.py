"""Turns expected errors into one line and an exit code; any other exception is our bug, and says so."""

import errno
import sys
from collections.abc import Sequence

import cyclopts

from harness.cli.options import EXIT_INTERRUPTED, EXIT_INVALID, EXIT_OK, EXIT_USER
from harness.entry import unexpected
from harness.errors import ClientFailed, expected_errors, first_leaf
from harness.shadowing import shadowed

_MOST_CHARS = 400
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
"""A full or read-only disk. Bare OSErrors come from code that raises no error of ours, such as temporary files."""
_VERDICT_COMMANDS = {"claims", "gate", "history"}
"""Their exit code 2 means "cannot tell" or "some are left", so a mistake exits with 3."""


def guarded(app: cyclopts.App, arguments: Sequence[str]) -> int:
    """Run the application on the arguments after ``bakeoff``.

    Returns:
        The command's exit code; 2 for an expected error (3 from claims, gate and history), 3 if output cannot be
        written or the error is unexpected, 130 after Ctrl-C.
    """
    mistake = EXIT_INVALID if arguments and arguments[0] in _VERDICT_COMMANDS else EXIT_USER
    try:
        result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except cyclopts.CycloptsError as error:
        _complain(_clipped(" ".join(str(error).split())), "see bakeoff --help")
        return mistake
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as raised:  # noqa: BLE001  (what is not expected is reported as such)
        return _failed(raised, mistake)
    return result if isinstance(result, int) else EXIT_OK


def _failed(raised: Exception, mistake: int) -> int:
    """Report an error of a command; its exit code, ``mistake`` for one of the user."""
    if isinstance(raised, ImportError | AttributeError) and (complaint := shadowed()):
        _complain(complaint)
        return mistake
    error = first_leaf(raised)
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        _complain(f"cannot write {error.filename or 'a file'}: {error.strerror}", "free some space, or set TMPDIR")
        return EXIT_INVALID
    if not isinstance(error, expected_errors()):
        return unexpected(error)
    for line in getattr(error, "log_tail", ()):
        sys.stderr.write(_masked(f"  | {line}\n"))
    _complain(str(error))
    return EXIT_INVALID if isinstance(error, _of_the_machine()) else mistake


def _clipped(text: str) -> str:
    """Text that quotes what was typed, without its middle if that is long."""
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS // 2]} … {text[-_MOST_CHARS // 2 :]}"


def _complain(message: str, hint: str | None = None) -> None:
    sys.stderr.write(_masked(f"bakeoff: {message}{f'; {hint}' if hint else ''}\n"))


def _masked(text: str) -> str:
    """Mask secrets. Until ``engines.secrets`` has been imported, no secret is known."""
    secrets = sys.modules.get("engines.secrets")
    return secrets.masked(text) if secrets else text


def _of_the_machine() -> tuple[type[Exception], ...]:
    """Errors that are no mistake in the command."""
    from results.errors import NotWritable

    return NotWritable, ClientFailed
