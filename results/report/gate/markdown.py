"""The verdict as Markdown, for a comment on a pull request."""

from collections.abc import Iterator

from results.gate import GateVerdict, Outcome
from results.report.compare_table import SIGNS, smallest_text, tally, title
from results.report.format import effect_text
from results.report.gate.regressions import doubt_texts, regression_texts
from results.report.markdown import escaped, table

_MARKS = {Outcome.NO_REGRESSION: "✅", Outcome.REGRESSION: "❌", Outcome.CANNOT_TELL: "❔"}


def gate_markdown(verdict: GateVerdict) -> str:
    """The outcome, what failed, and all comparisons folded away.

    Texts of engines and runs are escaped: a label cannot close the table or open a tag.
    """
    compared = verdict.compared
    lines = [
        f"### {_MARKS[verdict.outcome]} bakeoff gate: {verdict.outcome.value}",
        "",
        f"{escaped(verdict.sentence)}.",
        *(["", *(f"- {escaped(line)}" for line in regression_texts(verdict))] if verdict.regressions else []),
        *(["", *(f"- {escaped(line)}" for line in doubt_texts(verdict))] if verdict.doubts else []),
        *(["", *(f"> {escaped(note)}" for note in verdict.notes)] if verdict.notes else []),
        "",
        f"<details><summary>{escaped(compared.b)} against {escaped(compared.a)}, all metrics</summary>",
        "",
        table(["load", "metric", "ratio B/A", "judgement", "would show", "why"], _rows(verdict)),
        f"{tally(compared)}.",
        "",
        "</details>",
        "",
    ]
    return "\n".join(lines)


def _rows(verdict: GateVerdict) -> Iterator[list[str]]:
    for one in verdict.compared.comparisons:
        primary = "● " if one is verdict.compared.primary else ""
        word = f"{SIGNS[one.judgement]} {one.judgement.value}"
        yield [
            escaped(one.level), primary + title(one), effect_text(one), word, smallest_text(one), escaped(one.why),
        ]  # fmt: skip
