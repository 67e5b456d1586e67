"""Commands that speak other tools' languages: views, export and import."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import cyclopts

from harness.cli.options import DEFAULT_OUT, EXIT_OK, Json, Out

if TYPE_CHECKING:
    from results import Run

As = Annotated[
    Literal["vllm", "aiperf", "guidellm", "sglang", "genai-bench", "inference-perf", "mlperf"] | None,
    cyclopts.Parameter(name="--as"),
]
FileOf = Annotated[
    Literal["csv", "parquet", "json", "vllm", "guidellm", "aiperf", "pytest-benchmark"], cyclopts.Parameter(name="--as")
]

import_app = cyclopts.App(name="import", help="Import another tool's results.")


def views(run: str, *, as_: As = None, json: Json = False) -> int:
    """Print what other benchmark clients would report for the same requests, and why.

    Parameters
    ----------
    run
        The run's folder.
    as_
        One tool in full; the default is all of them side by side.
    json
        Print every figure of every trial as JSON on stdout.
    """
    from rich.console import Console

    from harness.cli.reading import print_json, read
    from results.report.view_tables import WIDTH, print_tool, print_views

    found = read(run)
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    if json:
        print_json(_summary(found, as_))
    elif as_ is None:
        print_views(found, console)
    else:
        print_tool(found, as_, console)
    return EXIT_OK


def export(run: str, *, as_: FileOf, out: Path) -> int:
    """Export a run as tables or as another tool's result files.

    Parameters
    ----------
    run
        The run's folder.
    as_
        The run's own tables (csv, parquet, json), or whose files.
    out
        Folder for them.
    """
    from harness.cli.reading import read
    from results.views.exports import export as export_run

    for path in export_run(read(run), as_, out):
        sys.stdout.write(f"{path}\n")
    return EXIT_OK


@import_app.command(name="vllm")
def import_vllm(file: Path, *, out: Out = DEFAULT_OUT) -> int:
    """Import a result file of vllm bench serve.

    The file must have been saved with --save-detailed: without it, it holds no times of single requests.

    Parameters
    ----------
    file
        One result, or several that --append-result put into one file: they become repeats.
    out
        Folder in which the run's folder is made.
    """
    from harness.cli.reading import show
    from harness.importing import import_vllm as import_run

    show(import_run(file, out).path, json=False)
    return EXIT_OK


def _summary(run: "Run", name: str | None) -> dict[str, Any]:
    import msgspec

    from results.views import VIEWS
    from results.views.side_by_side import view_trials

    tools = [tool for tool in VIEWS.values() if name in {None, tool.name}]
    return {
        "run": str(run.path),
        "tools": {
            tool.name: {
                "title": tool.title,
                "version": tool.version,
                "conventions": msgspec.to_builtins(tool.conventions),
                "definitions": msgspec.to_builtins(tool.definitions),
            }
            for tool in tools
        },
        "trials": [
            {
                "trial": seen.trial.record.id,
                "engine": seen.trial.record.engine,
                "load": seen.trial.record.load.label,
                "repeat": seen.trial.record.repeat,
                "verdict": seen.trial.record.verdict.value,
                "views": {tool.name: msgspec.to_builtins(seen.views[tool.name]) for tool in tools},
            }
            for seen in view_trials(run)
        ],
    }
