"""A comparison as a table: what B does against A, one line per load level and metric, in a word and an interval."""

from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from results.comparing import Compared
from results.metrics import CATALOGUE
from results.quality import QualitySummary
from results.report.quality import agrees
from results.report.tallies import tally_text
from results.report.terminal_table import terminal_table
from results.statistics import Comparison, Judgement
from results.statistics.comparison import change_text, scale_of
from results.text.format import ABSENT, effect_text, listed, plain

_STYLES = {
    Judgement.BETTER: "bold green",
    Judgement.WORSE: "bold red",
    Judgement.SAME: "cyan",
    Judgement.UNCLEAR: "yellow",
}
SIGNS = {Judgement.BETTER: "▲", Judgement.WORSE: "▼", Judgement.SAME: "=", Judgement.UNCLEAR: "?"}
"""A mark beside each word."""


def print_comparison(compared: Compared, console: Console) -> None:
    """Print a comparison, level by level.

    Args:
        compared: what was found.
        console: where to. The word stands beside its colour, so a pipe loses nothing.
    """
    a, b = plain(compared.a), plain(compared.b)
    console.print(Text(f"{b} against {a}: ratio above 1 means that {b} has more of it", "bold"))
    console.print(_table(compared))
    for line in trial_lines(compared):
        console.print(Text(plain(line), "yellow"))
    console.print(Text(tally(compared), "dim"))


def trial_lines(compared: Compared) -> list[str]:
    """What the trials themselves say of the sides, before any metric: offences of the engines, and unequal work."""
    a, b = compared.a, compared.b
    offences = [
        f"{SIGNS[one.judgement]} {tally_text(one, a, b)}"
        for one in compared.tallies
        if one.judgement is not Judgement.SAME
    ]
    unequal = [
        f"{SIGNS[Judgement.UNCLEAR if work.judgement is Judgement.SAME else work.judgement]} "
        f"work at {work.level}, of {b} beside {a}: {work.why}"
        for work in compared.work.values()
        if not work.is_equal
    ]
    return [*offences, *unequal]


def tally(compared: Compared) -> str:
    """How many of each word there are, and what the words hold for."""
    words = [one.judgement for one in compared.comparisons]
    counts = ", ".join(f"{words.count(word)} {word.value}" for word in Judgement if word in words)
    level = f"{100 * (1 - compared.terms.alpha):.3g}%"
    return f"{counts}; at {level} for the primary metric (●), and at {level} for all others together (Holm)"


def title(comparison: Comparison) -> str:
    """The metric, and which way is better."""
    metric = CATALOGUE[comparison.metric]
    return f"{metric.title} ({metric.better.value} is better)"


def smallest_text(comparison: Comparison) -> str:
    """``±3.1%``: the smallest change that runs like these show in 9 of 10 cases."""
    if comparison.evidence is None:
        return ABSENT
    return f"±{change_text(comparison.evidence.smallest_effect, scale_of(CATALOGUE[comparison.metric]))}"


def _table(compared: Compared) -> Table:
    table = terminal_table("metric")
    table.add_column(Text("ratio B/A [interval]"), justify="right", no_wrap=True)
    table.add_column("judgement", no_wrap=True)
    table.add_column("would show", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for level, members in groupby(compared.comparisons, key=lambda comparison: comparison.level):
        table.add_row(Text(plain(level), "bold"))
        for comparison in members:
            table.add_row(*_row(comparison, is_primary=comparison is compared.primary))
        table.add_row(*_agreement(*compared.answers.get(level, (None, None))))
        table.add_section()
    return table


def _row(comparison: Comparison, *, is_primary: bool) -> tuple[Text, Text, Text, Text, Text]:
    word = comparison.judgement
    return (
        Text(f"{'● ' if is_primary else ''}{title(comparison)}"),
        Text(effect_text(comparison)),
        Text(f"{SIGNS[word]} {word.value}", _STYLES[word]),
        Text(smallest_text(comparison)),
        Text(plain(comparison.why), "dim"),
    )


def _agreement(a: QualitySummary | None, b: QualitySummary | None) -> tuple[Text, Text, Text, Text, Text]:
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
    return Text("token match"), shares, marked, Text(""), Text(counts, "dim")
