"""What the commands share: options and exit codes."""

from pathlib import Path
from typing import Annotated

import cyclopts

Out = Annotated[Path, cyclopts.Parameter(name="--out")]
"""Where run folders go."""
Json = Annotated[bool, cyclopts.Parameter(name="--json", negative="")]
"""Machine-readable output on stdout."""
Workers = Annotated[int | None, cyclopts.Parameter(name="--workers")]
"""Processes of the measuring client."""
Ray = Annotated[str | None, cyclopts.Parameter(name="--ray")]
"""A cluster for them."""

DEFAULT_OUT = Path("runs")
EXIT_OK, EXIT_USER, EXIT_INVALID, EXIT_INTERRUPTED = 0, 2, 3, 130
"""Exit codes: the user's mistake is 2, a run that is no evidence is 3."""
