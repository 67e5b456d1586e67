"""Leave findings about the machine's load out of the verdicts of real runs, since tests run beside each other."""

import functools

import bakeoff.harness.conduct.trial
from bakeoff.harness.verdict.evidence import Evidence
from bakeoff.harness.verdict.judge import judge
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, Severity
from bakeoff.results.records import Verdict

OF_THE_LOAD = {
    FindingCode.FOREIGN_LOAD,
    FindingCode.SOME_FOREIGN_LOAD,
    FindingCode.CLIENT_STALLED,
    FindingCode.CLIENT_PAUSED,
}


@functools.wraps(judge)
def judge_without_load(evidence: Evidence) -> tuple[Verdict, list[Finding]]:
    findings = [finding for finding in judge(evidence)[1] if finding.code not in OF_THE_LOAD]
    void = any(finding.severity is Severity.INVALID for finding in findings)
    return (Verdict.INVALID if void else Verdict.VALID), findings


def ignore_load() -> None:
    """Replace the judge of trials; ``bakeoff.harness.verdict.judge.judge`` stays, for tests of the rules themselves."""
    bakeoff.harness.conduct.trial.judge = judge_without_load


def pytest_configure() -> None:
    """Pytest calls this where a test starts a session with this module as a plugin."""
    ignore_load()
