"""A comparison as a table: what B does against A, one line per load level and metric, in a word and an interval."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from results.metrics import CATALOGUE
from results.quality import QualitySummary
from results.report.format import listed, plain, ratio_text
from results.report.quality import agrees
from results.statistics.compare import Comparison, Judgement

_STYLES = {
    Judgement.BETTER: "bold green",
    Judgement.WORSE: "bold red",
    Judgement.SAME: "cyan",
    Judgement.UNCLEAR: "yellow",
}
_SIGNS = {Judgement.BETTER: "▲", Judgement.WORSE: "▼", Judgement.SAME: "=", Judgement.UNCLEAR: "?"}


Answers = Mapping[str, tuple[QualitySummary | None, QualitySummary | None]]
"""How the answers of A and B compare with the reference, by level."""


def print_comparison(
    comparisons: Sequence[Comparison], a: str, b: str, console: Console, answers: Answers | None = None
) -> None:
    """Print the judgements of ``compare_paired``.

    Args:
        comparisons: in the order in which they are to be read; neighbours of one level are grouped.
        a: label of the baseline.
        b: label of the candidate.
        console: where to. The word stands beside its colour, so a pipe loses nothing.
        answers: of both sides beside the reference; a level without them says so.
    """
    console.print(Text(f"{plain(b)} against {plain(a)}: ratio above 1 means that {plain(b)} has more of it", "bold"))
    console.print(_table(comparisons, answers or {}))
    console.print(Text(_tally(comparisons), "dim"))


def _table(comparisons: Sequence[Comparison], answers: Answers) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("metric", overflow="fold")
    table.add_column(Text("ratio B/A [interval]"), justify="right", no_wrap=True)
    table.add_column("judgement", no_wrap=True)
    table.add_column("why", overflow="fold")
    for level, members in groupby(comparisons, key=lambda comparison: comparison.level):
        table.add_row(Text(plain(level), "bold"))
        for comparison in members:
            table.add_row(*_row(comparison))
        table.add_row(*_agreement(*answers.get(level, (None, None))))
        table.add_section()
    return table


def _row(comparison: Comparison) -> tuple[Text, Text, Text, Text]:
    metric = CATALOGUE[comparison.metric]
    word = comparison.judgement
    return (
        Text(f"{metric.title} ({metric.better.value} is better)"),
        Text(ratio_text(comparison.ratio)),
        Text(f"{_SIGNS[word]} {word.value}", _STYLES[word]),
        Text(plain(comparison.why), "dim"),
    )


def _agreement(a: QualitySummary | None, b: QualitySummary | None) -> tuple[Text, Text, Text, Text]:
    """What agrees with the reference on each side; a side that differs by more than rounding is marked."""
    sides = [agrees(summary, "not compared") for summary in (a, b)]
    shares = Text(" → ").join(Text(side.text, "bold red" if side.differs else "") for side in sides)
    differing = [name for name, side in zip("AB", sides, strict=True) if side.differs]
    marked = (
        Text(f"▼ {listed(differing)} differ{'s' if len(differing) == 1 else ''}", "bold red") if differing else Text("")
    )
    counts = ", ".join(
        f"{name}: {side.why or f'{side.answers} answers'}" for name, side in zip("AB", sides, strict=True)
    )
    return Text("agrees with the reference"), shares, marked, Text(counts, "dim")


def _tally(comparisons: Sequence[Comparison]) -> str:
    counts = {word: sum(one.judgement is word for one in comparisons) for word in Judgement}
    return ", ".join(f"{count} {word.value}" for word, count in counts.items() if count) or "nothing to compare"
