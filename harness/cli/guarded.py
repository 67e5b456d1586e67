"""Turns expected errors into one line and an exit code; any other exception is our bug, and says so."""

import errno
import inspect
import sys
from collections.abc import Sequence

import cyclopts

from bakeoff.harness.cli.exits import EXIT_INTERRUPTED, EXIT_INVALID, EXIT_OK, mistake_code
from bakeoff.harness.errors import ClientFailed, expected_errors, first_leaf
from bakeoff.harness.unexpected import unexpected

_MOST_CHARS = 400
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
"""A full or read-only disk, or a file above the limit of its size.

Bare OSErrors come from code that raises no error of ours, such as temporary files.
"""
_MEASURING = {"bench", "gate", "lab calibrate", "profile", "run", "search"}
RENAMED = {
    "calibrate": "bakeoff lab calibrate",
    "claims": "bakeoff lab claims",
    "cost": "bakeoff report RUN cost",
    "engines doctor": "bakeoff doctor --environment",
    "engines start": "bakeoff serve MODEL --engine ADAPTER",
    "floor": "bakeoff lab floor",
    "frontier": "bakeoff report RUN frontier",
    "grid": "bakeoff report RUN grid",
    "machine": "bakeoff lab machine",
    "profile --diff": "bakeoff compare A B --parts",
    "truth": "bakeoff lab truth",
    "views": "bakeoff report RUN views",
}
"""Commands of earlier versions, and what replaces them."""


def guarded(app: cyclopts.App, arguments: Sequence[str]) -> int:
    """Run the application on the arguments after ``bakeoff``.

    Returns:
        The command's exit code, by :mod:`bakeoff.harness.cli.exits`.
    """
    command = " ".join(app.parse_commands(arguments)[0])
    mistake = mistake_code(command, arguments)
    for words in (" ".join(arguments[:2]), *arguments[:1]):
        if words in RENAMED:
            _complain(f"bakeoff {words} is {RENAMED[words]} now")
            return mistake
    if command in _MEASURING and (odd := next(filter(_is_undecodable, arguments), None)):
        _complain(f"{odd!r} is not UTF-8, which names that are stored must be", "rename it")
        return mistake
    try:
        if command == "bench":
            arguments = _with_translated(arguments)
        result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except cyclopts.CycloptsError as error:
        command = " ".join(["bakeoff", *(error.command_chain or ())])
        _complain(_clipped(_mistake(error, command)), f"see {command} --help")
        return mistake
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as raised:  # noqa: BLE001  (what is not expected is reported as such)
        return _failed(raised, mistake, app, arguments)
    return result if isinstance(result, int) else EXIT_OK


_ALIKE = ({"--requests", "--duration"}, {"--rate", "--concurrency"}, {"--workload", "--input", "--output"})
"""Options of bench of which one excludes the others."""


def _with_translated(arguments: Sequence[str]) -> list[str]:
    """The arguments of ``bakeoff bench`` with ours in place of ``--from COMMAND``, which is said on stderr.

    Raises:
        BadExperiment: the command is none of a known load generator.
    """
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--from=") else [word])]
    if "--from" not in words:
        return list(arguments)
    from bakeoff.harness.cli.output import print_notice
    from bakeoff.harness.cli.peers import translated
    from bakeoff.harness.errors import BadExperiment

    place = words.index("--from")
    if place + 1 == len(words):
        raise BadExperiment("--from needs a whole command: --from 'vllm bench serve --base-url … --request-rate 4'")
    ours, notes = translated(words[place + 1])
    own = [*words[1:place], *words[place + 2 :]]
    given = {word.partition("=")[0] for word in own if word.startswith("-")}
    if twice := sorted(given & {each for group in _ALIKE if group & set(ours) for each in group} | given & set(ours)):
        raise BadExperiment(f"{twice[0]} is given beside --from, which sets it or its like; leave it out, or --from")
    if any("://" in word for word in own):
        raise BadExperiment("--from has the server's address; leave the other one out")
    for note in notes:
        print_notice(note)
    return [*words[:place], *ours, *words[place + 2 :]]


def _is_undecodable(argument: str) -> bool:
    """Whether an argument holds bytes that are not UTF-8, which Python keeps as lone surrogates."""
    return any("\ud800" <= char <= "\udfff" for char in argument)


def _mistake(error: cyclopts.CycloptsError, command: str) -> str:
    if isinstance(error, cyclopts.UnusedCliTokensError):
        return f"{command} takes no further argument: {' '.join(error.unused_tokens or ())}"
    if isinstance(error, cyclopts.UnknownOptionError) and command in {"bakeoff bench", "bakeoff search"}:
        from bakeoff.harness.cli.peers import hint

        if known := hint(error.token.keyword or error.token.value):
            return f"{command} has no {error.token.keyword or error.token.value} {known}"
    return " ".join(str(error).split()).removesuffix(".")


def _failed(raised: Exception, mistake: int, app: cyclopts.App, arguments: Sequence[str]) -> int:
    """Report an error of a command; its exit code, ``mistake`` for one of the user."""
    from bakeoff.results.errors import NoEvidence, NotWritable

    error = first_leaf(raised)
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        _complain(f"cannot write {error.filename or 'a file'}: {error.strerror}", "free some space, or set TMPDIR")
        return EXIT_INVALID
    if not isinstance(error, expected_errors()):
        return unexpected(error)
    for line in getattr(error, "log_tail", ()):
        sys.stderr.write(_masked(f"  | {line}\n"))
    if isinstance(error, NotWritable):
        _complain(str(error), None if error.has_advice else _remedy(app, arguments))
        return EXIT_INVALID
    _complain(str(error))
    return EXIT_INVALID if isinstance(error, ClientFailed | NoEvidence) else mistake


def _remedy(app: cyclopts.App, arguments: Sequence[str]) -> str:
    """What to do about a file that cannot be written, in the options of the command."""
    command = app.parse_commands(arguments)[1][-1].default_command
    if command is not None and "out" in inspect.signature(command).parameters:
        return "free some space, or choose a folder you own with --out"
    return "free some space, or make its folder writable"


def _clipped(text: str) -> str:
    """Text that quotes what was typed, without its middle if that is long."""
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS // 2]} … {text[-_MOST_CHARS // 2 :]}"


def _complain(message: str, hint: str | None = None) -> None:
    sys.stderr.write(_masked(_printable(f"bakeoff: {message}{f'; {hint}' if hint else ''}")) + "\n")


def _printable(text: str) -> str:
    """Text that quotes names from outside, without characters that control a terminal."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


def _masked(text: str) -> str:
    """Mask secrets. Until ``bakeoff.engines.secrets`` has been imported, no secret is known."""
    secrets = sys.modules.get("bakeoff.engines.secrets")
    return secrets.masked(text) if secrets else text
