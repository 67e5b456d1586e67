"""The metric that got worse most, at each load."""

from itertools import groupby

from bakeoff.results.compare.comparison import EngineComparison
from bakeoff.results.compare.text import heading
from bakeoff.results.report.comparisons.metrics import title
from bakeoff.results.show.table import Cell, Column, Kind, Table
from bakeoff.results.statistics import Judgement
from bakeoff.results.text.format import effect_text

PLACE = 30


def table(compared: EngineComparison) -> Table:
    """One row for each load at which a metric is worse, with the metric of the smallest p value."""
    worse = (one for one in compared.comparisons if one.judgement is Judgement.WORSE and one.evidence)
    firsts = [min(group, key=lambda one: one.evidence.p_value) for _, group in groupby(worse, heading)]
    rows = [[Cell(heading(one)), Cell(title(one)), Cell(effect_text(one), value=one.ratio)] for one in firsts]
    columns = [Column("load", Kind.NAME), Column("surest", Kind.NAME), Column("ratio B/A")]
    return Table("Surest degradations", columns, rows, title="Surest degradations")
