"""Results by class of the traffic, each by its own SLO, and how even they are."""

from collections.abc import Sequence

from bakeoff.results.report.class_figures import (
    FAIRNESS_CAPTION,
    METRICS,
    bounds_of,
    fairness_lines,
    goodput_text,
    interference_lines,
)
from bakeoff.results.report.group_tables import group_table
from bakeoff.results.report.section import Section
from bakeoff.results.run.groups import by_class, fairness, interference
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Table


def class_tables(run: Run) -> Sequence[Table]:
    """One table, of a run with several classes."""
    groups = by_class(run)
    if not groups:
        return []
    lines = [*fairness_lines(fairness(run, groups)), *interference_lines(interference(run))]
    return [
        group_table(
            run, groups, METRICS, heading="class", label="Results by class",
            lead="Requests planned inside the windows of valid trials, by the class of their session; attainment and "
            "goodput are by its own SLO.",
            notes=[*bounds_of(run), *lines, *([FAIRNESS_CAPTION] if lines else [])],
            extra=[("goodput", goodput_text)],
        )
    ]  # fmt: skip


SECTIONS = (
    Section(
        id="classes",
        title="Classes",
        shows=(
            "latencies, attainment and goodput of each class by its own SLO; fairness, and the worst class; latencies "
            "among the others over those alone"
        ),
        place=14,
        tables=class_tables,
    ),
)
