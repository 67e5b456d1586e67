"""Findings as sentences: what happened, then what to do. The only module that words them."""

from collections.abc import Iterable

from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, Parameter, Severity
from bakeoff.results.metrics import CATALOGUE, Unit
from bakeoff.results.metrics.objectives import Violation
from bakeoff.results.records import TrialRecord
from bakeoff.results.text.codes import WORDS, XIDS
from bakeoff.results.text.format import share_text, value_text

NOTES = {
    FindingCode.POWER_CAPPED: "{gpu} was at its power limit for {capped_share} of the window ({power_basis})",
    FindingCode.HARDWARE_SLOWDOWN: "the hardware of {gpu} lowered its clocks in {slowed_share} of the samples",
}
"""Templates of notes whose code is a warning elsewhere: nothing has to be done."""
_WITHOUT_LIMIT = "other processes used {foreign_share} of the machine, {foreign_cores} cores; end them to be sure"
"""Template of foreign load where ``trial.max_foreign_share`` is 1, so that no share makes a trial INVALID."""
_IDLE_CLIENT = (
    "the client's error in {latency} is {error_s}, more than {max_error_share} of the typical {typical_s}, though it "
    "was busy in {busy_share} of its calibration; repeat when nothing else runs on the machine, or give the client a "
    "core of its own (client.cores, on Linux)"
)
"""Template of a client that other load delays: more workers would not help."""
_MOSTLY = 0.5
OPTIONS = {
    "duration": "trial.duration_s (--duration of bench)",
    "ramp": "trial.ramp_s (--ramp of bench)",
    "seed": "seed (--seed of bench)",
    "workers": "client.workers (--workers of bench)",
}
"""What sentences advise to change: keys of an experiment, and the options of bench that set them."""
_UNRECORDED = {
    "power_basis": "how this is known was not recorded",
    "busy_share": "an unknown share",
}
"""Texts of parameters that findings of earlier runs lack."""


def sentence(finding: Finding) -> str:
    """One sentence without a full stop. It may quote engine output: :func:`~bakeoff.results.text.format.plain` it."""
    texts = {name: _text(name, value) for name, value in finding.parameters.items()}
    return (_special_template(finding) or finding.code.template).format_map(OPTIONS | _UNRECORDED | texts)


def _special_template(finding: Finding) -> str | None:
    if finding.severity is Severity.NOTE:
        return NOTES.get(finding.code)
    if finding.code is FindingCode.SOME_FOREIGN_LOAD and finding.parameters["max_foreign_share"] == 1:
        return _WITHOUT_LIMIT
    if finding.code is FindingCode.CLIENT_ERROR and float(finding.parameters.get("busy_share", 1)) < _MOSTLY:
        return _IDLE_CLIENT
    return None


def sentences(findings: Iterable[Finding]) -> str:
    """Several findings in one line."""
    return "; also: ".join(map(sentence, findings))


def main_reason(records: Iterable[TrialRecord]) -> str | None:
    """The most frequent reason for which trials are INVALID, in the words of the first; None if none is."""
    found: dict[FindingCode, list[Finding]] = {}
    for record in records:
        for finding in record.invalidating:
            found.setdefault(finding.code, []).append(finding)
    return sentence(max(found.values(), key=len)[0]) if found else None


def violation_sentence(violation: Violation) -> str:
    """``ttft_p99<500ms: it was 550 ms``, or why the value is absent."""
    if violation.value.value is None:
        return f"{violation.objective}: {violation.value.reason}"
    return f"{violation.objective}: it was {value_text(CATALOGUE[violation.metric].unit, violation.value.value)}"


def _text(name: str, value: Parameter) -> str:
    if isinstance(value, str):
        return WORDS.get(name, {}).get(value, value)
    if name == "xid":
        return f"{value} ({XIDS.get(int(value), 'see NVIDIA’s list of XID errors')})"
    if name.endswith("_share"):
        return share_text(value, 1)
    if name.endswith("_s") and not name.endswith("_per_s"):
        return value_text(Unit.SECONDS, value)
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"
