"""A comparison as a table: one line per load level and metric, with ratio, interval and judgement."""

import bisect
from collections.abc import Sequence
from functools import partial

import msgspec
from rich.console import Console, Group
from rich.text import Text

from bakeoff.results.compare.comparison import EngineComparison
from bakeoff.results.compare.noise import caveat_text, seen_text
from bakeoff.results.compare.text import heading, mix_text, work_text
from bakeoff.results.report.comparisons import comparison_tables
from bakeoff.results.report.comparisons.metrics import SIGNS
from bakeoff.results.report.tallies import tally_text
from bakeoff.results.show.table import Table
from bakeoff.results.show.terminal import drawn
from bakeoff.results.statistics import Comparison, Judgement
from bakeoff.results.text.format import plain

MAX_LINES = 30
"""Lines of a comparison unless all are asked for: what a terminal shows at once."""


def print_comparison(compared: EngineComparison, console: Console, *, max_lines: int | None = None) -> None:
    """Print a comparison, level by level.

    Args:
        compared: the comparison.
        console: the console. Judgements are written out next to their colour, so plain output loses nothing.
        max_lines: the metrics that matter least are left out until so many lines suffice; the primary metric and what
            is said about whole trials stay. None prints everything.
    """
    ranked = sorted(compared.comparisons, key=partial(_rank, compared))
    content = partial(_content, compared, comparison_tables(compared), console)
    count = len(ranked)
    if max_lines is not None:
        fitting = bisect.bisect_right(
            range(1, count + 1), max_lines, key=lambda shown: len(console.render_lines(content(ranked[:shown])))
        )
        count = max(1, fitting)
    console.print(content(ranked[:count]))


def _rank(compared: EngineComparison, comparison: Comparison) -> tuple[bool, bool, int]:
    """Sort key: the primary metric, then guardrails, of each what is decided before what is not."""
    order = (Judgement.WORSE, Judgement.BETTER, Judgement.UNCLEAR, Judgement.SAME)
    return comparison is not compared.primary, not comparison.is_guardrail, order.index(comparison.judgement)


def _content(
    compared: EngineComparison, tables: Sequence[Table], console: Console, shown: Sequence[Comparison]
) -> Group:
    """What is printed of a comparison: all but the rows of metrics that are not shown."""
    a, b = plain(compared.a), plain(compared.b)
    left_out = [comparison for comparison in compared.comparisons if comparison not in shown]
    of_metrics, *others = tables  # the first has a row for each comparison
    pairs = zip(of_metrics.rows, compared.comparisons, strict=True)
    of_shown = msgspec.structs.replace(of_metrics, rows=[row for row, comparison in pairs if comparison in shown])
    lines = [
        *(Text(plain(line), "yellow") for line in trial_lines(compared)),
        *([Text(f"{len(left_out)} more lines, {_counts(left_out)}: --all prints them", "bold")] if left_out else []),
        *(Text(plain(line), "yellow") for line in noise_lines(compared)),
        Text(tally(compared), "dim"),
    ]
    head = Text(f"{b} against {a}: a ratio above 1 means that {b} has the higher value", "bold")
    directions = Text("↑: higher is better, ↓: lower is better", "dim")
    return Group(head, directions, drawn([of_shown, *others], console), *lines)


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


def noise_lines(compared: EngineComparison) -> list[str]:
    """Which noise the comparison has seen, and what would undo its primary result; empty if it has no noise."""
    primary = compared.primary
    if primary.evidence is None:
        return []
    caveat = caveat_text(primary)
    return [f"{seen_text(primary.evidence, compared.apart_s)}{f'; ● {caveat}' if caveat else ''}"]
