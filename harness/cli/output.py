"""What commands print: tables and JSON on stdout, lines about them on stderr."""

import sys
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console

_Result = TypeVar("_Result")


def print_line(line: str) -> None:
    """Print a line on stderr."""
    sys.stderr.write(f"{line}\n")


def print_notice(line: str) -> None:
    """Print a line about something that was left out, beside the command's output."""
    sys.stderr.write(f"bakeoff: {line}\n")


def standard_output() -> "Console":
    """The console for tables; a pipe has no width, so it gets a fixed one."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 100)


def print_result(
    result: _Result,
    print_table: "Callable[[_Result, Console], None]",
    *,
    json: bool,
    tables: "Callable[[], Mapping[str, Any]] | None" = None,
) -> None:
    """Print a result as JSON, together with the rows of its tables if there are any, or as a table."""
    import msgspec

    if json:
        print_json(result if tables is None else msgspec.to_builtins(result) | {"tables": tables()})
    else:
        print_table(result, standard_output())


def print_json(value: Any) -> None:  # noqa: ANN401  (anything that JSON holds)
    """Print ``value`` as indented JSON on stdout."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")
