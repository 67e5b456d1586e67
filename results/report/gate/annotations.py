"""The verdict as workflow commands, which GitHub Actions shows beside a job."""

from results.gate import GateVerdict, Outcome
from results.report.format import plain
from results.report.gate.regressions import doubt_texts, regression_texts

_KINDS = {Outcome.NO_REGRESSION: "notice", Outcome.REGRESSION: "error", Outcome.CANNOT_TELL: "warning"}
_ESCAPED = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})


def annotations(verdict: GateVerdict) -> str:
    """One line for the outcome, and one for each thing that failed or is in doubt."""
    kind = _KINDS[verdict.outcome]
    lines = [f"::{kind} title=bakeoff gate%3A {verdict.outcome.value}::{_data(verdict.sentence)}"]
    lines += [f"::error title=bakeoff gate::{_data(line)}" for line in regression_texts(verdict)]
    lines += [f"::warning title=bakeoff gate::{_data(line)}" for line in doubt_texts(verdict)]
    return "".join(f"{line}\n" for line in lines)


def _data(text: str) -> str:
    return plain(text).translate(_ESCAPED)
