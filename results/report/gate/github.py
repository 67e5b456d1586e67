"""A gate's verdict for GitHub: Markdown for a pull-request comment, and workflow commands for annotations."""

from collections.abc import Iterator

from bakeoff.results.compare.gate import GateVerdict, NoVerdict, Outcome
from bakeoff.results.compare.text import heading, why_text
from bakeoff.results.report.compare_table import SIGNS, noise_lines, smallest_text, tally, title
from bakeoff.results.report.gate.regressions import doubt_texts, regression_texts
from bakeoff.results.report.markdown import escaped, table
from bakeoff.results.text.format import effect_text, plain

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
        table(["load", "metric", "ratio B/A", "judgement", "detectable", "why"], _rows(verdict)),
        *(f"{escaped(line)}." for line in noise_lines(compared)),
        f"{tally(compared)}.",
        "",
        "</details>",
        "",
    ]
    return "\n".join(lines)


def _rows(verdict: GateVerdict) -> Iterator[list[str]]:
    compared = verdict.compared
    for comparison in compared.comparisons:
        primary = "● " if comparison is compared.primary else ""
        yield [
            escaped(heading(comparison)),
            primary + title(comparison),
            effect_text(comparison),
            f"{SIGNS[comparison.judgement]} {comparison.judgement.value}",
            smallest_text(comparison),
            escaped(why_text(compared, comparison)),
        ]


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
