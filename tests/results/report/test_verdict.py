"""The sentence at the top states only what the intervals support."""

from dataclasses import replace
from pathlib import Path

from bakeoff import results
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import invalid
from bakeoff.results.log.run_log import EngineFailure, EngineFate
from bakeoff.results.records import Load, RunStatus
from bakeoff.results.report.verdict import verdict
from tests.results.builders import FAST, LOADS, SLOW, Sheet, build_run


def sentence(root: Path, **changes: object) -> str:
    return verdict(results.load(build_run(root, replace(Sheet(requests=16), **changes)))).sentence  # type: ignore[arg-type]


def test_the_best_is_named_with_its_interval(demo: results.Run) -> None:
    run_verdict = verdict(demo)
    assert run_verdict.decided
    assert run_verdict.sentence.startswith("At c=8, reference delivered 10.")
    assert run_verdict.sentence.endswith(" the output tokens/s of transformers (95 % interval, 3 trials a side).")


def test_open_loop_is_judged_by_ttft(tmp_path: Path) -> None:
    text = sentence(tmp_path, loads=[Load(rate_per_s=4.0, arrival="constant")], invalid=())
    assert text.startswith("At constant 4/s, reference had 0.")
    assert text.endswith("the TTFT p50 of transformers (95 % interval, 3 trials a side).")


def test_one_engine_or_one_repeat_bears_no_verdict(tmp_path: Path) -> None:
    alone = sentence(tmp_path / "1", engines={"a": FAST}, invalid=())
    assert alone.startswith("a: output ")
    assert alone.endswith(" at c=8.")
    unrepeated = sentence(tmp_path / "2", engines={"a": FAST, "b": SLOW}, repeats=1, invalid=())
    assert unrepeated == "No verdict at c=8: there are 1 and 1 trials, and each side needs 3."


DIED = invalid(FindingCode.ENGINE_DIED, detail="killed by signal 9")
FAILING = invalid(
    FindingCode.FAILED_REQUESTS,
    failed_requests=8,
    measured_requests=160,
    outcome_requests=8,
    outcome="timeout",
    error="none",
)
PAIR = {"engines": {"a": FAST, "b": SLOW}, "loads": LOADS[2:3], "repeats": 4}
"""Plan: a b, b a, a b, b a; a is far ahead."""


def test_an_engine_that_failed_where_the_other_did_not_has_not_won(tmp_path: Path) -> None:
    """The gate's rule: three of four trials are too many, one is not."""
    died = sentence(tmp_path / "1", **PAIR, invalid=(0, 3, 4), void=DIED)
    assert died.startswith("b served the load, a failed: trials at c=8: a died in 3 of 4, b in 0 of 4")
    doubt = sentence(tmp_path / "3", **PAIR, invalid=(0,), void=FAILING)
    assert doubt.startswith("No verdict: trials at c=8: a failed too many requests in 1 of 4, b in 0 of 4")
    loser = sentence(tmp_path / "4", **PAIR, invalid=(1,), void=DIED)
    assert loser.startswith("At c=8, a delivered "), "the next best may have failed: it has not won either way"


def test_an_engine_without_a_valid_trial_has_lost_to_one_that_has_some(tmp_path: Path) -> None:
    all_of_b = sentence(tmp_path / "1", **PAIR, invalid=(1, 2, 5, 6), void=DIED)
    assert all_of_b.startswith("a served the load, b failed: trials at c=8: b died in 4 of 4, a in 0 of 4")
    failures = (EngineFailure("b", 1, EngineFate.NOT_READY),)
    never = sentence(tmp_path / "2", **PAIR, invalid=(), finished=1, status=RunStatus.FAILED, engine_failures=failures)
    assert never == ("a served the load, b failed: starts: b did not start or died between trials 1 time, a 0 times.")


def test_requests_of_unequal_work_bear_no_verdict(tmp_path: Path) -> None:
    """In an open loop TTFT decides, which is measured per request; output tokens/s are measured per token."""
    halved = {"engines": {"a": FAST, "b": replace(SLOW, delivers=0.5)}, "repeats": 4, "invalid": ()}
    open_loop = sentence(tmp_path / "1", **halved, loads=[Load(rate_per_s=4.0, arrival="constant")])
    assert "the data cannot tell a from b" in open_loop
    assert "but the sides did different work, so request times cannot be compared: output tokens delivered" in open_loop
    assert sentence(tmp_path / "2", **halved, loads=LOADS[2:3]).startswith("At c=8, a delivered ")


def test_an_empty_plan(tmp_path: Path) -> None:
    assert sentence(tmp_path, loads=[]) == "No verdict: nothing was planned."
