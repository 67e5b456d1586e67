"""Options and exit codes shared by the commands."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

if TYPE_CHECKING:
    from rich.console import Console

Out = Annotated[Path, cyclopts.Parameter(name="--out")]
"""Folder for run folders."""
Json = Annotated[bool, cyclopts.Parameter(name="--json", negative="")]
"""Machine-readable output on stdout."""
Metrics = Annotated[list[str] | None, cyclopts.Parameter(name="--metric", negative="")]
"""Metric names, as in the catalogue."""
Bands = Annotated[list[str] | None, cyclopts.Parameter(name="--band", negative="")]
"""Largest change that counts as equal, for all metrics or for one."""
Workers = Annotated[int | None, cyclopts.Parameter(name="--workers")]
"""Worker processes of the measuring client."""
Ray = Annotated[str | None, cyclopts.Parameter(name="--ray")]
"""Ray cluster that runs the workers."""

DEFAULT_OUT = Path("runs")
EXIT_OK, EXIT_USER, EXIT_INVALID, EXIT_INTERRUPTED = 0, 2, 3, 130
"""2: the user made a mistake. 3: the run is no evidence, or its files cannot be written."""
EXIT_REGRESSION, EXIT_CANNOT_TELL = 1, 2
"""Verdicts of gate and history. There a mistake exits with 3: a pipeline that tolerates 2 must not tolerate a typo."""
_WIDTH = 100


def print_notice(line: str) -> None:
    """Print a line about something that was left out, beside the command's output."""
    sys.stderr.write(f"bakeoff: {line}\n")


def standard_output() -> "Console":
    """The console for tables; a pipe has no width, so it gets a fixed one."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=_WIDTH)
