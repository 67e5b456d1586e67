"""Two sides are compared only if everything that must be equal is equal."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bakeoff.results.compare.comparison import compare_sides
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.sides import Side, labels, select, together
from bakeoff.results.compare.text import reason_text
from bakeoff.results.errors import NoEvidence, NotComparable
from bakeoff.results.metrics import CATALOGUE, Value, absent, headline
from bakeoff.results.records import Slo
from bakeoff.results.run.work import WorkComparison
from bakeoff.results.statistics import Judgement
from bakeoff.results.statistics.comparison import Evidence, Reason, of_effect
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.statistics.two_sample import Method
from bakeoff.results.statistics.unseen import NoiseSource
from tests.results.amending import amend, amend_trial
from tests.results.builders import FAST, LOADS, Sheet, build_run

WEIGHTS = "5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c"
SHEET = Sheet(engines={"only": FAST}, loads=LOADS[:2], requests=8, invalid=())


def changed(path: Path, trial: str | None = None, **changes: object) -> Path:
    if trial is None:
        amend(path, **changes)
    else:
        amend_trial(path, trial, **changes)
    return path


@pytest.mark.slow
def test_two_engines_of_one_run(demo_path: Path) -> None:
    a, b = select(f"{demo_path}@transformers"), select(f"{demo_path}@reference")
    assert a.engine == "transformers"
    compared = compare_sides(a, b).comparisons
    assert {comparison.level for comparison in compared} == {"c=1", "c=4", "c=8", "poisson 2/s"}
    ttft = next(comparison for comparison in compared if (comparison.metric, comparison.level) == ("ttft_p50_s", "c=8"))
    assert ttft.judgement is Judgement.BETTER
    assert ttft.ratio is not None
    assert ttft.ratio.centre < 0.2


@pytest.mark.slow
def test_headings_name_the_runs_only_where_the_engine_is_the_same(demo_path: Path) -> None:
    a, b = select(f"{demo_path}@transformers"), select(f"{demo_path}@reference")
    assert labels(a, b) == ("transformers", "reference")
    assert labels(a, a) == (f"transformers ({demo_path.name})",) * 2


def test_an_engine_must_be_named_when_there_are_several(demo_path: Path) -> None:
    with pytest.raises(NotComparable, match=r"several engines; name one: .*@reference, .*@transformers"):
        select(str(demo_path))
    with pytest.raises(NotComparable, match="has no engine 'vllm'; it has reference, transformers"):
        select(f"{demo_path}@vllm")
    with pytest.raises(NotComparable, match="names no engine after the @"):
        select(f"{demo_path}@", "reference")


def test_a_run_without_a_valid_trial(tmp_path: Path) -> None:
    path = build_run(tmp_path, replace(SHEET, repeats=1, invalid=(0, 1)))
    with pytest.raises(NoEvidence, match="has no valid trial of only"):
        select(str(path))


def test_the_same_engine_twice_with_one_metric(tmp_path: Path) -> None:
    a = select(str(build_run(tmp_path, replace(SHEET, run_id="a"))))
    b = select(str(build_run(tmp_path, replace(SHEET, run_id="b"))))
    compared = compare_sides(a, b, ComparisonConfig(metrics=("itl_p50_s",), primary="itl_p50_s"))
    assert [comparison.level for comparison in compared.comparisons] == ["c=1", "c=4"]
    assert compared.primary is compared.comparisons[1]
    assert not {comparison.judgement for comparison in compared.comparisons} & {Judgement.BETTER, Judgement.WORSE}


@pytest.mark.slow
def test_the_primary_metric_is_named_beforehand(demo_path: Path) -> None:
    a, b = select(f"{demo_path}@transformers"), select(f"{demo_path}@reference")
    compared = compare_sides(a, b)
    assert (compared.primary.metric, compared.primary.level) == ("output_tokens_per_s", "c=8")
    keys = [(comparison.level, comparison.metric) for comparison in compared.comparisons]
    assert len(set(keys)) == len(keys) == 3 * 9 + 6
    guarded = {comparison.metric for comparison in compared.guardrails}
    assert guarded == {"ttft_p50_s", "tpot_p50_s", "output_tokens_per_s", "failures", "goodput_per_s", "attainment"}
    rates = {"output_tokens_per_s", "requests_per_s", "goodput_per_s"}
    assert {metric for level, metric in keys if level == "c=8"} == {*headline(()), "goodput_per_s", "attainment"}
    assert {metric for level, metric in keys if level == "poisson 2/s"} == {*headline(()), "attainment"} - rates


def test_in_an_open_loop_the_schedule_sets_the_rates(tmp_path: Path) -> None:
    a, b = (select(str(build_run(tmp_path, replace(SHEET, run_id=run, loads=LOADS[3:])))) for run in "ab")
    compared = compare_sides(a, b)
    assert (compared.primary.metric, compared.primary.level) == ("ttft_p50_s", "poisson 2/s")
    asked = compare_sides(a, b, ComparisonConfig(metrics=("requests_per_s",)))
    assert "requests_per_s" in {comparison.metric for comparison in asked.comparisons}, "who asks for it gets it"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"metrics": ("ttft",)}, "unknown metric 'ttft'; did you mean ttft_p50_s"),
        ({"primary": "ttft"}, "unknown metric 'ttft'"),
        ({"alpha": 0.0}, "alpha must lie between 0 and 1, not 0.0"),
        ({"band": 1.0}, "band must lie between 0 and 1, not 1.0"),
        ({"bands": {"ttft": 0.1}}, "unknown metric 'ttft'"),
        ({"work_band": -0.1}, "band must lie between 0 and 1, not -0.1"),
    ],
)
def test_configs_that_cannot_be(config: dict[str, object], message: str) -> None:
    with pytest.raises(NotComparable, match=message):
        ComparisonConfig(**config)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trial", "changes", "message"),
    [
        (None, {"environment": {"cpu": "other"}}, r"in cpu \(Xeon 8468 and other\)"),
        (None, {"slo": Slo(ttft_s=1.0)}, r"in slo.ttft_s \(0.2 and 1.0\)"),
        (
            None,
            {"experiment": {"trial": {"duration_s": 60.0}}},
            r"in trial.duration_s \(unset and 60.0\)",
        ),
        ("r1-e0-1", {"workload_sha256": "f"}, "at c=1 the two sides were sent different traffic"),
        (
            "r1-e0-1",
            {"engine_description": {"label": "only", "adapter": "x", "model_sha256": "f"}},
            "the two sides served different weights",
        ),
        (
            "r1-e0-1",
            {
                "engine_description": {
                    "label": "only",
                    "adapter": "x",
                    "model_sha256": WEIGHTS,
                    "request": {"seed": 1},
                }
            },
            r"in request.seed \((1 and unset|unset and 1)\); send both the same requests",
        ),
    ],
)
def test_what_must_be_equal(tmp_path: Path, trial: str | None, changes: dict[str, object], message: str) -> None:
    a = build_run(tmp_path, replace(SHEET, run_id="a"))
    b = changed(build_run(tmp_path, replace(SHEET, run_id="b")), trial, **changes)
    with pytest.raises(NotComparable, match=message):
        compare_sides(select(str(a)), select(str(b)))


def test_no_common_level(tmp_path: Path) -> None:
    a = select(str(build_run(tmp_path, replace(SHEET, run_id="a", loads=LOADS[:1]))))
    b = select(str(build_run(tmp_path, replace(SHEET, run_id="b", loads=LOADS[1:2]))))
    with pytest.raises(NoEvidence, match="no load level in common: A has c=1; B has c=4"):
        compare_sides(a, b)


RESUMED = replace(SHEET, engines={"a": FAST, "b": FAST}, loads=LOADS[:1], repeats=6)


def test_trials_of_an_earlier_run_are_compared_with_their_own_neighbours(tmp_path: Path) -> None:
    """Repeats 1 to 3 were reused from yesterday: only pairs of one session count."""
    path = build_run(tmp_path, replace(RESUMED, reused=dict.fromkeys(range(6), "yesterday")))
    a, b = select(f"{path}@a"), select(f"{path}@b")
    assert {name: len(trials) for name, trials in a.sessions.items()} == {"yesterday": 3, path.name: 3}
    evidence = compare_sides(a, b).primary.evidence
    assert evidence is not None
    assert evidence.method is Method.PAIRED


def test_sides_of_different_sessions_inside_one_run_are_different_runs(tmp_path: Path) -> None:
    """All of A was reused, B was measured today: they are interleaved only in the plan."""
    of_a = [0, 3, 4, 7, 8, 11]
    path = build_run(tmp_path, replace(RESUMED, reused=dict.fromkeys(of_a, "yesterday")))
    comparison = compare_sides(select(f"{path}@a"), select(f"{path}@b")).primary
    assert comparison.evidence is not None
    assert comparison.evidence.unseen is not None
    assert (comparison.evidence.unseen.source, comparison.evidence.unseen.weight) == (NoiseSource.RUNS, 2.0)


def test_a_baseline_of_several_runs_shows_the_noise_between_them(tmp_path: Path) -> None:
    """Only the newest four of ten runs count, since the six before were half as fast."""
    runs = []
    for day in range(10):
        speed = replace(FAST, itl_s=FAST.itl_s * (2 if day < 6 else 1))
        created = f"2026-11-{day + 1:02}T10:00:00+00:00"
        sheet = replace(SHEET, engines={"only": speed}, loads=LOADS[:1], repeats=2, run_id=f"d{day}", seed=day)
        runs.append(select(str(build_run(tmp_path, replace(sheet, created_utc=created)))))
    baseline = together(runs[::-1])
    assert [run.path.name for run in baseline.runs] == [f"d{day}" for day in range(10)]
    candidate = select(str(build_run(tmp_path, replace(SHEET, loads=LOADS[:1], repeats=2, run_id="b", seed=77))))
    comparison = compare_sides(
        baseline, candidate, ComparisonConfig(metrics=("itl_p50_s",), primary="itl_p50_s")
    ).primary
    assert comparison.evidence is not None
    assert comparison.evidence.method is Method.BETWEEN_RUNS
    assert comparison.ratio is not None
    assert comparison.ratio.centre == pytest.approx(1, abs=0.05)
    assert labels(baseline, candidate)[0] == "only (d9 and 9 before it)"
    with pytest.raises(NotComparable, match="a side must be one engine, not other and only"):
        together([candidate, msgspec.structs.replace(runs[0], engine="other")])


def test_one_request_at_the_bound_of_the_slo_is_no_difference_in_goodput(tmp_path: Path) -> None:
    """Of 64 requests five and four meet the SLO in every repeat: a step of a fourth, not of a sixty-fourth."""
    path = build_run(tmp_path, replace(RESUMED, requests=64))

    def met(side: Side, requests: int, of: int = 6) -> Side:
        """The side with this many requests in the first trials, and nine in the others."""
        (session,) = side.sessions
        trials = [
            msgspec.structs.replace(
                trial,
                metrics=trial.metrics | {"goodput_per_s": Value(count / 10), "attainment": Value(count / 64)},
                requests=[],
            )
            for trial, count in zip(side.sessions[session], [requests] * of + [9] * (6 - of), strict=True)
        ]
        return msgspec.structs.replace(side, sessions={session: trials})

    a, b = select(f"{path}@a"), select(f"{path}@b")
    config = ComparisonConfig(metrics=("goodput_per_s",), primary="goodput_per_s")
    words = [compare_sides(met(a, 5), met(b, requests), config).primary.judgement for requests in (4, 1)]
    assert words == [Judgement.UNCLEAR, Judgement.UNCLEAR]
    many = compare_sides(met(a, 64), met(b, 32), config).primary
    assert many.judgement is Judgement.WORSE
    assert compare_sides(met(a, 9), met(b, 0, of=1), config).primary.judgement is Judgement.UNCLEAR
    assert compare_sides(met(a, 10), met(b, 0, of=1), config).primary.judgement is Judgement.WORSE


@pytest.mark.slow
def test_work_at_all_loads_shares_one_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build_run(tmp_path, replace(RESUMED, loads=LOADS[:2]))
    levels: list[float] = []

    def remembered(level: str, *_: object, alpha: float, **__: object) -> WorkComparison:
        levels.append(alpha)
        return WorkComparison(level, Judgement.SAME, [])

    monkeypatch.setattr("bakeoff.results.compare.comparison.compare_work", remembered)
    compare_sides(select(f"{path}@a"), select(f"{path}@b"), ComparisonConfig(alpha=0.02))
    assert levels == [0.01, 0.01]


@pytest.mark.slow
def test_a_percentile_that_a_trial_lacks_is_not_compared(tmp_path: Path) -> None:
    path = build_run(tmp_path, replace(RESUMED, requests=64))
    a, b = select(f"{path}@a"), select(f"{path}@b")
    (session,) = b.sessions
    few = absent("p90 needs 64 observations, there are 63")
    lacking = [msgspec.structs.replace(trial, requests=[]) for trial in b.sessions[session]]
    lacking[2] = msgspec.structs.replace(lacking[2], metrics=lacking[2].metrics | {"ttft_p90_s": few})
    comparison = compare_sides(
        a,
        msgspec.structs.replace(b, sessions={session: lacking}),
        ComparisonConfig(metrics=("ttft_p90_s",), primary="ttft_p90_s"),
    ).primary
    assert (comparison.judgement, comparison.ratio) == (Judgement.UNCLEAR, None)
    assert reason_text(comparison) == f"absent in 1 of 6 trials of B: {few.reason}"


def test_an_interval_that_excludes_no_change_is_not_said_to_contain_it():
    """Few runs of a count that is mostly zero are judged by their ranks."""
    evidence = Evidence(Method.WELCH, 0.1, 0.1, 0.05, 9, 0.01, 0.0, (3, 3))
    effect = Interval(0.348, 0.314, 0.381, 3)
    found = of_effect(CATALOGUE["failures"], "c=8", effect, Judgement.UNCLEAR, Reason.INTERVAL, evidence=evidence)
    assert reason_text(found) == "so few runs may rank so by chance (exact test: p 0.1); use more repeats"
