"""Two sides are compared only when what should be equal is equal."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from results.comparing import Terms, compare_sides, labels, select
from results.errors import NoEvidence, NotComparable
from results.statistics import Judgement
from tests.results.builders import FAST, LOADS, Sheet, build_run

ONE = Sheet(engines={"only": FAST}, loads=LOADS[:2], requests=8, invalid=())


def changed(path: Path, file: str, **changes: object) -> Path:
    target = path / file
    target.write_text(json.dumps({**json.loads(target.read_text()), **changes}))
    return path


def test_two_engines_of_one_run(demo_path: Path) -> None:
    a, b = select(f"{demo_path}@transformers"), select(f"{demo_path}@reference")
    assert a.engine == "transformers"
    compared = compare_sides(a, b).comparisons
    assert {one.level for one in compared} == {"c=1", "c=4", "c=8", "poisson 2/s"}
    assert "failures" not in {one.metric for one in compared}
    ttft = next(one for one in compared if (one.metric, one.level) == ("ttft_p50_s", "c=8"))
    assert ttft.judgement is Judgement.BETTER
    assert ttft.ratio is not None
    assert ttft.ratio.centre < 0.2


def test_headings_name_the_runs_only_where_the_engine_is_the_same(demo_path: Path) -> None:
    a, b = select(f"{demo_path}@transformers"), select(f"{demo_path}@reference")
    assert labels(a, b) == ("transformers", "reference")
    assert labels(a, a) == (f"transformers ({demo_path.name})",) * 2


def test_an_engine_must_be_named_when_there_are_several(demo_path: Path) -> None:
    with pytest.raises(NotComparable, match=r"several engines; name one: .*@reference, .*@transformers"):
        select(str(demo_path))
    with pytest.raises(NotComparable, match="has no engine 'vllm'; it has reference, transformers"):
        select(f"{demo_path}@vllm")


def test_a_run_without_a_valid_trial(tmp_path: Path) -> None:
    path = build_run(tmp_path, replace(ONE, repeats=1, invalid=(0, 1)))
    with pytest.raises(NoEvidence, match="has no valid trial of only"):
        select(str(path))


def test_the_same_engine_twice_with_one_metric(tmp_path: Path) -> None:
    a = select(str(build_run(tmp_path, replace(ONE, run_id="a"))))
    b = select(str(build_run(tmp_path, replace(ONE, run_id="b"))))
    compared = compare_sides(a, b, Terms(metrics=("itl_p50_s",), primary="itl_p50_s"))
    assert [one.level for one in compared.comparisons] == ["c=1", "c=4"]
    assert compared.primary is compared.comparisons[1]
    assert not {one.judgement for one in compared.comparisons} & {Judgement.BETTER, Judgement.WORSE}


def test_the_primary_metric_is_named_beforehand(demo_path: Path) -> None:
    a, b = select(f"{demo_path}@transformers"), select(f"{demo_path}@reference")
    compared = compare_sides(a, b)
    assert (compared.primary.metric, compared.primary.level) == ("output_tokens_per_s", "c=8")
    keys = [(one.level, one.metric) for one in compared.comparisons]
    assert len(set(keys)) == len(keys) == 4 * 6
    assert len(compared.guardrails) == len(keys) - 1
    open_loop = compare_sides(*(msgspec.structs.replace(side, trials=side.at("poisson 2/s")) for side in (a, b)))
    assert (open_loop.primary.metric, open_loop.primary.level) == ("ttft_p50_s", "poisson 2/s")


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"metrics": ("ttft",)}, "unknown metric 'ttft'; known: ttft_p50_s"),
        ({"primary": "ttft"}, "unknown metric 'ttft'"),
        ({"primary": "failures"}, "failures are counted, not compared by a ratio"),
        ({"alpha": 0.0}, "alpha must lie between 0 and 1, not 0.0"),
        ({"band": 1.0}, "band must lie between 0 and 1, not 1.0"),
    ],
)
def test_terms_that_cannot_be(terms: dict[str, object], message: str) -> None:
    with pytest.raises(NotComparable, match=message):
        Terms(**terms)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("manifest.json", {"environment": {"cpu": "other"}}, "the machines differ in cpu"),
        ("trials/r1-e0-1/trial.json", {"workload_sha256": "f"}, "at c=1 the two were sent different traffic"),
        (
            "trials/r1-e0-1/trial.json",
            {"engine_description": {"label": "only", "adapter": "x", "model_sha256": "f"}},
            "the two served different weights",
        ),
    ],
)
def test_what_must_be_equal(tmp_path: Path, file: str, changes: dict[str, object], message: str) -> None:
    a = build_run(tmp_path, replace(ONE, run_id="a"))
    b = changed(build_run(tmp_path, replace(ONE, run_id="b")), file, **changes)
    with pytest.raises(NotComparable, match=message):
        compare_sides(select(str(a)), select(str(b)))


def test_no_common_level(tmp_path: Path) -> None:
    a = select(str(build_run(tmp_path, replace(ONE, run_id="a", loads=LOADS[:1]))))
    b = select(str(build_run(tmp_path, replace(ONE, run_id="b", loads=LOADS[1:2]))))
    with pytest.raises(NotComparable, match="no load level in common"):
        compare_sides(a, b)
