"""A gate's verdict on a terminal: the table, then the outcome and its reasons."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from bakeoff.results.compare.gate import GateVerdict, NoVerdict, Outcome
from bakeoff.results.report.compare_table import MAX_LINES, print_comparison
from bakeoff.results.report.gate.regressions import doubt_texts, regression_texts
from bakeoff.results.text.format import plain

_STYLES = {
    Outcome.NO_REGRESSION: "bold green",
    Outcome.REGRESSION: "bold red",
    Outcome.CANNOT_TELL: "bold yellow",
    Outcome.NO_EVIDENCE: "bold yellow",
}


def print_gate(verdict: GateVerdict | NoVerdict, console: Console, *, every_metric: bool = False) -> None:
    """Print a verdict. The outcome comes last, where readers of CI logs look, and does not rely on colour.

    Args:
        verdict: the verdict.
        console: the console.
        every_metric: whether to print every metric, rather than :data:`MAX_LINES` lines with those that matter most.
    """
    if isinstance(verdict, NoVerdict):
        console.print(_headline(verdict))
        return
    outcome = Text("\n").join(_outcome(verdict))
    left = MAX_LINES - len(console.render_lines(outcome))
    print_comparison(verdict.compared, console, max_lines=None if every_metric else left)
    console.print(outcome)


def _outcome(verdict: GateVerdict) -> Iterator[Text]:
    for note in verdict.notes:
        yield Text(f"note: {plain(note)}", "yellow")
    yield Text("")
    yield _headline(verdict)
    for line in regression_texts(verdict):
        yield Text(f"  ▼ {plain(line)}", "red")
    for line in doubt_texts(verdict):
        yield Text(f"  ? {plain(line)}", "yellow")


def _headline(verdict: GateVerdict | NoVerdict) -> Text:
    return Text(f"{verdict.outcome.value.upper()}: {plain(verdict.sentence)}", _STYLES[verdict.outcome])
