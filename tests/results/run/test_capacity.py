"""Capacities per GPU and per megawatt: worked numbers, and reasons where one is not known."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from bakeoff import results
from bakeoff.results.log.run_log import LevelJudged
from bakeoff.results.log.search import Attempt, Over, SearchConfig
from bakeoff.results.log.store import RunFolder
from bakeoff.results.metrics import Value, absent
from bakeoff.results.records import Load
from bakeoff.results.report.search_lines import capacity_line
from bakeoff.results.run.capacity import Capacity, Share, capacities
from bakeoff.results.run.run import Run
from tests.results.amending import amend, append, taking_gpus
from tests.results.builders import FAST, Sheet, build_run


def searched(tmp_path: Path, sheet: Sheet) -> Run:
    """A run as a search for two tiers, whose trials at c=4 met the first and whose trial at c=8 did not."""
    path = build_run(tmp_path, sheet)
    config = SearchConfig(
        engines=["a"], over=Over.CONCURRENCY, tiers={"fast": "ttft_p50<1s", "none": "ttft_p50<1ms"}, low=4, high=64,
        template=Load(),
    )  # fmt: skip
    amend(path, search=config)
    for trial in results.load(path).finished:
        level = float(trial.record.load.concurrency or 0)
        for tier, met in (("fast", level < 8), ("none", False)):
            attempt = Attempt(trial.record.id, level, met=met, margin=0.02 if met else -0.02)
            append(RunFolder(path), LevelJudged(engine="a", attempt=attempt, tier=tier))
    return results.load(path)


SHEET = Sheet(engines={"a": FAST}, loads=(Load(concurrency=4), Load(concurrency=8)), invalid=())


def test_the_interval_is_divided_by_the_gpus(tmp_path: Path) -> None:
    run = taking_gpus(searched(tmp_path, SHEET), 2)
    (capacity,) = capacities(run)
    assert run.search is not None
    search = run.search.engines[0]
    assert (capacity.engine, capacity.tier, capacity.gpus.value) == ("a", "fast", 2.0), "the other tier has no level"
    assert capacity.per_gpu is not None
    assert (search.low, search.level, search.high) == tuple(
        None if end is None else 2 * end
        for end in (capacity.per_gpu.low, capacity.per_gpu.level, capacity.per_gpu.high)
    )
    assert capacity.per_megawatt is None
    assert "per MW of GPU power not known: no GPU was sampled" in capacity_line(capacity)


def test_unknown_gpus_have_a_reason(tmp_path: Path) -> None:
    (capacity,) = capacities(searched(tmp_path, SHEET))
    assert capacity.per_gpu is None
    assert capacity_line(capacity).startswith("per GPU not known: no start of the engine showed which GPUs it takes; ")


@pytest.mark.slow
def test_per_megawatt_is_over_the_mean_power_of_the_sampled_gpus(tmp_path: Path) -> None:
    """The oracle is the mean of the power samples, of trials at the level that met the objectives or above it."""
    run = searched(tmp_path, replace(SHEET, gpus=2, requests=900))
    (capacity,) = capacities(run)
    assert run.search is not None
    search = run.search.engines[0]
    assert search.low is not None
    assert search.level is not None
    assert search.high is not None
    watts = [
        2 * statistics.fmean(
            sample.values["power_w"] or 0.0 for sample in trial.telemetry
            if sample.source == "gpu0" and trial.window.holds(sample.t_ns)
        )
        for trial in run.finished if search.low <= (trial.record.load.concurrency or 0) <= search.high
    ]  # fmt: skip
    assert capacity.power_w.reason is None, capacity.power_w
    assert capacity.power_w.value == pytest.approx(statistics.fmean(watts), rel=0.02)
    assert capacity.per_megawatt is not None
    assert capacity.per_megawatt.level == pytest.approx(1e6 * search.level / statistics.fmean(watts), rel=0.02)


def test_a_capacity_that_may_be_above_the_range_is_at_least() -> None:
    share = Share(None, 16.0, None)
    capacity = Capacity("a", "", Value(4.0), absent("no GPU was sampled"), per_gpu=share)
    assert capacity_line(capacity) == ("per GPU at least 16, of 4; per MW of GPU power not known: no GPU was sampled")
