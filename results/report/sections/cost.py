"""What the traffic of each engine at each load costs, if the experiment states prices."""

from collections.abc import Mapping
from typing import Any

import msgspec

from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.report.cost_table import (
    BREAK_EVEN_CAPTION,
    CAPTION,
    TITLES,
    cost_text,
    name_of,
    shown_figures,
    whys,
)
from bakeoff.results.report.section import Section
from bakeoff.results.run.cost import Figure, costs
from bakeoff.results.run.levels import engines_of
from bakeoff.results.run.run import Run


class Row(msgspec.Struct, frozen=True):
    """One engine at one load, as texts."""

    load: str
    engine: str
    colour: str
    figures: list[list[str]]
    """Of each figure its centre and, if it has them, its bounds."""


def _build(run: Run) -> Mapping[str, Any]:
    if not run.manifest.prices:
        return {}
    entries = costs([run])
    shown = shown_figures(entries)
    engines = engines_of(run)
    return {
        "cost_titles": [TITLES[figure] for figure in shown],
        "cost_rows": [
            Row(
                entry.load,
                name_of(entry, entries),
                engine_class(engines.index(entry.engine)),
                [cost_text(figure, entry.figures.get(figure)).split("\n") for figure in shown],
            )
            for entry in entries
        ],
        "cost_captions": [CAPTION, *([BREAK_EVEN_CAPTION] if Figure.BREAK_EVEN in shown else [])],
        "cost_whys": whys(entries),
    }


SECTIONS = (
    Section(
        id="cost",
        title="Cost",
        shows="cost by token, request and session, and the break-even with an API, if the experiment states prices",
        place=28,
        build=_build,
    ),
)
