"""Steps in a folder of runs."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bakeoff.results.compare.series import Doubt, Outcome, Series, outcome_of
from bakeoff.results.dashboard.history_page import history_page
from bakeoff.results.errors import NoEvidence, NotComparable, RunNotFound
from bakeoff.results.history.history import history, history_of
from bakeoff.results.index import RunFacts
from bakeoff.results.log.run_log import Source
from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import RunStatus
from bakeoff.results.report import print_history
from bakeoff.results.show.table import Tone
from tests.results.amending import amend
from tests.results.builders import FAST, LOADS, Sheet, build_run
from tests.results.nights import Nights, night, nights

TINY = Sheet(engines={"only": FAST}, loads=LOADS[:1], repeats=2, requests=5, invalid=(), regret=None)


def run_of(root: Path, number: int, **changes: object) -> None:
    """One run; from number 5 on 50 % slower."""
    slower = 1.5 if number >= 5 else 1.0
    speed = replace(FAST, ttft_s=FAST.ttft_s * slower, itl_s=FAST.itl_s * slower)
    status = changes.pop("status", RunStatus.COMPLETE)
    sheet = replace(TINY, engines={"only": speed}, run_id=f"run-{number:02}", seed=number, status=status)
    path = build_run(root, sheet)
    folder = RunFolder.open(path)
    source = Source(f"{number:09x}abc", "side" if number == 3 else "main")
    amend(folder.path, source=source, **changes)


@pytest.fixture(name="runs", scope="module")
def runs_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for number in range(10):
        run_of(root, number)
    return root


def test_a_folder_of_runs(runs: Path) -> None:
    all_series = history(runs, metrics=("itl_p50_s", "output_tokens_per_s", "failures"))
    assert [(series.engine, series.level, series.metric, len(series.points)) for series in all_series] == [
        ("only", "c=1", "itl_p50_s", 10), ("only", "c=1", "output_tokens_per_s", 10),
    ]  # fmt: skip
    for series, ratio in zip(all_series, (1.5, 1 / 1.5), strict=True):
        (change,) = series.changes
        assert (change.last_before.run, change.first_after.run) == ("run-04", "run-05")
        assert change.step.ratio == pytest.approx(ratio, rel=0.03)
        assert change.is_worse
    out = io.StringIO()
    print_history(all_series, Console(file=out, width=180))
    assert "000000004..000000005" in out.getvalue()
    assert "▼ worse" in out.getvalue()
    assert "2 steps and 0 drifts in 2 series of up to 10 runs; 0 series never changed" in out.getvalue()
    assert "Worse: the newest step is a degradation in ITL p50 of only at c=1, output of only at c=1." in out.getvalue()


def test_only_runs_that_belong_together(runs: Path, tmp_path: Path) -> None:
    (series,) = history(runs, branch="main", metrics=("itl_p50_s",))
    assert "run-03" not in {point.run for point in series.points}
    for number in range(7):
        run_of(tmp_path, number, **({"environment": {"cpu": "other", "cores": 64}} if number > 5 else {}))
    run_of(tmp_path, 8, status=RunStatus.INTERRUPTED)
    by_machine = history(tmp_path, metrics=("itl_p50_s",))
    assert [(series.machine, len(series.points)) for series in by_machine] == [
        ("Xeon 8468, 2 cores", 6),
        ("other, 64 cores", 1),
    ]


def test_what_is_no_history(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match=r"there is no complete run of 'x' in "):
        history(runs, "x")
    with pytest.raises(RunNotFound, match=r"there is no complete run on branch 'y' in "):
        history(runs, branch="y")
    with pytest.raises(NotComparable, match="unknown metric 'z'"):
        history(runs, metrics=("z",))
    with pytest.raises(NotComparable, match="--newest must be at least 1, not -1"):
        history(runs, newest=-1)
    run_of(tmp_path, 0)
    with pytest.raises(
        NoEvidence, match="the longest series has 1 runs; detecting a step needs 3 runs before and 3 after it"
    ):
        history(tmp_path)
    run_of(tmp_path, 1, name="other")
    with pytest.raises(NotComparable, match="several experiments; give --name: demo, other"):
        history(tmp_path)


RATE, TIME = "goodput_per_s", "itl_p50_s"


def quiet(count: int, level: float = 20.0, seed: int = 1) -> list[float]:
    """Nights at one level, with 1 % of noise."""
    return (level * np.exp(np.random.default_rng(seed).normal(0, 0.01, count))).tolist()


def seen(runs: list[RunFacts], *metrics: str) -> list[Series]:
    return history_of(Nights(runs), metrics=metrics)  # pyright: ignore[reportArgumentType]


def printed(series: list[Series]) -> str:
    out = io.StringIO()
    print_history(series, Console(file=out, width=180))
    return out.getvalue()


def test_a_night_at_0_silences_no_series() -> None:
    """The night is named and left out; the step is found in the rest."""
    values = [*quiet(20), *quiet(20, 18.0, seed=2)]
    values[7] = 0.0
    (series,) = seen(nights(RATE, values), RATE)
    assert ([zero.run for zero in series.zeros], len(series.points)) == (["night-007"], 39)
    (change,) = series.changes
    assert (change.last_before.run, change.first_after.run) == ("night-019", "night-020")
    assert outcome_of([series]) is Outcome.WORSE
    assert "goodput of only at c=4: 0 or less in night-007, excluded" in printed([series])


def test_nights_at_0_at_the_end_are_a_doubt_and_then_a_fall() -> None:
    for zeros, outcome in ((1, Outcome.CANNOT_TELL), (2, Outcome.CANNOT_TELL), (3, Outcome.WORSE), (9, Outcome.WORSE)):
        (series,) = seen(nights(RATE, [*quiet(20), *[0.0] * zeros]), RATE)
        assert (series.outcome, series.doubt) == (outcome, Doubt.ZERO)
    (change,) = series.changes
    assert (change.last_before.run, change.first_after.run, change.step.after) == ("night-019", "night-020", 0.0)
    assert "−100.0 % ▼ worse" in printed([series])
    (series,) = seen(nights(TIME, [*quiet(20), *[0.0] * 5]), TIME)
    assert (series.changes, series.outcome) == ([], Outcome.CANNOT_TELL), "no latency is 0: something else is wrong"


def test_what_was_always_0_is_no_doubt() -> None:
    runs = [night(i, {RATE: 0.0, TIME: value}) for i, value in enumerate(quiet(20))]
    assert outcome_of(seen(runs, RATE, TIME)) is Outcome.NOT_WORSE


def test_the_outcome_is_that_of_the_newest_step() -> None:
    for levels, outcome in (
        ([20.0], Outcome.NOT_WORSE),
        ([20.0, 21.0], Outcome.WORSE),
        ([20.0, 19.0], Outcome.NOT_WORSE),
        ([20.0, 21.0, 20.0], Outcome.NOT_WORSE),
        ([20.0, 19.0, 20.0], Outcome.WORSE),
    ):
        values = [value for seed, level in enumerate(levels) for value in quiet(20, level, seed)]
        for metric, turned in ((TIME, values), (RATE, [400 / value for value in values])):
            (series,) = seen(nights(metric, turned), metric)
            assert (len(series.changes), series.outcome) == (len(levels) - 1, outcome)


def test_a_newest_run_far_on_the_bad_side_is_a_doubt_until_more_follow() -> None:
    old = quiet(30)
    for metric, factor in ((TIME, 1.1), (RATE, 1 / 1.1)):
        for more, outcome in ((0, Outcome.NOT_WORSE), (1, Outcome.CANNOT_TELL), (8, Outcome.WORSE)):
            values = [*old, *quiet(more, 20 * factor, seed=3)]
            (series,) = seen(nights(metric, values), metric)
            assert series.outcome is outcome
    (series,) = seen(nights(TIME, [*old, 18.0]), TIME)
    assert series.doubt is None, "on the good side it can begin nothing that is worse"
    (series,) = seen(nights(TIME, [*old, 22.0]), TIME)
    assert "is much worse in the newest run" in printed([series])
    assert "Cannot tell." in printed([series])


def test_a_series_that_could_not_show_a_large_step_says_so() -> None:
    (series,) = seen(nights(TIME, [20.0, 20.1, 19.9, 40.0, 40.2, 39.8]), TIME)
    assert (series.changes, series.doubt, series.outcome) == ([], Doubt.TOO_NOISY, Outcome.CANNOT_TELL)
    assert "varies too much for its number of runs to show a step of 10 %" in printed([series])
    noisy = [20.0, 23.0, 18.0, 22.0, 19.0, 24.0, 18.0, 21.0, 19.5, 23.5, 18.5]
    for values, doubt in ((noisy, Doubt.TOO_NOISY), ([*noisy, 20.5], None), (quiet(40), None)):
        (series,) = seen(nights(TIME, values), TIME)
        assert series.doubt is doubt, "from twelve runs on the history's own power is what its table says"


def test_the_more_series_the_further_off_a_newest_run_must_be() -> None:
    """The chance of a false outlier is 1 % over all series, however many there are."""
    values = [*quiet(40), 20 * 1.028]
    for many, doubt in ((1, Doubt.OUTLIER), (5, None)):
        names = ["itl_p50_s", "itl_p90_s", "itl_p95_s", "itl_p99_s", "ttft_p50_s"][:many]
        all_series = seen([night(i, dict.fromkeys(names, value)) for i, value in enumerate(values)], *names)
        assert [series.doubt for series in all_series] == [doubt] * many


def test_a_series_that_the_newest_run_should_continue_and_does_not() -> None:
    old = nights(TIME, quiet(10))
    (series,) = seen([*old, night(10, {TIME: None})], TIME)
    assert (series.is_current, series.doubt) == (True, Doubt.NO_VALUE)
    elsewhere = [night(10 + i, {TIME: value}, machine="there") for i, value in enumerate(quiet(3))]
    ended, continued = seen([*old, *elsewhere], TIME)
    assert (ended.is_current, ended.doubt) == (False, None), "it ended when the machine changed"
    assert (continued.is_current, continued.doubt) == (True, Doubt.TOO_FEW)
    other = night(10, {TIME: 20.0}, engine="other")
    first, second = seen([*old, other], TIME)
    assert (first.is_current, second.doubt) == (False, Doubt.TOO_FEW), "the newest run had no such engine in its plan"


def test_an_ended_series_has_nothing_against_the_newest_run() -> None:
    slower = nights(TIME, [*quiet(10), *quiet(10, 30.0)])
    moved = [night(20 + i, {TIME: value}, machine="there") for i, value in enumerate(quiet(10))]
    old, new = seen([*slower, *moved], TIME)
    assert (old.changes[0].is_worse, old.outcome, new.outcome) == (True, Outcome.NOT_WORSE, Outcome.NOT_WORSE)
    assert outcome_of([old, new]) is Outcome.NOT_WORSE
    assert outcome_of([old]) is Outcome.CANNOT_TELL, "no series is current"


def test_a_drift_is_printed_with_its_ends_and_no_commit() -> None:
    values = [value * 1.002**i for i, value in enumerate(quiet(60))]
    (series,) = seen(nights(TIME, values), TIME)
    (drift,) = series.drifts
    assert (series.changes, drift.first.run, drift.last.run, drift.is_worse) == ([], "night-000", "night-059", True)
    assert drift.ratio == pytest.approx(1.002**59, rel=0.02)
    text = printed([series])
    assert "drift up to night-059" in text
    assert "0 steps and 1 drifts in 1 series of up to 60 runs" in text
    assert ".." not in text


def test_the_page_has_drifts_zeros_and_the_outcome_too() -> None:
    drifting = [value * 1.002**i for i, value in enumerate(quiet(60))]
    rates = [0.0, *quiet(59, seed=2)]
    runs = [night(i, {TIME: time, RATE: rate}) for i, (time, rate) in enumerate(zip(drifting, rates, strict=True))]
    page = history_page(Nights(runs), {"metric": TIME})  # pyright: ignore[reportArgumentType]
    assert page.steps is not None
    ((run, commits, *_, size),) = page.steps.rows
    assert (run.text, commits.text, size.tone) == ("night-000", "drift up to night-059", Tone.WORSE)
    assert size.link == "/compare?a=night-000%40only&b=night-059%40only"
    assert (page.outcome, page.notes) == ("No series ends with a degradation.", [])
    (chart,) = page.charts
    assert "worse from run 1: 20." in chart.svg
    assert "drifting to 22." in chart.svg
    page = history_page(Nights(runs), {"metric": RATE})  # pyright: ignore[reportArgumentType]
    assert page.notes == ["goodput of only at c=4: 0 or less in night-000, excluded"]
    assert page.steps is not None
    assert (page.steps.rows, len(page.charts)) == ([], 1)
