"""Real runs of tests beside other tests: what the machine's load says of them is left out of their verdicts."""

import functools

import harness.conduct.trial
from harness.verdict.judge import Evidence, judge
from results.findings import Finding, FindingCode, Severity
from results.records import Verdict

OF_THE_LOAD = {FindingCode.FOREIGN_LOAD, FindingCode.SOME_FOREIGN_LOAD, FindingCode.CLIENT_STALLED}


@functools.wraps(judge)
def judge_without_load(evidence: Evidence) -> tuple[Verdict, list[Finding]]:
    findings = [finding for finding in judge(evidence)[1] if finding.code not in OF_THE_LOAD]
    void = any(finding.severity is Severity.INVALID for finding in findings)
    return (Verdict.INVALID if void else Verdict.VALID), findings


def ignore_load() -> None:
    """Tests of the rules themselves call ``harness.verdict.judge.judge``, which stays as it is."""
    harness.conduct.trial.judge = judge_without_load


def pytest_configure() -> None:
    """As a plugin of the sessions that tests start."""
    ignore_load()
