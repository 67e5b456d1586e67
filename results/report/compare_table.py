"""A comparison as a table: one line per load level and metric, with ratio, interval and judgement."""

from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bakeoff.results.compare.comparison import EngineComparison
from bakeoff.results.compare.text import change_text, mix_text, why_text, work_text
from bakeoff.results.metric import Better
from bakeoff.results.metrics import COMPARED
from bakeoff.results.metrics.quality import QualitySummary
from bakeoff.results.report.footnotes import Footnotes
from bakeoff.results.report.quality import match_text
from bakeoff.results.report.tallies import tally_text
from bakeoff.results.report.terminal_table import terminal_table
from bakeoff.results.statistics import Comparison, Judgement
from bakeoff.results.statistics.comparison import scale_of
from bakeoff.results.text.format import ABSENT, effect_text, listed, plain

_STYLES = {
    Judgement.BETTER: "bold green",
    Judgement.WORSE: "bold red",
    Judgement.SAME: "cyan",
    Judgement.UNCLEAR: "yellow",
}
SIGNS = {Judgement.BETTER: "▲", Judgement.WORSE: "▼", Judgement.SAME: "=", Judgement.UNCLEAR: "?"}
"""Symbol of each judgement."""


def print_comparison(compared: EngineComparison, console: Console) -> None:
    """Print a comparison, level by level.

    Args:
        compared: the comparison.
        console: the console. Judgements are written out next to their colour, so plain output loses nothing.
    """
    a, b = plain(compared.a), plain(compared.b)
    console.print(Text(f"{b} against {a}: a ratio above 1 means that {b} has the higher value", "bold"))
    console.print(Text("↑: higher is better, ↓: lower is better", "dim"))
    notes = Footnotes()
    console.print(_table(compared, notes))
    for line in notes.lines():
        console.print(Text(line, "dim"))
    for line in trial_lines(compared):
        console.print(Text(plain(line), "yellow"))
    console.print(Text(tally(compared), "dim"))


def trial_lines(compared: EngineComparison) -> list[str]:
    """One line for each way in which an engine failed trials, and for each load with unequal work or other requests."""
    a, b = compared.a, compared.b
    failures = [
        f"{SIGNS[failure.judgement]} {tally_text(failure, a, b)}"
        for failure in compared.tallies
        if failure.judgement is not Judgement.SAME
    ]
    unequal = [
        f"{SIGNS[work.judgement]} work at {work.level}, {b} compared with {a}: {work_text(work)}"
        for work in compared.work.values()
        if not work.is_equal
    ]
    other = [
        f"{SIGNS[Judgement.UNCLEAR]} requests at {work.level}, {b} compared with {a}: {mix_text(work)}"
        for work in compared.work.values()
        if work.mix
    ]
    return [*failures, *unequal, *other]


def tally(compared: EngineComparison) -> str:
    """Count of each judgement, and their confidence level."""
    judgements = [comparison.judgement for comparison in compared.comparisons]
    counts = ", ".join(
        f"{judgements.count(judgement)} {judgement.value}" for judgement in Judgement if judgement in judgements
    )
    level = f"{100 * (1 - compared.config.alpha):.3g} %"
    shown = sum(not comparison.is_guardrail for comparison in compared.comparisons)
    others = f"; {shown} others, in brackets, are judged by themselves and decide no gate" if shown else ""
    return f"{counts}; confidence {level} for the primary metric (●), and for all guardrails together (Holm){others}"


def title(comparison: Comparison) -> str:
    """The metric, and which direction is better: ``TTFT p50 ↓``."""
    metric = COMPARED[comparison.metric]
    return f"{metric.title} {'↑' if metric.better is Better.HIGHER else '↓'}"


def judgement_text(comparison: Comparison) -> str:
    """``▼ worse``; in brackets if it decides no gate."""
    text = f"{SIGNS[comparison.judgement]} {comparison.judgement.value}"
    return text if comparison.is_guardrail else f"({text})"


def smallest_text(comparison: Comparison) -> str:
    """``±3.1 %``: the smallest detectable change, with power 0.9."""
    if comparison.evidence is None:
        return ABSENT
    return change_text(comparison.evidence.smallest_effect, scale_of(COMPARED[comparison.metric]), "±")


def _table(compared: EngineComparison, notes: Footnotes) -> Table:
    """One line for each metric; reasons are footnotes, because most metrics of a comparison share one."""
    table = terminal_table("metric")
    table.add_column(Text("ratio B/A [interval]"), justify="right", no_wrap=True)
    table.add_column("judgement", no_wrap=True)
    table.add_column("detectable", justify="right", no_wrap=True)
    table.add_column("why", no_wrap=True)
    for level, members in groupby(compared.comparisons, key=lambda comparison: comparison.level):
        table.add_row(Text(plain(level), "bold"))
        for comparison in members:
            table.add_row(*_row(compared, comparison, notes))
        if level in compared.answers:
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
