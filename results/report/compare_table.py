"""A comparison as a table: one line per load level and metric, with ratio, interval and judgement."""

import bisect
from collections.abc import Sequence
from functools import partial
from itertools import groupby

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from bakeoff.results.compare.comparison import EngineComparison
from bakeoff.results.compare.noise import caveat_text, limit_text, seen_text
from bakeoff.results.compare.text import at_class, change_text, heading, mix_text, why_text, work_text
from bakeoff.results.metric import Better
from bakeoff.results.metrics import COMPARED
from bakeoff.results.metrics.quality import QualitySummary
from bakeoff.results.report.footnotes import Footnotes
from bakeoff.results.report.quality import match_text
from bakeoff.results.report.tallies import tally_text
from bakeoff.results.show.terminal import terminal_table
from bakeoff.results.statistics import Comparison, Judgement
from bakeoff.results.statistics.comparison import scale_of
from bakeoff.results.text.format import ABSENT, effect_text, listed, plain

_STYLES = {
    Judgement.BETTER: "bold green",
    Judgement.WORSE: "bold red",
    Judgement.SAME: "cyan",
    Judgement.UNCLEAR: "yellow",
}
MAX_LINES = 30
"""Lines of a comparison unless all are asked for: what a terminal shows at once."""
SIGNS = {Judgement.BETTER: "▲", Judgement.WORSE: "▼", Judgement.SAME: "=", Judgement.UNCLEAR: "?"}
"""Symbol of each judgement."""


def print_comparison(compared: EngineComparison, console: Console, *, max_lines: int | None = None) -> None:
    """Print a comparison, level by level.

    Args:
        compared: the comparison.
        console: the console. Judgements are written out next to their colour, so plain output loses nothing.
        max_lines: the metrics that matter least are left out until so many lines suffice; the primary metric and what
            is said about whole trials stay. None prints everything.
    """
    ranked = sorted(compared.comparisons, key=partial(_rank, compared))
    count = len(ranked)
    if max_lines is not None:
        counts = range(1, count + 1)
        fitting = bisect.bisect_right(
            counts, max_lines, key=lambda shown: len(console.render_lines(_content(compared, ranked[:shown])))
        )
        count = max(1, fitting)
    console.print(_content(compared, ranked[:count]))


def _rank(compared: EngineComparison, comparison: Comparison) -> tuple[bool, bool, int]:
    """Sort key: the primary metric, then guardrails, of each what is decided before what is not."""
    order = (Judgement.WORSE, Judgement.BETTER, Judgement.UNCLEAR, Judgement.SAME)
    return comparison is not compared.primary, not comparison.is_guardrail, order.index(comparison.judgement)


def _content(compared: EngineComparison, shown: Sequence[Comparison]) -> Group:
    a, b = plain(compared.a), plain(compared.b)
    notes = Footnotes()
    table = _table(compared, shown, notes)
    left_out = [comparison for comparison in compared.comparisons if comparison not in shown]
    lines = [
        *(Text(line, "dim") for line in notes.lines()),
        *(Text(plain(line), "yellow") for line in trial_lines(compared)),
        *([Text(f"{len(left_out)} more lines, {_counts(left_out)}: --all prints them", "bold")] if left_out else []),
        *(Text(plain(line), "yellow") for line in noise_lines(compared)),
        Text(tally(compared), "dim"),
    ]
    head = Text(f"{b} against {a}: a ratio above 1 means that {b} has the higher value", "bold")
    return Group(head, Text("↑: higher is better, ↓: lower is better", "dim"), table, *lines)


def trial_lines(compared: EngineComparison) -> list[str]:
    """A line for each way in which an engine failed trials, and each load with unequal work or that one side lacks."""
    a, b = compared.a, compared.b
    failures = [
        f"{SIGNS[failure.judgement]} {tally_text(failure, a, b)}"
        for failure in compared.tallies
        if failure.judgement is not Judgement.SAME
    ]
    unequal = [
        f"{SIGNS[work.judgement]} work at {heading(work)}, {b} compared with {a}: {work_text(work)}"
        for work in compared.works
        if not work.is_equal
    ]
    other = [
        f"{SIGNS[Judgement.UNCLEAR]} requests at {heading(work)}, {b} compared with {a}: {mix_text(work)}"
        for work in compared.works
        if work.mix
    ]
    absent = [
        f"{SIGNS[Judgement.UNCLEAR]} {b if side == 'B' else a} {lacks} {name}"
        for lacks, missing in (("was not measured at", compared.absent), ("lacks address", compared.absent_addresses))
        for name, side in missing.items()
    ]
    return [*failures, *unequal, *other, *absent]


def tally(compared: EngineComparison) -> str:
    """Count of each judgement, and their confidence level."""
    level = f"{100 * (1 - compared.config.alpha):.3g} %"
    shown = sum(not comparison.is_guardrail for comparison in compared.comparisons)
    others = f"; {shown} others, in brackets, are judged by themselves and decide no gate" if shown else ""
    counts = _counts(compared.comparisons)
    return f"{counts}; confidence {level} for the primary metric (●), and for all guardrails together (Holm){others}"


def _counts(comparisons: Sequence[Comparison]) -> str:
    """``2 better, 5 same``."""
    judgements = [comparison.judgement for comparison in comparisons]
    return ", ".join(
        f"{judgements.count(judgement)} {judgement.value}" for judgement in Judgement if judgement in judgements
    )


def title(comparison: Comparison) -> str:
    """The metric, and which direction is better: ``TTFT p50 ↓``."""
    metric = COMPARED[comparison.metric]
    return f"{metric.title} {'↑' if metric.better is Better.HIGHER else '↓'}"


def judgement_text(comparison: Comparison) -> str:
    """``▼ worse``; in brackets if it decides no gate."""
    text = f"{SIGNS[comparison.judgement]} {comparison.judgement.value}"
    return text if comparison.is_guardrail else f"({text})"


def smallest_text(comparison: Comparison) -> str:
    """``±3.1 %``: the smallest detectable change, with power 0.9; ``holds to 15 %`` of noise that is not seen."""
    if comparison.evidence is None:
        return ABSENT
    if comparison.evidence.withstands is not None and comparison.judgement is not Judgement.UNCLEAR:
        return f"holds to {limit_text(comparison, comparison.evidence.withstands)}"
    return change_text(comparison.evidence.smallest_effect, scale_of(COMPARED[comparison.metric]), "±")


def noise_lines(compared: EngineComparison) -> list[str]:
    """Which noise the comparison has seen, and what would undo its primary result; empty if it has no noise."""
    primary = compared.primary
    if primary.evidence is None:
        return []
    caveat = caveat_text(primary)
    return [f"{seen_text(primary.evidence, compared.apart_s)}{f'; ● {caveat}' if caveat else ''}"]


def _table(compared: EngineComparison, shown: Sequence[Comparison], notes: Footnotes) -> Table:
    """One line for each metric; reasons are footnotes, because most metrics of a comparison share one."""
    table = terminal_table("metric")
    table.add_column(Text("ratio B/A [interval]"), justify="right", no_wrap=True)
    table.add_column("judgement", no_wrap=True)
    table.add_column("detectable", justify="right", no_wrap=True)
    table.add_column("why", no_wrap=True)
    in_order = [comparison for comparison in compared.comparisons if comparison in shown]
    for (level, traffic_class), members in groupby(in_order, key=lambda one: (one.level, one.traffic_class)):
        table.add_row(Text(plain(at_class(level, traffic_class)), "bold"))
        for comparison in members:
            table.add_row(*_row(compared, comparison, notes))
        if traffic_class is None and any(compared.answers.get(level, ())):
            table.add_row(*_agreement(*compared.answers[level], notes))
        table.add_section()
    return table


def _row(compared: EngineComparison, comparison: Comparison, notes: Footnotes) -> tuple[Text, Text, Text, Text, Text]:
    judgement = comparison.judgement
    why = why_text(compared, comparison)
    return (
        Text(f"{'● ' if comparison is compared.primary else ''}{title(comparison)}"),
        Text(effect_text(comparison)),
        Text(judgement_text(comparison), _STYLES[judgement]),
        Text(smallest_text(comparison)),
        Text(notes.mark(COMPARED[comparison.metric].title, why) if why else "", "dim"),
    )


def _agreement(
    a: QualitySummary | None, b: QualitySummary | None, notes: Footnotes
) -> tuple[Text, Text, Text, Text, Text]:
    """Token match of each side; a side that differs by more than rounding explains is marked."""
    sides = [match_text(summary, "not compared") for summary in (a, b)]
    shares = Text(" → ").join(Text(side.text, "bold red" if side.differs else "") for side in sides)
    differing = [name for name, side in zip("AB", sides, strict=True) if side.differs]
    marked = (
        Text(f"▼ {listed(differing)} differ{'s' if len(differing) == 1 else ''}", "bold red") if differing else Text("")
    )
    counts = ", ".join(
        f"{name}: {side.why or f'{side.answers} answers'}" for name, side in zip("AB", sides, strict=True)
    )
    return Text("token match"), shares, marked, Text(""), Text(notes.mark("token match", counts), "dim")
