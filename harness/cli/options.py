"""Options shared by the commands."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from os import PathLike
    from typing import Any

    from bakeoff.harness.experiment.config import Experiment

    File = str | PathLike[str]
    Source = File | dict[str, Any] | Experiment
    Texts = str | Sequence[str]
    Numbers = int | Sequence[int]
    Files = File | Sequence[File]
    Bands = float | str | Iterable[str]
    JsonObject = str | Mapping[str, Any]
    Headers = Texts | Mapping[str, str]
    _Out = File
else:
    # What the command line makes of them. A program may pass more, which the checker sees above.
    File = Path
    Source = Annotated[str | Path, cyclopts.Parameter()]
    Texts = Annotated[list[str], cyclopts.Parameter(negative="")]
    Numbers = Annotated[list[int], cyclopts.Parameter(negative="")]
    Files = Annotated[list[Path], cyclopts.Parameter(negative="")]
    Bands = Annotated[list[str], cyclopts.Parameter(name="--band", negative="")]
    JsonObject = str
    Headers = Annotated[list[str], cyclopts.Parameter(name="--header", negative="")]
    _Out = str | Path  # tokens become text, for a path of s3://bucket would be s3:/bucket

Out = Annotated[_Out, cyclopts.Parameter(name="--out")]
"""Folder for run folders, or a store's address."""
DryRun = Annotated[bool, cyclopts.Parameter(name="--dry-run", negative="", show_default=False)]
Json = Annotated[bool, cyclopts.Parameter(name="--json", negative="", show_default=False)]
"""Machine-readable output on stdout."""
EveryMetric = Annotated[bool, cyclopts.Parameter(name="--all", negative="", show_default=False)]
"""Print every line of a comparison, however many."""
Candidates = Annotated[Texts | None, cyclopts.Parameter(name="--with", negative="", consume_multiple=True)]
"""Runs of a candidate."""
Metrics = Annotated[Texts | None, cyclopts.Parameter(name="--metric", negative="")]
"""Metric names, as in the catalogue."""
InputTokens = Annotated[int | None, cyclopts.Parameter(name="--input")]
"""Tokens of each prompt."""
OutputTokens = Annotated[int | None, cyclopts.Parameter(name="--output")]
"""Tokens of each answer."""
WorkloadOptions = Annotated[list[str] | None, cyclopts.Parameter(name="--option", negative="")]
"""Options of a workload, as key=value."""
Workers = Annotated[int | None, cyclopts.Parameter(name="--workers")]
"""Worker processes of the measuring client."""
Ray = Annotated[str | None, cyclopts.Parameter(name="--ray")]
"""Ray cluster that runs the workers."""

DEFAULT_OUT = Path("runs")


def texts(value: "Texts | None") -> list[str]:
    """An option that may be given several times, as a list."""
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def files(value: "Files | None") -> list[Path]:
    """The same for paths."""
    if value is None:
        return []
    return [Path(file) for file in ([value] if isinstance(value, str | os.PathLike) else value)]
