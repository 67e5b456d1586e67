"""Commands that exchange results with other tools: views, export and import."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import cyclopts

from bakeoff.harness.cli.command import command
from bakeoff.harness.cli.exits import EXIT_OK
from bakeoff.harness.cli.options import DEFAULT_OUT, File, Json, Out

if TYPE_CHECKING:
    from bakeoff.results import Run
    from bakeoff.results.log.store import RunFolder

Tool = Annotated[
    Literal["vllm", "aiperf", "guidellm", "sglang", "genai-bench", "inference-perf", "mlperf"] | None,
    cyclopts.Parameter(name="--as"),
]
Format = Annotated[
    Literal["csv", "parquet", "json", "vllm", "llm-d", "pytest-benchmark"],
    cyclopts.Parameter(name="--as"),
]

import_app = cyclopts.App(name="import", help="Import another tool's results.")


def views(run: str, *, as_: Tool = None, json: Json = False) -> int:
    """Print what other benchmark clients would report for the same requests, and why.

    Parameters
    ----------
    run
        Run folder.
    as_
        Show every metric of one tool. Default: the main metrics of all tools side by side.
    json
        Print every figure of every trial as JSON.
    """
    from rich.console import Console

    from bakeoff.harness.cli.output import print_json
    from bakeoff.harness.cli.reading import read
    from bakeoff.results.errors import NotExportable
    from bakeoff.results.report.view_tables import WIDTH, print_tool, print_views
    from bakeoff.results.views.base import is_streamed

    loaded = read(run)
    if loaded.finished and not any(map(is_streamed, loaded.finished)):
        raise NotExportable(f"views are of streamed answers; those of {run} came whole: see bakeoff report {run}")
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    if json:
        print_json(_summary(loaded, as_))
    elif as_ is None:
        print_views(loaded, console)
    else:
        print_tool(loaded, as_, console)
    return EXIT_OK


def export(run: str, *, as_: Format, out: File) -> list[Path]:
    """Export a run as tables or as another tool's result files.

    Parameters
    ----------
    run
        Run folder.
    as_
        Our own tables as csv, parquet or json; or the tool whose file format to write.
    out
        Folder for the files.
    """
    from bakeoff.harness.cli.reading import read
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


EXPORT = command(export, _show_paths)


@import_app.command(name="vllm")
def import_vllm(file: Path, *, out: Out = DEFAULT_OUT, json: Json = False) -> int:
    """Import a result file of vllm bench serve.

    Save the file with --save-detailed: otherwise it has no times of single requests.

    Parameters
    ----------
    file
        Result file; several results in it (--append-result) become repeats.
    out
        Parent of the new run folder.
    json
        Print the summary as JSON.
    """
    from bakeoff.harness.run_import import import_vllm as import_run

    return _show_imported(import_run(file, Path(out)), json=json)


@import_app.command(name="aiperf")
def import_aiperf(file: Path, *, out: Out = DEFAULT_OUT, json: Json = False) -> int:
    """Import a profile_export.jsonl of AIPerf.

    Model and load are read from profile_export_aiperf.json beside it.

    Parameters
    ----------
    file
        Result file, or the folder that holds it.
    out
        Parent of the new run folder.
    json
        Print the summary as JSON.
    """
    from bakeoff.harness.run_import import import_aiperf as import_run

    return _show_imported(import_run(file, Path(out)), json=json)


@import_app.command(name="guidellm")
def import_guidellm(file: Path, *, out: Out = DEFAULT_OUT, json: Json = False) -> int:
    """Import a benchmarks.json of GuideLLM.

    Parameters
    ----------
    file
        Report; each of its benchmarks becomes a trial.
    out
        Parent of the new run folder.
    json
        Print the summary as JSON.
    """
    from bakeoff.harness.run_import import import_guidellm as import_run

    return _show_imported(import_run(file, Path(out)), json=json)


def _show_imported(folder: "RunFolder", *, json: bool) -> int:
    from bakeoff.harness.cli.reading import read, show

    show(read(folder.path), json=json)
    return EXIT_OK


def _summary(run: "Run", name: str | None) -> dict[str, Any]:
    import msgspec

    from bakeoff.results.views import VIEWS
    from bakeoff.results.views.side_by_side import view_trials

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
                "trial": viewed.trial.record.id,
                "engine": viewed.trial.record.engine,
                "load": viewed.trial.record.load.label,
                "repeat": viewed.trial.record.repeat,
                "verdict": viewed.trial.record.verdict.value,
                "views": {tool.name: msgspec.to_builtins(viewed.views[tool.name]) for tool in tools},
            }
            for viewed in view_trials(run)
        ],
    }
