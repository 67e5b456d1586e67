"""The command ``bakeoff export``."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import cyclopts

from bakeoff.harness.cli.command import Command, Title, command
from bakeoff.harness.cli.options import Json, Out

Format = Annotated[
    Literal["csv", "parquet", "json", "vllm", "llm-d", "pytest-benchmark", "mlflow", "otlp"],
    cyclopts.Parameter(name="--as"),
]


def export(run: str, *, as_: Format, out: Out) -> list[str]:
    """Export a run as tables or as another tool's result files, or send its figures to a service.

    Examples
    --------
    bakeoff export runs/RUN --as csv --out tables
    bakeoff export runs/RUN --as pytest-benchmark --out .
    bakeoff export runs/RUN --as mlflow --out http://127.0.0.1:5000

    Parameters
    ----------
    run
        Run folder.
    as_
        Our own tables as csv, parquet or json; the tool whose file format to write; or the service that gets the
        summary: an MLflow server, or a collector of OpenTelemetry's metrics (otlp).
    out
        Folder for the files, or the service's address.
    """
    from bakeoff.harness.cli.stored import read
    from bakeoff.results.errors import NotExportable
    from bakeoff.results.export.services import Service, send
    from bakeoff.results.log.remote import is_remote
    from bakeoff.results.views.exports import export as export_run

    if as_ in set(Service):
        return send(read(run), Service(as_), str(out))
    if is_remote(out):
        raise NotExportable(f"--as {as_} writes files; give --out a folder")
    return [str(path) for path in export_run(read(run), as_, Path(out))]


def _show_places(places: list[str], *, json: Json = False) -> None:
    """Print the files, or what was made at the service.

    Parameters
    ----------
    json
        Print their paths or addresses as JSON.
    """
    from bakeoff.harness.cli.output import print_json

    if json:
        print_json(places)
    else:
        sys.stdout.writelines(f"{place}\n" for place in places)


COMMANDS = [Command("export", command(export, _show_places), Title.PREPARE, 60)]
