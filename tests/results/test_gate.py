"""The gate's outcomes, and what each reader of them gets."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from rich.console import Console

from results import load
from results.comparing import SideOfRun, Terms, select, side_of
from results.errors import NoEvidence
from results.gate import GateVerdict, Outcome, _as_many, judge
from results.records import Outcome as RequestOutcome
from results.report.gate import annotations, gate_markdown, junit_xml, print_gate
from results.statistics import Judgement
from tests.results.builders import FAST, LOADS, Sheet, Speed, Texts, build_run
from tests.results.hostile import TERMINAL, XSS

SAME = Sheet(engines={"main": FAST, "branch": FAST}, loads=LOADS[2:3], repeats=6, requests=16, invalid=(), regret=None)


def slower(speed: Speed, by: float) -> Speed:
    return replace(speed, ttft_s=speed.ttft_s * by, itl_s=speed.itl_s * by)


def sides(root: Path, sheet: Sheet) -> tuple[SideOfRun, SideOfRun]:
    path = build_run(root, sheet)
    a, b = (select(f"{path}@{engine}") for engine in sheet.engines)
    return a, b


def gated(root: Path, terms: Terms | None = None, **changes: object) -> GateVerdict:
    return judge(*sides(root, replace(SAME, **changes)), terms)  # type: ignore[arg-type]


def test_a_slower_branch_is_a_regression(tmp_path: Path) -> None:
    found = gated(tmp_path, engines={"main": FAST, "branch": slower(FAST, 1.2)})
    assert found.outcome is Outcome.REGRESSION
    assert found.sentence.startswith("output at c=8: branch has 0.8")
    assert found.sentence.endswith("that of main (99 % interval)")
    assert not any(line.startswith("output at c=8: ") for line in found.regressions), "that is what the sentence says"
    assert any(line.startswith("ITL p50 at c=8: ") for line in found.regressions)


def test_a_faster_branch_and_an_equal_one_are_none(tmp_path: Path) -> None:
    faster = gated(tmp_path / "1", engines={"main": FAST, "branch": slower(FAST, 0.8)})
    assert (faster.outcome, faster.regressions) == (Outcome.NO_REGRESSION, [])
    path = build_run(tmp_path / "2", SAME)
    main = select(f"{path}@main")
    itself = judge(main, main)
    assert (itself.outcome, itself.compared.primary.judgement) == (Outcome.NO_REGRESSION, Judgement.SAME)


def test_no_regression_is_worse_by_no_more_than_the_band(tmp_path: Path) -> None:
    """2 % worse for certain: within a band of 5 %, outside one of 0.5 %; and too few runs tell nothing."""
    pair = sides(tmp_path, replace(SAME, engines={"main": FAST, "branch": slower(FAST, 1.02)}))
    assert judge(*pair, Terms(band=0.05)).outcome is Outcome.NO_REGRESSION
    assert judge(*pair, Terms(band=0.001)).outcome is Outcome.REGRESSION
    few = [msgspec.structs.replace(side, trials=side.trials[:2]) for side in pair]
    found = judge(*few, Terms(band=0.001))
    assert found.outcome is Outcome.CANNOT_TELL
    assert "a change of" in found.sentence


def test_a_guardrail_alone_fails_the_gate(tmp_path: Path) -> None:
    heavier = replace(FAST, rss_bytes=2 * FAST.rss_bytes)
    found = gated(tmp_path, engines={"main": FAST, "branch": heavier})
    assert found.compared.primary.judgement is not Judgement.WORSE
    assert found.outcome is Outcome.REGRESSION
    (line,) = found.regressions
    assert line.startswith("peak memory at c=8: branch has 1.95×")
    assert found.sentence.startswith("not of the primary metric (output at c=8: branch has 1.00")


def test_requests_that_fail_more_often(tmp_path: Path) -> None:
    failing = replace(FAST, failing=(RequestOutcome.HTTP_ERROR,) * 3)
    found = gated(tmp_path, engines={"main": FAST, "branch": failing}, requests=24)
    assert found.outcome is Outcome.REGRESSION
    (failures,) = found.failures
    assert failures.a[0] == 0
    assert failures.b[0] > 6
    told = f"{failures.b[0]} of {failures.b[1]} requests of branch, 0 of {failures.a[1]} requests of main"
    assert found.regressions[-1] == f"failures at c=8: {told}"


def test_fishers_test_worked_by_hand() -> None:
    """Three failures among 5 + 5 requests, all on one side: 5·4·3 / (10·9·8) = 1/12."""
    assert _as_many(0, 5, 3, 5) == pytest.approx(1 / 12)
    assert _as_many(3, 5, 0, 5) == pytest.approx(1.0)
    assert _as_many(0, 5, 0, 5) == pytest.approx(1.0)
    assert _as_many(50, 10_000, 50, 10_000) == pytest.approx(0.54, abs=0.02)


def test_answers_that_only_the_branch_gets_wrong(tmp_path: Path) -> None:
    found = gated(tmp_path, regret=9.0)
    assert found.outcome is Outcome.REGRESSION
    assert found.regressions[-1].startswith("answers at c=8, of branch: answers differ from the reference")
    assert "answers" not in " ".join(
        gated(tmp_path / "2", regret=9.0, engines={"branch": FAST, "main": FAST}).regressions[:-1]
    )


def test_trials_that_do_not_count_are_told_and_too_few_are_no_evidence(tmp_path: Path) -> None:
    found = gated(tmp_path / "1", invalid=(1, 2))
    assert found.notes == [
        "2 trials of branch are INVALID and do not count: client saturated: loop lag p99 9.1 ms above 5 ms"
    ]
    with pytest.raises(NoEvidence, match="branch has 1 valid trials at c=8, a gate needs 2"):
        gated(tmp_path / "2", repeats=2, invalid=(1,))


def shown(verdict: GateVerdict) -> str:
    out = io.StringIO()
    print_gate(verdict, Console(file=out, width=160))
    return out.getvalue()


def test_the_terminal_says_it_last(tmp_path: Path) -> None:
    text = shown(gated(tmp_path, engines={"main": FAST, "branch": slower(FAST, 1.2)}, invalid=(0,)))
    assert "note: 1 trial of main is INVALID and does not count" in text
    last = text[text.index("REGRESSION: output at c=8") :].splitlines()
    assert all(line.startswith("  ▼ ") for line in last[1:] if line)


def test_junit_has_a_case_for_each_metric(tmp_path: Path) -> None:
    found = gated(tmp_path, engines={"main": FAST, "branch": slower(FAST, 1.2)}, regret=9.0)
    suite = ET.fromstring(junit_xml(found)).find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    assert len(cases) == len(found.compared.comparisons) + 1
    failures = [case for case in cases if case.find("failure") is not None]
    assert len(failures) == int(suite.get("failures", "")) == len(found.regressions) + 1
    assert failures[-1].get("classname") == "bakeoff.beside the metrics"
    assert suite.get("errors") == "0"


def test_junit_calls_what_cannot_be_told_an_error(tmp_path: Path) -> None:
    pair = [msgspec.structs.replace(side, trials=side.trials[:2]) for side in sides(tmp_path, SAME)]
    found = judge(*pair, Terms(band=0.0001))
    assert found.outcome is Outcome.CANNOT_TELL
    suite = ET.fromstring(junit_xml(found)).find("testsuite")
    assert suite is not None
    assert suite.get("errors") == "1"


def hostile(root: Path, text: str) -> GateVerdict:
    texts = Texts(reason=text)
    changes = {"engines": {f"main{text}": FAST, f"branch{text}": slower(FAST, 1.2)}, "texts": texts, "invalid": (0,)}
    path = build_run(root, replace(SAME, **changes))  # type: ignore[arg-type]
    run = load(path)
    return judge(side_of(run, f"main{text}"), side_of(run, f"branch{text}"))


@pytest.mark.parametrize("write", [gate_markdown, annotations, shown])
def test_texts_of_others_stay_texts(tmp_path: Path, write: Callable[[GateVerdict], str]) -> None:
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
