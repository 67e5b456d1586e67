"""The gate's outcomes, and its output for each kind of reader."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from rich.console import Console

from bakeoff.results import load
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.gate import GateVerdict, Outcome, Regression, RegressionKind, judge
from bakeoff.results.compare.sides import AnyTrial, Side, select, side_of
from bakeoff.results.compare.text import reason_text, why_text
from bakeoff.results.errors import NoEvidence
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, invalid
from bakeoff.results.log.run_log import EngineFailure, EngineFate
from bakeoff.results.metrics import Absence, Value, absent
from bakeoff.results.records import AddressDescription, RunStatus, Slo
from bakeoff.results.records import Outcome as RequestOutcome
from bakeoff.results.report.compare_table import trial_lines
from bakeoff.results.report.gate import annotations, doubt_texts, gate_markdown, junit_xml, print_gate, regression_texts
from bakeoff.results.statistics import Judgement
from bakeoff.results.statistics.comparison import Reason
from tests.results.builders import FAST, LOADS, Sheet, Speed, Texts, build_run
from tests.results.hostile import TERMINAL, XSS

SAME = Sheet(engines={"main": FAST, "branch": FAST}, loads=LOADS[2:3], repeats=6, requests=16, invalid=(), regret=None)


def slower(speed: Speed, factor: float) -> Speed:
    return replace(speed, ttft_s=speed.ttft_s * factor, itl_s=speed.itl_s * factor)


def sides(root: Path, sheet: Sheet) -> tuple[Side, Side]:
    path = build_run(root, sheet)
    a, b = (select(f"{path}@{engine}") for engine in sheet.engines)
    return a, b


def first(side: Side, trials: int) -> Side:
    """The side after its first ``trials`` trials of each session."""
    return msgspec.structs.replace(side, sessions={name: records[:trials] for name, records in side.sessions.items()})


def gated(root: Path, config: ComparisonConfig | None = None, **changes: object) -> GateVerdict:
    return judge(*sides(root, replace(SAME, **changes)), config)  # type: ignore[arg-type]


def test_a_slower_branch_is_a_regression(tmp_path: Path) -> None:
    verdict = gated(tmp_path, engines={"main": FAST, "branch": slower(FAST, 1.2)})
    assert verdict.outcome is Outcome.REGRESSION
    assert verdict.sentence.startswith("output at c=8: branch has 0.8")
    assert verdict.sentence.endswith("that of main (99 % interval)")
    assert {(worse.kind, worse.level) for worse in verdict.regressions} == {(RegressionKind.METRIC, "c=8")}
    metrics = [worse.metric for worse in verdict.regressions]
    assert "tpot_p50_s" in metrics
    assert "output_tokens_per_s" not in metrics, "that is what the sentence says"


@pytest.mark.slow
def test_a_faster_branch_and_an_equal_one_are_none(tmp_path: Path) -> None:
    faster = gated(tmp_path / "1", engines={"main": FAST, "branch": slower(FAST, 0.8)})
    assert (faster.outcome, faster.regressions) == (Outcome.NO_REGRESSION, [])
    path = build_run(tmp_path / "2", SAME)
    main = select(f"{path}@main")
    unchanged = judge(main, main)
    assert (unchanged.outcome, unchanged.compared.primary.judgement) == (Outcome.NO_REGRESSION, Judgement.SAME)


def test_no_regression_is_worse_by_no_more_than_the_band(tmp_path: Path) -> None:
    """2 % worse for certain: within a band of 5 %, outside one of 0.5 %, whatever is to be detected."""
    pair = sides(tmp_path, replace(SAME, engines={"main": FAST, "branch": slower(FAST, 1.02)}))
    assert judge(*pair, ComparisonConfig(band=0.05)).outcome is Outcome.NO_REGRESSION
    assert judge(*pair, ComparisonConfig(band=0.001)).outcome is Outcome.REGRESSION
    assert judge(*pair, ComparisonConfig(band=0.001, detect=0.1)).outcome is Outcome.REGRESSION


def test_no_regression_says_what_is_ruled_out(tmp_path: Path) -> None:
    pair = sides(tmp_path, SAME)
    verdict = judge(*pair, ComparisonConfig(detect=0.5))
    assert verdict.outcome is Outcome.NO_REGRESSION
    assert verdict.sentence.endswith("; 50 % worse is ruled out")
    few = judge(*(first(side, 2) for side in pair), ComparisonConfig(detect=0.5))
    assert few.outcome is Outcome.CANNOT_TELL
    assert "there are 2 and 2 trials, and each side needs 3" in few.sentence


@pytest.mark.slow
def test_a_guardrail_alone_fails_the_gate(tmp_path: Path) -> None:
    heavier = replace(FAST, rss_bytes=2 * FAST.rss_bytes)
    engines = {"main": FAST, "branch": heavier}
    assert gated(tmp_path / "1", engines=engines).outcome is not Outcome.REGRESSION, "memory is shown, not judged"
    pair = sides(tmp_path / "2", replace(SAME, engines=engines))
    verdict = judge(*pair, ComparisonConfig(metrics=("peak_host_bytes",)))
    assert verdict.compared.primary.judgement is not Judgement.WORSE
    assert verdict.outcome is Outcome.REGRESSION
    assert verdict.regressions == [Regression(RegressionKind.METRIC, "c=8", "peak_host_bytes")]
    (line,) = regression_texts(verdict)
    assert line.startswith("peak memory at c=8: branch has 1.95×")
    assert line.endswith("; lower is better")
    assert verdict.sentence.startswith("no regression in the primary metric (output at c=8: branch has 1.00")


def test_too_few_repeats_to_confirm_that_more_requests_fail_leave_a_doubt(tmp_path: Path) -> None:
    """Of 4 and 4 trials the smallest p of ranks is 1/70; 99 % need 0.01."""
    failing = replace(FAST, failing=(RequestOutcome.HTTP_ERROR,) * 3)
    sheet = replace(SAME, engines={"main": FAST, "branch": failing}, requests=24, repeats=4)
    verdict = judge(*sides(tmp_path, sheet), ComparisonConfig(primary="ttft_p50_s", metrics=("failures",)))
    assert verdict.outcome is Outcome.CANNOT_TELL
    assert verdict.doubts == [Regression(RegressionKind.METRIC, "c=8", "failures")]
    (line,) = doubt_texts(verdict)
    assert line.startswith("failures at c=8: branch has 8.3 pp [")
    assert "so few runs may rank so by chance" in line


def test_requests_that_fail_more_often(tmp_path: Path) -> None:
    failing = replace(FAST, failing=(RequestOutcome.HTTP_ERROR,) * 3)
    verdict = gated(tmp_path, engines={"main": FAST, "branch": failing}, requests=24)
    assert verdict.outcome is Outcome.REGRESSION
    assert verdict.regressions == [Regression(RegressionKind.METRIC, "c=8", "failures")]
    (line,) = regression_texts(verdict)
    assert line.startswith("failures at c=8: branch has 8.3 pp [")
    assert line.endswith("] relative to main (99 % interval); lower is better")


def test_answers_that_only_the_branch_gets_wrong(tmp_path: Path) -> None:
    main, branch = sides(tmp_path, replace(SAME, regret=9.0))
    verdict = judge(main, branch)
    assert verdict.outcome is Outcome.REGRESSION
    assert verdict.regressions[0] == Regression(RegressionKind.ANSWERS, "c=8")
    assert regression_texts(verdict)[0].startswith("answers of branch at c=8 differ from the reference")
    assert RegressionKind.ANSWERS not in {worse.kind for worse in judge(branch, main).regressions}


def test_trials_that_do_not_count_are_told_and_too_few_are_no_evidence(tmp_path: Path) -> None:
    verdict = gated(tmp_path / "1", invalid=(1, 2))
    (note,) = verdict.notes
    assert note.startswith("2 trials of branch are INVALID and excluded from every metric: gpu0 lowered its clocks")
    with pytest.raises(NoEvidence, match=r"branch has 1 valid trial at c=8 \(gpu0 .*\), a gate needs 3"):
        gated(tmp_path / "2", repeats=2, invalid=(1,))


def test_a_run_that_was_interrupted_is_named(tmp_path: Path) -> None:
    notes = gated(tmp_path, status=RunStatus.INTERRUPTED).notes
    assert len(notes) == 2
    assert all(note.endswith(" was interrupted: trials are missing") for note in notes)


FAILING = invalid(
    FindingCode.FAILED_REQUESTS,
    failed_requests=8,
    measured_requests=160,
    outcome_requests=8,
    outcome="timeout",
    error="none",
)
SATURATED = invalid(FindingCode.SATURATED, first_in_flight=4.0, last_in_flight=40.0)
DIED = invalid(FindingCode.ENGINE_DIED, detail="killed by signal 9")
OF_BRANCH = (1, 2, 5, 6, 9, 10)
"""Positions of the branch's trials in the plan: A B, B A, A B…"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("void", "trials", "outcome", "kind", "text"),
    [
        (
            DIED,
            1,
            Outcome.REGRESSION,
            RegressionKind.DIED,
            "branch died in 1 of 6, main in 0 of 6",
        ),
        (DIED, 6, Outcome.REGRESSION, RegressionKind.DIED, "trials at c=8: branch died in 6 of 6, main in 0 of 6"),
        (
            FAILING,
            5,
            Outcome.REGRESSION,
            RegressionKind.FAILED_TRIALS,
            "branch failed too many requests in 5 of 6, main in 0 of 6 (Boschloo: p 0.003",
        ),
        (
            SATURATED,
            2,
            Outcome.CANNOT_TELL,
            RegressionKind.SATURATED,
            "branch fell behind its arrivals in 2 of 6, main in 0 of 6 (Boschloo: p 0.09",
        ),
    ],
)
def test_invalid_trials_are_evidence_against_the_engine_that_caused_them(
    tmp_path: Path, void: Finding, trials: int, outcome: Outcome, kind: RegressionKind, text: str
) -> None:
    verdict = gated(tmp_path, invalid=OF_BRANCH[:trials], void=void)
    assert verdict.outcome is outcome
    is_regression = outcome is Outcome.REGRESSION
    assert Regression(kind, "c=8") in (verdict.regressions if is_regression else verdict.doubts)
    assert any(text in line for line in (regression_texts if is_regression else doubt_texts)(verdict))
    swapped = judge(*reversed(sides(tmp_path / "2", replace(SAME, invalid=OF_BRANCH[:1], void=void))))
    assert swapped.outcome is not Outcome.REGRESSION, "what the baseline does says nothing against the candidate"


def test_what_others_did_to_trials_is_no_evidence(tmp_path: Path) -> None:
    assert gated(tmp_path / "1", invalid=OF_BRANCH[:3]).outcome is Outcome.NO_REGRESSION
    with pytest.raises(NoEvidence, match="has no valid trial of branch"):
        gated(tmp_path / "2", invalid=OF_BRANCH)


def test_an_engine_that_did_not_start(tmp_path: Path) -> None:
    """It has no trial at all and the run FAILED: evidence against the branch, but none for it if main failed."""
    failures = (EngineFailure("branch", 1, EngineFate.NOT_READY), EngineFailure("branch", 2, EngineFate.DIED))
    sheet = replace(SAME, engine_failures=failures, status=RunStatus.FAILED, finished=1)
    main, branch = sides(tmp_path, sheet)
    verdict = judge(main, branch)
    assert verdict.outcome is Outcome.REGRESSION
    assert verdict.regressions[0] == Regression(RegressionKind.NOT_STARTED, None)
    assert regression_texts(verdict) == ["starts: branch did not start or died between trials 2 times, main 0 times"]
    with pytest.raises(NoEvidence, match="branch has 0 valid trials at c=8"):
        judge(branch, main)


def test_half_the_answer_is_no_speed_up(tmp_path: Path) -> None:
    """Half of each answer in half the time: twice the requests a second, and a regression."""
    halved = replace(FAST, delivers=0.5)
    verdict = gated(tmp_path, engines={"main": FAST, "branch": halved})
    assert verdict.outcome is Outcome.REGRESSION
    assert verdict.regressions[0] == Regression(RegressionKind.WORK, "c=8")
    line = regression_texts(verdict)[0]
    assert line.startswith("work at c=8: branch did different work than main: output tokens delivered of those")
    assert "50.0 % instead of 100.0 %" in line
    by_name = {comparison.metric: comparison for comparison in verdict.compared.comparisons}
    for name in ("requests_per_s", "ttft_p50_s"):
        assert by_name[name].judgement is Judgement.UNCLEAR
        assert why_text(verdict.compared, by_name[name]).startswith(
            "the sides did different work, so request times cannot be compared: output tokens delivered"
        )
    assert by_name["itl_p50_s"].reason is not Reason.UNEQUAL_WORK, "a token's time is one whatever the answer's length"
    allowed = gated(tmp_path / "2", ComparisonConfig(work_band=0.6), engines={"main": FAST, "branch": halved})
    assert RegressionKind.WORK not in {worse.kind for worse in allowed.regressions}


def test_an_slo_that_is_missed_is_a_regression(tmp_path: Path) -> None:
    """Every answer of the branch takes longer than the SLO allows: goodput and attainment fall to 0."""
    sheet = {"engines": {"main": FAST, "branch": slower(FAST, 3.0)}, "slo": Slo(tpot_s=0.009), "requests": 24}
    verdict = gated(tmp_path, **sheet)
    words = {comparison.metric: comparison for comparison in verdict.compared.comparisons}
    assert words["goodput_per_s"].judgement is words["attainment"].judgement is Judgement.WORSE
    assert reason_text(words["goodput_per_s"]) == "0 in 0 of 6 runs of A and in 6 of 6 of B"
    assert words["attainment"].difference is not None
    alone = gated(tmp_path / "2", ComparisonConfig(primary="goodput_per_s", metrics=("goodput_per_s",)), **sheet)
    assert alone.outcome is Outcome.REGRESSION
    assert alone.sentence == "goodput at c=8: 0 in 0 of 6 runs of A and in 6 of 6 of B"


def test_a_tail_among_failures_is_worse_than_any_number(tmp_path: Path) -> None:
    a, b = sides(tmp_path, SAME)
    (session,) = a.sessions
    lost = absent("p99 lies among the 9 failed of 700 requests", Absence.AMONG_FAILURES)

    def with_p99(side: Side, *values: Value) -> Side:
        trials = [
            msgspec.structs.replace(trial, metrics=trial.metrics | {"ttft_p99_s": value}, requests=[])
            for trial, value in zip(side.sessions[session], values, strict=True)
        ]
        return msgspec.structs.replace(side, sessions={session: trials})

    config = ComparisonConfig(metrics=("ttft_p99_s",))
    whole, torn = with_p99(a, *[Value(0.1)] * 6), with_p99(b, *[lost] * 6)
    verdict = judge(whole, torn, config)
    assert verdict.outcome is Outcome.REGRESSION
    (text,) = regression_texts(verdict)
    assert text.startswith(
        "TTFT p99 at c=8: among failures in 0 of 6 runs of A and in 6 of 6 of B; the runs differ (exact"
    )
    assert judge(torn, whole, config).outcome is Outcome.NO_REGRESSION
    by_chance = judge(whole, with_p99(b, *[Value(0.1)] * 5, lost), config)
    assert by_chance.outcome is Outcome.CANNOT_TELL
    assert doubt_texts(by_chance)[0].startswith(
        "TTFT p99 of branch at c=8: among failures in 0 of 6 runs of A and in 1 of 6 of B; this may be chance"
    )


def test_a_guardrail_that_only_the_branch_lacks_is_no_evidence(tmp_path: Path) -> None:
    """A p99 needs 662 requests: a branch with fewer does not pass without one."""
    a, b = sides(tmp_path, SAME)
    (session,) = a.sessions
    enough = [
        msgspec.structs.replace(trial, metrics=trial.metrics | {"ttft_p99_s": Value(0.1)}, requests=[])
        for trial in a.sessions[session]
    ]
    a = msgspec.structs.replace(a, sessions={session: enough})
    config = ComparisonConfig(metrics=("ttft_p99_s",))
    verdict = judge(a, b, config)
    assert verdict.outcome is Outcome.NO_EVIDENCE
    assert verdict.sentence == "branch lacks TTFT p99 at c=8; measure it, or judge the rest by --only-common"
    rest = judge(a, b, msgspec.structs.replace(config, only_common=True))
    assert rest.outcome is Outcome.NO_REGRESSION
    assert b"<system-out>branch lacks TTFT p99 at c=8: that is not judged</system-out>" in junit_xml(rest)
    alone = judge(a, b, msgspec.structs.replace(config, primary="ttft_p99_s", only_common=True))
    assert alone.outcome is Outcome.NO_EVIDENCE, "nothing is left to judge by"
    doubtful = judge(a, b, msgspec.structs.replace(config, primary="ttft_p99_s", metrics=("ttft_p99_s", "ttft_p90_s")))
    assert doubtful.outcome is Outcome.NO_EVIDENCE, "whatever else is doubtful"
    assert verdict.doubts == [Regression(RegressionKind.METRIC, "c=8", "ttft_p99_s")]
    assert doubt_texts(verdict) == [
        "TTFT p99 of branch at c=8: absent in 6 of 6 trials of B: p99 needs 662 observations, there are 16"
    ]
    assert judge(b, b, ComparisonConfig(metrics=("ttft_p99_s",))).outcome is Outcome.NO_REGRESSION


def test_an_address_that_only_the_branch_lacks_is_no_evidence(tmp_path: Path) -> None:
    def at(side: Side, *labels: str) -> Side:
        addresses = [AddressDescription(label, "replica", f"http://{label}") for label in labels]
        first, several = f"http://{labels[0]}/v1", addresses if len(addresses) > 1 else []  # as runs describe them

        def moved(trial: AnyTrial) -> AnyTrial:
            described = msgspec.structs.replace(trial.record.engine_description, url=first, addresses=several)
            record = msgspec.structs.replace(trial.record, engine_description=described)
            return msgspec.structs.replace(trial, record=record)

        sessions = {session: [moved(trial) for trial in trials] for session, trials in side.sessions.items()}
        return msgspec.structs.replace(side, sessions=sessions)

    a, b = sides(tmp_path, SAME)
    config = ComparisonConfig(metrics=("output_tokens_per_s",), band=0.5)
    verdict = judge(at(a, "one:1", "two:1"), at(b, "one:1"), config)
    assert verdict.outcome is Outcome.NO_EVIDENCE
    assert verdict.sentence == "branch lacks address two:1; measure it, or judge the rest by --only-common"
    assert "? branch lacks address two:1" in trial_lines(verdict.compared)
    assert judge(at(a, "one:1"), at(b, "one:1", "two:1"), config).outcome is Outcome.NO_REGRESSION
    elsewhere = judge(at(a, "one:1", "two:1"), at(b, "three:1"), config)
    assert elsewhere.outcome is Outcome.NO_REGRESSION, "other machines have other addresses"


def test_a_load_that_only_the_branch_did_not_serve_is_no_evidence(tmp_path: Path) -> None:
    a, b = sides(tmp_path, replace(SAME, loads=LOADS[1:3]))

    def at_most(side: Side, trials: int) -> Side:
        """The side with this many trials at c=4."""
        kept = {
            session: [t for t in of_session if t.record.load == LOADS[2] or t.record.repeat <= trials]
            for session, of_session in side.sessions.items()
        }
        return msgspec.structs.replace(side, sessions=kept)

    config = ComparisonConfig(metrics=("output_tokens_per_s",), band=0.5)
    for trials, outcome in ((0, Outcome.NO_EVIDENCE), (1, Outcome.NO_EVIDENCE), (2, Outcome.NO_REGRESSION)):
        assert judge(a, at_most(b, trials), config).outcome is outcome
    assert doubt_texts(judge(a, at_most(b, 0), config)) == [
        "output of branch at c=4: there are 6 and 0 runs, and each side needs 1"
    ]
    assert judge(at_most(a, 1), b, config).outcome is Outcome.NO_REGRESSION, "the branch is not the cause"


def test_a_primary_metric_without_judgement_does_not_pass(tmp_path: Path) -> None:
    """The branch's requests ask for half the tokens, and which ones both served is unknown."""
    a, b = sides(tmp_path, SAME)
    (session,) = b.sessions
    halved = [
        msgspec.structs.replace(
            trial,
            requests=[],
            work=msgspec.structs.replace(
                trial.work,
                asked_tokens=(trial.work.asked_tokens or 0) // 2,
                output_tokens=trial.work.output_tokens // 2,
            ),
        )
        for trial in b.sessions[session]
    ]
    b = msgspec.structs.replace(b, sessions={session: halved})
    for band in (0.5, 0.0):
        verdict = judge(a, b, ComparisonConfig(primary="e2e_p50_s", metrics=("e2e_p50_s",), band=band))
        assert verdict.outcome is Outcome.CANNOT_TELL
        assert "the sides served other requests" in verdict.sentence
        assert verdict.sentence.endswith("they ask for 12 output tokens each instead of 24")
        assert "? requests at c=8, branch compared with main: they ask for 12 output tokens" in shown(verdict)
        assert RegressionKind.WORK not in {doubt.kind for doubt in verdict.doubts}, "answers are what was asked for"


def shown(verdict: GateVerdict) -> str:
    out = io.StringIO()
    print_gate(verdict, Console(file=out, width=160))
    return out.getvalue()


def test_the_terminal_says_it_last(tmp_path: Path) -> None:
    text = shown(gated(tmp_path, engines={"main": FAST, "branch": slower(FAST, 1.2)}, invalid=(0,)))
    assert "note: 1 trial of main is INVALID and excluded from every metric" in text
    last = text[text.index("REGRESSION: output at c=8") :].splitlines()
    assert all(line.startswith("  ▼ ") for line in last[1:] if line)


def test_junit_has_a_case_for_each_metric(tmp_path: Path) -> None:
    verdict = gated(tmp_path, engines={"main": FAST, "branch": slower(FAST, 1.2)}, regret=9.0)
    suite = ET.fromstring(junit_xml(verdict)).find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    assert len(cases) == len(verdict.compared.comparisons) + 1
    failures = [case for case in cases if case.find("failure") is not None]
    assert len(failures) == int(suite.get("failures", "")) == len(verdict.regressions) + 1
    assert (failures[-1].get("classname"), failures[-1].get("name")) == ("bakeoff.c=8", "gate: answers")
    assert suite.get("errors") == "0"


def test_every_output_reports_doubts(tmp_path: Path) -> None:
    verdict = gated(tmp_path, invalid=OF_BRANCH[:1], void=FAILING)
    (doubt,) = doubt_texts(verdict)
    suite = ET.fromstring(junit_xml(verdict)).find("testsuite")
    assert suite is not None
    assert [error.get("message") for error in suite.findall("testcase/error")] == [doubt]
    assert f"- {doubt}" in gate_markdown(verdict)
    assert f"::warning title=bakeoff gate::{doubt}" in annotations(verdict)
    assert f"  ? {doubt}" in shown(verdict)


def test_junit_reports_an_undecided_gate_as_an_error(tmp_path: Path) -> None:
    pair = [first(side, 2) for side in sides(tmp_path, SAME)]
    verdict = judge(*pair, ComparisonConfig(band=0.0001))
    assert verdict.outcome is Outcome.CANNOT_TELL
    suite = ET.fromstring(junit_xml(verdict)).find("testsuite")
    assert suite is not None
    assert suite.get("errors") == "1"


def hostile(root: Path, text: str) -> GateVerdict:
    texts = Texts(gpu=text)
    changes = {"engines": {f"main{text}": FAST, f"branch{text}": slower(FAST, 1.2)}, "texts": texts, "invalid": (0,)}
    path = build_run(root, replace(SAME, **changes))  # type: ignore[arg-type]
    run = load(path)
    return judge(side_of(run, f"main{text}"), side_of(run, f"branch{text}"))


@pytest.mark.parametrize("write", [gate_markdown, annotations, shown])
def test_foreign_texts_are_not_interpreted(tmp_path: Path, write: Callable[[GateVerdict], str]) -> None:
    nasty = "".join((*XSS, *TERMINAL)) + "\n::error::forged|%0A"
    text = write(hostile(tmp_path, nasty.replace("/", "").replace("@", "")))
    assert not any(ord(c) < 0x20 and c != "\n" for c in text)
    if write is gate_markdown:
        assert "<script" not in text
        assert "<img" not in text
    if write is annotations:
        assert all(line.startswith(("::error title=bakeoff gate", "::error title=")) for line in text.splitlines())
        assert "%0A" not in text.replace("%250A", "")


def test_annotations_name_the_outcome(tmp_path: Path) -> None:
    assert annotations(gated(tmp_path, engines={"main": FAST, "branch": slower(FAST, 0.8)})).startswith(
        "::notice title=bakeoff gate%3A no regression::output at c=8"
    )
