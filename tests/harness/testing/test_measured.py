"""The assertions on stored runs: messages, defaults, and no silent passes."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from bakeoff.engines import secrets
from bakeoff.harness.errors import BadExperiment
from bakeoff.harness.testing import Bakeoff, Measured, NoVerdict, summary
from bakeoff.results import load
from bakeoff.results.compare.floor import FLOOR_FILE
from bakeoff.results.errors import NoEvidence, NotComparable, RunNotFound
from bakeoff.results.export.benchmark_json import benchmark_json
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import invalid
from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.text.format import value_text
from tests.results.builders import FAST, LOADS, Sheet, build_run
from tests.results.floors import with_floor

SINGLE = Sheet(engines={"main": FAST}, loads=LOADS[1:3], repeats=5, requests=16, invalid=(3,), regret=None)
PAIR = replace(SINGLE, engines={"main": FAST, "branch": FAST}, invalid=())


def run(root: Path, sheet: Sheet = SINGLE, baseline: str | None = None, **changes: object) -> Measured:
    """A run in a folder with a noise floor."""
    path = with_floor(build_run(root, replace(sheet, **changes)))  # type: ignore[arg-type]
    return Measured("test_chat", load(path), baseline)


def slower(by: float) -> dict[str, object]:
    return {"engines": {"main": replace(FAST, ttft_s=FAST.ttft_s * by, itl_s=FAST.itl_s * by)}}


def test_objectives_that_every_trial_meets(tmp_path: Path) -> None:
    measured = run(tmp_path)
    measured.assert_slo("ttft_p50<500ms, output_tokens_per_s>10")
    assert measured.outcomes == {("main", "c=4"): ["SLO met"], ("main", "c=8"): ["SLO met"]}


def test_each_violating_trial_is_named_with_its_value(tmp_path: Path) -> None:
    """A bound between the fastest and the slowest trial at c=8, which every trial at c=4 meets."""
    measured = run(tmp_path)
    ttfts = {
        t.record.id: t.metrics["ttft_p50_s"].value for t in measured.results.finished if t.record.load.label == "c=8"
    }
    invalid = next(t.record.id for t in measured.results.finished if t.record.invalidating)
    assert ttfts.pop(invalid)
    worst = max(ttfts, key=lambda name: ttfts[name] or 0.0)
    bound = sorted(value or 0.0 for value in ttfts.values())[-2]
    with pytest.raises(AssertionError) as raised:
        measured.assert_slo(f"ttft_p50<={bound}s")
    title, line = str(raised.value).splitlines()
    assert title == "SLO violated by 1 of 9 valid trials"
    it_was = value_text(CATALOGUE["ttft_p50_s"].unit, ttfts[worst])
    assert line == f"  main c=8 repeat {worst[1]}: ttft_p50<={bound}s: it was {it_was}"
    assert measured.outcomes == {("main", "c=4"): ["SLO met"], ("main", "c=8"): ["SLO violated"]}


def test_an_unknown_metric_violates_the_slo(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"main c=4 repeat 1: ttft_p99<9s: .*662"):
        run(tmp_path).assert_slo("ttft_p99<9s")
    with pytest.raises(NotComparable, match="'ttft' is not an objective"):
        run(tmp_path / "2").assert_slo("ttft")


def test_an_equal_run_passes_and_a_slower_one_fails_with_the_gates_sentence(tmp_path: Path) -> None:
    measured, worse = run(tmp_path, run_id="a"), run(tmp_path, run_id="b", **slower(1.2))
    measured.assert_no_regression(run(tmp_path, run_id="equal").path)
    measured.assert_no_regression(worse.path)
    assert measured.outcomes["main", "c=4"] == ["no regression"] * 2
    with pytest.raises(AssertionError) as raised:
        worse.assert_no_regression(str(measured.path))
    first, *rest = str(raised.value).splitlines()
    assert first.startswith("regression: output at c=8: main (b) has 0.8")
    assert any(line.startswith("  TPOT p50 at c=8: ") for line in rest)
    assert rest[-2].startswith("  1 trial of main (a) is INVALID and excluded from every metric")
    worse.assert_no_regression(measured.path, primary="peak_host_bytes", metrics=["peak_host_bytes"])


def test_an_inconclusive_verdict_fails_unless_configured_to_pass(tmp_path: Path) -> None:
    measured, few = run(tmp_path, run_id="a"), run(tmp_path, run_id="b", repeats=2, invalid=())
    with pytest.raises(AssertionError) as raised:
        few.assert_no_regression(measured.path, band=0.0001)
    assert str(raised.value).startswith("cannot tell: output at c=8: main (b) has ")
    assert str(raised.value).endswith("raise repeats, or pass with a warning: cannot_tell='pass'")
    with pytest.warns(NoVerdict, match="test_chat: cannot tell: output at c=8"):
        few.assert_no_regression(measured.path, band=0.0001, cannot_tell="pass")
    assert few.outcomes["main", "c=8"] == ["cannot tell"] * 2


def test_one_stored_run_cannot_show_the_noise_between_runs(tmp_path: Path) -> None:
    """Without a noise floor, 20 % may be drift between days; three baseline runs show how much days differ."""
    measured = run(tmp_path, run_id="b", **slower(1.2))
    (tmp_path / FLOOR_FILE).unlink()
    days = [build_run(tmp_path, replace(SINGLE, run_id=f"a{day}", seed=day, invalid=())) for day in range(3)]
    with pytest.raises(AssertionError, match=r"cannot tell: .*; that would stand up to .* \(taken to be 15.0 %"):
        measured.assert_no_regression(days[0], start_noise="15%")
    with pytest.raises(AssertionError, match=r"regression: ITL p50 at c=8: main \(b\) .* main \(a2 and 2 before it\)"):
        measured.assert_no_regression(days, primary="itl_p50_s", metrics=["itl_p50_s"])


def test_a_run_whose_trials_failed_requests_is_a_regression(tmp_path: Path) -> None:
    """Three INVALID trials of five, and none of the baseline; the other trials' metrics are as good as before."""
    measured = run(tmp_path, run_id="a", invalid=())
    failing = invalid(
        FindingCode.FAILED_REQUESTS,
        failed_requests=8,
        measured_requests=160,
        outcome_requests=8,
        outcome="timeout",
        error="none",
    )
    worse = run(tmp_path, run_id="b", invalid=(1, 3, 5), void=failing)
    with pytest.raises(AssertionError, match=r"trials at c=8: main \(b\) failed too many requests in 3 of 5"):
        worse.assert_no_regression(measured.path)
    other = run(tmp_path, run_id="c", invalid=(1,), void=failing)
    with pytest.raises(AssertionError, match="cannot tell: "):
        other.assert_no_regression(measured.path)


def test_a_missing_baseline_fails_or_warns(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no baseline: name a run here or as pytest --bakeoff-baseline"):
        run(tmp_path).assert_no_regression()
    with pytest.warns(NoVerdict, match="no baseline, so not checked for regressions"):
        run(tmp_path / "2", baseline="none").assert_no_regression()


def test_the_baseline_of_a_session_is_the_run_of_the_same_test(tmp_path: Path) -> None:
    """A file of two runs: test_chat's was slower, the other's faster."""
    runs = {"test_other": run(tmp_path, run_id="a", **slower(0.8)), "test_chat": run(tmp_path, run_id="b")}
    file = tmp_path / "base.json"
    file.write_bytes(benchmark_json({title: entry.results for title, entry in runs.items()}))
    measured = run(tmp_path, baseline=str(file), run_id="c")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measured.assert_no_regression(band=0.15)
    with pytest.raises(AssertionError, match="regression: "):
        measured.assert_no_regression(file / "a", band=0.15)


def test_the_candidate_engine_of_a_run_with_several_must_be_named(tmp_path: Path) -> None:
    measured, other = run(tmp_path, PAIR, run_id="a"), run(tmp_path, run_id="b")
    with pytest.raises(NotComparable, match="holds several engines; name one"):
        measured.assert_no_regression(other.path)
    with pytest.raises(NotComparable, match="has no engine 'vllm'"):
        measured.assert_no_regression(other.path, engine="vllm")
    measured.assert_no_regression(f"{measured.path}@main", engine="branch", band=0.15)
    other.assert_no_regression(measured.path, band=0.15)
    assert measured.outcomes["branch", "c=8"] == ["no regression"]
    assert measured.outcomes["main", "c=8"] == []


def test_expected_errors_keep_their_line_and_lose_our_traceback(tmp_path: Path) -> None:
    measured = run(tmp_path)
    with pytest.raises(RunNotFound) as raised:
        measured.assert_no_regression(tmp_path / "nothing")
    assert len(raised.traceback.filter(raised)) == 1, "the line of the test, and nothing of bakeoff"
    with pytest.raises(NoEvidence, match="has no valid trial of main: gpu0 lowered its clocks"):
        measured.assert_no_regression(run(tmp_path, run_id="b", repeats=1, invalid=(0, 1)).path)


SERVER = {"engine": "openai", "url": "http://127.0.0.1:1", "model": "m", "tokenizer": "tok", "concurrency": 1}


def fixture(tmp_path: Path, slo: str | None = None) -> tuple[Bakeoff, list[Measured]]:
    runs: list[Measured] = []
    return Bakeoff("test_chat[a b]", "t.py::test_chat[a b]", out=tmp_path, slo=slo, baseline=None, runs=runs), runs


def test_a_mistake_in_an_objective_shows_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(NotComparable, match="bounds each request; bound a percentile of the trial, as in ttft_p90"):
        fixture(tmp_path, "ttft<5ms")[0].bench(**SERVER)
    assert list(tmp_path.iterdir()) == []


def test_each_run_of_a_test_has_a_title_and_one_that_never_ended_is_no_evidence(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("bakeoff.harness.conduct.run.run_into", lambda *_, **__: False)
    bakeoff, runs = fixture(tmp_path)
    for _ in range(3):
        with pytest.raises(AssertionError, match="the run is INVALID: a trial never ended"):
            bakeoff.bench(**SERVER)
    assert [entry.title.removeprefix("t.py::test_chat[a b]") for entry in runs] == ["", " #2", " #3"]
    assert {entry.results.manifest.name for entry in runs} == {"test_chat-a-b"}
    assert runs[0].outcomes == {("openai", "c=1"): ["INVALID"]}


def test_an_interrupt_ends_the_session(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("bakeoff.harness.conduct.run.run_into", lambda *_, **__: True)
    with pytest.raises(KeyboardInterrupt):
        fixture(tmp_path)[0].bench(**SERVER)


def test_secrets_stay_out_of_messages(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(secrets, "_known", {"hunter2-hunter2"})
    with pytest.raises(BadExperiment) as raised:
        fixture(tmp_path)[0].run(tmp_path / "hunter2-hunter2.toml")
    assert str(raised.value).startswith(f"{tmp_path}/•••.toml does not exist")
    assert raised.value.__suppress_context__


def test_the_summary_has_a_line_for_each_cell(tmp_path: Path) -> None:
    measured, none = run(tmp_path, run_id="a"), run(tmp_path, run_id="b", repeats=1, invalid=(1,))
    measured.assert_slo("ttft_p50<500ms")
    measured.assert_no_regression(run(tmp_path, run_id="equal").path)
    lines = summary([measured, none])
    assert len(lines) == 1 + 2 + 2
    assert lines[0].split() == ["test", "engine", "load", "valid", "TTFT", "p50", "ITL", "p50", "output"]
    assert lines[2].startswith("test_chat  main    c=8   4/5    ")
    assert lines[2].endswith("tok/s [" + lines[2].rpartition("tok/s [")[2])
    assert lines[2].endswith("SLO met, no regression")
    assert "main    c=8   0/1    –" in lines[4]
    assert lines[4].endswith("INVALID")
    assert len({line.index("ms [") for line in lines[1:3]}) == 1, "columns are aligned"
