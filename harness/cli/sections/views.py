"""The section ``views`` of ``bakeoff report``: what other benchmark clients would report, and why."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bakeoff.harness.cli.sections.section import Section

if TYPE_CHECKING:
    from bakeoff.results import Run


def _print(runs: Sequence[str], options: Mapping[str, Any], json: bool) -> None:
    from rich.console import Console

    from bakeoff.harness.cli.output import print_json
    from bakeoff.harness.cli.stored import read
    from bakeoff.results.errors import NotExportable
    from bakeoff.results.report.view_tables import WIDTH, print_tool, print_views
    from bakeoff.results.views.base import is_streamed

    (location,), tool = runs, options.get("as_")
    run = read(location)
    if run.finished and not any(map(is_streamed, run.finished)):
        raise NotExportable(
            f"views are of streamed answers; those of {location} came whole: see bakeoff report {location}"
        )
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    if json:
        print_json(_summary(run, tool))
    elif tool is None:
        print_views(run, console)
    else:
        print_tool(run, tool, console)


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


SECTION = Section("views", _print, ("as_",))
