"""What the commands share: options and exit codes."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

if TYPE_CHECKING:
    from rich.console import Console

Out = Annotated[Path, cyclopts.Parameter(name="--out")]
"""Where run folders go."""
Json = Annotated[bool, cyclopts.Parameter(name="--json", negative="")]
"""Machine-readable output on stdout."""
Metrics = Annotated[list[str] | None, cyclopts.Parameter(name="--metric", negative="")]
"""Names of the catalogue."""
Bands = Annotated[list[str] | None, cyclopts.Parameter(name="--band", negative="")]
"""How much of a change nobody minds, for all metrics or for one."""
Workers = Annotated[int | None, cyclopts.Parameter(name="--workers")]
"""Processes of the measuring client."""
Ray = Annotated[str | None, cyclopts.Parameter(name="--ray")]
"""A cluster for them."""

DEFAULT_OUT = Path("runs")
EXIT_OK, EXIT_USER, EXIT_INVALID, EXIT_INTERRUPTED = 0, 2, 3, 130
"""Exit codes: the user's mistake is 2, a run that is no evidence, or that cannot be written, is 3."""
EXIT_REGRESSION, EXIT_CANNOT_TELL = 1, 2
"""Of gate and history, where a mistake is 3: a pipeline that lets 2 pass must not let a typing error pass."""
_WIDTH = 100


def standard_output() -> "Console":
    """Where tables go; a pipe has no width of its own."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=_WIDTH)
