"""Faults that the harness caused under load, and how the engines recovered."""

from collections.abc import Mapping
from typing import Any

import msgspec

from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.report.fault_table import CAPTION, TITLES, figures_of, name_of
from bakeoff.results.report.section import Section
from bakeoff.results.run.faults import faults_of
from bakeoff.results.run.levels import engines_of
from bakeoff.results.run.run import Run


class Row(msgspec.Struct, frozen=True):
    """One fault of an engine at a load, as texts."""

    load: str
    engine: str
    colour: str
    fault: str
    figures: list[list[str]]
    """Lines of each figure."""


def _build(run: Run) -> Mapping[str, Any]:
    summaries, engines = faults_of(run), engines_of(run)
    if not summaries:
        return {}
    rows = [
        Row(
            each.level,
            each.engine,
            engine_class(engines.index(each.engine)),
            name_of(each),
            [text.split("\n") for text in figures_of(each)],
        )
        for each in summaries
    ]
    return {"fault_titles": TITLES, "fault_rows": rows, "fault_caption": CAPTION}


SECTIONS = (
    Section(
        id="faults",
        title="Faults",
        shows="of each fault that was caused under load: time until the SLO held again, and requests lost until then",
        place=16,
        build=_build,
    ),
)
