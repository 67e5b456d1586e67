"""The verdict on GitHub: as Markdown for a comment on a pull request, and as workflow commands, shown beside a job."""

from collections.abc import Iterator

from results.gate import GateVerdict, Outcome
from results.report.compare_table import SIGNS, smallest_text, tally, title
from results.report.gate.regressions import doubt_texts, regression_texts
from results.report.markdown import escaped, table
from results.text.format import effect_text, plain

_MARKS = {Outcome.NO_REGRESSION: "✅", Outcome.REGRESSION: "❌", Outcome.CANNOT_TELL: "❔"}
_KINDS = {Outcome.NO_REGRESSION: "notice", Outcome.REGRESSION: "error", Outcome.CANNOT_TELL: "warning"}
_ESCAPED = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})


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


def annotations(verdict: GateVerdict) -> str:
    """One line for the outcome, and one for each thing that failed or is in doubt."""
    kind = _KINDS[verdict.outcome]
    lines = [f"::{kind} title=bakeoff gate%3A {verdict.outcome.value}::{_data(verdict.sentence)}"]
    lines += [f"::error title=bakeoff gate::{_data(line)}" for line in regression_texts(verdict)]
    lines += [f"::warning title=bakeoff gate::{_data(line)}" for line in doubt_texts(verdict)]
    return "".join(f"{line}\n" for line in lines)


def _data(text: str) -> str:
    return plain(text).translate(_ESCAPED)
