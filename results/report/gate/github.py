"""A gate's verdict for GitHub: Markdown for a pull-request comment, and workflow commands for annotations."""

from bakeoff.results.compare.gate import GateVerdict, NoVerdict, Outcome
from bakeoff.results.report.compare_table import noise_lines, tally
from bakeoff.results.report.comparisons import comparison_tables
from bakeoff.results.report.gate.regressions import doubt_texts, regression_texts
from bakeoff.results.show.markdown import escaped, markdown
from bakeoff.results.text.format import plain

_MARKS = {Outcome.NO_REGRESSION: "✅", Outcome.REGRESSION: "❌", Outcome.CANNOT_TELL: "❔", Outcome.NO_EVIDENCE: "❔"}
_KINDS = {
    Outcome.NO_REGRESSION: "notice",
    Outcome.REGRESSION: "error",
    Outcome.CANNOT_TELL: "warning",
    Outcome.NO_EVIDENCE: "error",
}
_ESCAPED = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})


def gate_markdown(verdict: GateVerdict | NoVerdict) -> str:
    """Outcome, regressions and doubts, with all comparisons in a collapsed table.

    Text from engines and runs is escaped: a label cannot end a table cell or open a tag.
    """
    head = f"### {_MARKS[verdict.outcome]} bakeoff gate: {verdict.outcome.value}\n\n{escaped(verdict.sentence)}."
    if isinstance(verdict, NoVerdict):
        return f"{head}\n"
    compared = verdict.compared
    lines = [
        head,
        *(["", *(f"- {escaped(line)}" for line in regression_texts(verdict))] if verdict.regressions else []),
        *(["", *(f"- {escaped(line)}" for line in doubt_texts(verdict))] if verdict.doubts else []),
        *(["", *(f"> {escaped(note)}" for note in verdict.notes)] if verdict.notes else []),
        "",
        f"<details><summary>{escaped(compared.b)} against {escaped(compared.a)}, all metrics</summary>",
        "",
        *map(markdown, comparison_tables(compared)),
        *(f"{escaped(line)}." for line in noise_lines(compared)),
        f"{tally(compared)}.",
        "",
        "</details>",
        "",
    ]
    return "\n".join(lines)


def annotations(verdict: GateVerdict | NoVerdict) -> str:
    """One line for the outcome, and one for each regression and doubt."""
    kind = _KINDS[verdict.outcome]
    lines = [f"::{kind} title=bakeoff gate%3A {verdict.outcome.value}::{_data(verdict.sentence)}"]
    if isinstance(verdict, GateVerdict):
        lines += [f"::error title=bakeoff gate::{_data(line)}" for line in regression_texts(verdict)]
        lines += [f"::warning title=bakeoff gate::{_data(line)}" for line in doubt_texts(verdict)]
    return "".join(f"{line}\n" for line in lines)


def _data(text: str) -> str:
    return plain(text).translate(_ESCAPED)
