"""The one sentence at the top: only what the intervals bear."""

from dataclasses import replace
from pathlib import Path

import results
from results.records import Load
from results.report.verdict import verdict
from tests.results.builders import FAST, SLOW, Sheet, build_run


def sentence(root: Path, **changes: object) -> str:
    return verdict(results.load(build_run(root, replace(Sheet(requests=16), **changes)))).sentence  # type: ignore[arg-type]


def test_the_best_is_named_with_its_interval(demo: results.Run) -> None:
    found = verdict(demo)
    assert found.decided
    assert found.sentence.startswith("At c=8, reference delivered 10.")
    assert found.sentence.endswith("(95 % interval, 3 runs a side) the output tokens/s of transformers.")


def test_open_loop_is_judged_by_ttft(tmp_path: Path) -> None:
    found = sentence(tmp_path, loads=[Load(rate_per_s=4.0, arrival="constant")], invalid=())
    assert found.startswith("At constant 4/s, reference had 0.")
    assert found.endswith("the TTFT p50 of transformers.")


def test_one_engine_or_one_repeat_bears_no_verdict(tmp_path: Path) -> None:
    alone = sentence(tmp_path / "1", engines={"a": FAST}, invalid=())
    assert alone == "No verdict: fewer than two engines have a valid trial at c=8."
    once = sentence(tmp_path / "2", engines={"a": FAST, "b": SLOW}, repeats=1, invalid=())
    assert once == "No verdict at c=8: needs 2 runs of each side, there are 1 and 1."


def test_an_empty_plan(tmp_path: Path) -> None:
    assert sentence(tmp_path, loads=[]) == "No verdict: nothing was planned."
