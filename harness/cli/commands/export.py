"""The command ``bakeoff export``."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import cyclopts

from bakeoff.harness.cli.command import Command, Title, command
from bakeoff.harness.cli.options import File, Json

Format = Annotated[
    Literal["csv", "parquet", "json", "vllm", "llm-d", "pytest-benchmark"],
    cyclopts.Parameter(name="--as"),
]


def export(run: str, *, as_: Format, out: File) -> list[Path]:
    """Export a run as tables or as another tool's result files.

    Examples
    --------
    bakeoff export runs/RUN --as csv --out tables
    bakeoff export runs/RUN --as parquet --out tables
    bakeoff export runs/RUN --as pytest-benchmark --out .

    Parameters
    ----------
    run
        Run folder.
    as_
        Our own tables as csv, parquet or json; or the tool whose file format to write.
    out
        Folder for the files.
    """
    from bakeoff.harness.cli.stored import read
    from bakeoff.results.views.exports import export as export_run

    return list(export_run(read(run), as_, Path(out)))


def _show_paths(paths: list[Path], *, json: Json = False) -> None:
    """Print the files.

    Parameters
    ----------
    json
        Print their paths as JSON.
    """
    from bakeoff.harness.cli.output import print_json

    if json:
        print_json([str(path) for path in paths])
    else:
        sys.stdout.writelines(f"{path}\n" for path in paths)


COMMANDS = [Command("export", command(export, _show_paths), Title.PREPARE, 60)]
