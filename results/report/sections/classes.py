"""Results by class of the traffic, each by its own SLO, and how even they are."""

from collections.abc import Mapping
from typing import Any

from bakeoff.results.report.class_figures import (
    COLUMNS,
    FAIRNESS_CAPTION,
    bounds_of,
    fairness_lines,
    goodput_text,
    interference_lines,
)
from bakeoff.results.report.group_rows import titles_of, with_figures
from bakeoff.results.report.section import Section
from bakeoff.results.run.groups import by_class, fairness, interference
from bakeoff.results.run.run import Run


def _build(run: Run) -> Mapping[str, Any]:
    groups = by_class(run)
    if not groups:
        return {}
    rows = with_figures(run, groups, COLUMNS)
    return {
        "class_columns": titles_of(groups, COLUMNS),
        "class_rows": [(row, goodput_text(row.group)) for row in rows],
        "class_slos": bounds_of(run),
        "class_lines": [*fairness_lines(fairness(run, groups)), *interference_lines(interference(run))],
        "class_caption": FAIRNESS_CAPTION,
    }


SECTIONS = (
    Section(
        id="classes",
        title="Classes",
        shows=(
            "latencies, attainment and goodput of each class by its own SLO; fairness, and the worst class; latencies "
            "among the others over those alone"
        ),
        place=14,
        build=_build,
    ),
)
