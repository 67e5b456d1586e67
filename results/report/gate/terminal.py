"""A gate's verdict on a terminal: the table, then the outcome and its reasons."""

from rich.console import Console
from rich.text import Text

from bakeoff.results.compare.gate import GateVerdict, Outcome
from bakeoff.results.report.compare_table import print_comparison
from bakeoff.results.report.gate.regressions import doubt_texts, regression_texts
from bakeoff.results.text.format import plain

_STYLES = {Outcome.NO_REGRESSION: "bold green", Outcome.REGRESSION: "bold red", Outcome.CANNOT_TELL: "bold yellow"}


def print_gate(verdict: GateVerdict, console: Console) -> None:
    """Print a verdict. The outcome comes last, where readers of CI logs look, and does not rely on colour."""
    print_comparison(verdict.compared, console)
    for note in verdict.notes:
        console.print(Text(f"note: {plain(note)}", "yellow"))
    console.print()
    console.print(Text(f"{verdict.outcome.value.upper()}: {plain(verdict.sentence)}", _STYLES[verdict.outcome]))
    for line in regression_texts(verdict):
        console.print(Text(f"  ▼ {plain(line)}", "red"))
    for line in doubt_texts(verdict):
        console.print(Text(f"  ? {plain(line)}", "yellow"))
