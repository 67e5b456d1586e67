"""What the settings of a grid do, and which are best."""

from collections.abc import Mapping
from typing import Any

from bakeoff.results.report.grid_table import grid_notes, grid_tables
from bakeoff.results.report.section import Section
from bakeoff.results.run.grid import grid_report
from bakeoff.results.run.run import Run


def _build(run: Run) -> Mapping[str, Any]:
    if not run.manifest.grid:
        return {}
    report = grid_report(run)
    return {"tables": grid_tables(report), "notes": grid_notes(report)}


SECTIONS = (
    Section(
        id="settings",
        title="Settings",
        shows="of a grid: the best settings, and the effect of each value and each pair of settings",
        place=22,
        build=_build,
    ),
)
