"""Each metric at each load: ratio, judgement, what the trials can detect, and why."""

from functools import partial

from bakeoff.results.compare.comparison import EngineComparison
from bakeoff.results.compare.noise import limit_text
from bakeoff.results.compare.text import change_text, heading, why_text
from bakeoff.results.metric import Better
from bakeoff.results.metrics import COMPARED
from bakeoff.results.report.charts.strips import ratio_axis, ratio_strip
from bakeoff.results.show.table import Cell, Column, Kind, Table, Tone
from bakeoff.results.statistics import Comparison, Judgement
from bakeoff.results.statistics.comparison import scale_of
from bakeoff.results.text.format import ABSENT, effect_text

PLACE = 10
SIGNS = {Judgement.BETTER: "▲", Judgement.WORSE: "▼", Judgement.SAME: "=", Judgement.UNCLEAR: "?"}
"""Symbol of each judgement."""
_COLUMNS = [
    Column("load", Kind.GROUP),
    Column("metric", Kind.NAME),
    Column("ratio B/A [interval]"),
    Column("less ← 1 → more", Kind.PICTURE),
    Column("judgement", Kind.NAME),
    Column("detectable"),
    Column("why", Kind.REASON),
]


def table(compared: EngineComparison) -> Table:
    """One row for each metric at each load."""
    band = compared.config.band
    axis = ratio_axis((comparison.ratio for comparison in compared.comparisons), band)
    return Table(
        "Ratios of the candidate to the baseline",
        _COLUMNS,
        [
            [
                Cell(heading(one)),
                Cell(f"{'● ' if one is compared.primary else ''}{title(one)}"),
                Cell(effect_text(one), value=one.ratio),
                Cell("", picture=partial(ratio_strip, title(one), axis, one.ratio, band, Tone[one.judgement.name])),
                Cell(judgement_text(one), tone=Tone[one.judgement.name], value=one.judgement),
                Cell(_detectable(one)),
                Cell(why_text(compared, one)),
            ]
            for one in compared.comparisons
        ],
    )


def title(comparison: Comparison) -> str:
    """The metric, and which direction is better: ``TTFT p50 ↓``."""
    metric = COMPARED[comparison.metric]
    return f"{metric.title} {'↑' if metric.better is Better.HIGHER else '↓'}"


def judgement_text(comparison: Comparison) -> str:
    """``▼ worse``; in brackets if it decides no gate."""
    text = f"{SIGNS[comparison.judgement]} {comparison.judgement.value}"
    return text if comparison.is_guardrail else f"({text})"


def _detectable(comparison: Comparison) -> str:
    """``±3.1 %``: the smallest detectable change, with power 0.9; ``holds to 15 %`` of noise that is not seen."""
    if comparison.evidence is None:
        return ABSENT
    if comparison.evidence.withstands is not None and comparison.judgement is not Judgement.UNCLEAR:
        return f"holds to {limit_text(comparison, comparison.evidence.withstands)}"
    return change_text(comparison.evidence.smallest_effect, scale_of(COMPARED[comparison.metric]), "±")
