"""Searches of engines that die under load, do not start, or stay busy: each ends with what is known of it."""

from pathlib import Path
from typing import Any

import pytest

import results
from harness.conduct.policies.search_config import search_config
from harness.experiment.config import experiment_from
from harness.virtual import Death, Fixed, VirtualEngine, Whole, virtual_search
from results.findings import FindingCode
from results.records import RunStatus
from results.search import Ended, EngineSearch


def searched(
    tmp_path: Path,
    engines: dict[str, VirtualEngine],
    *,
    url: str | None = None,
    warm_up_s: float = 0.0,
    slo: str = "e2e_p50<5s",
    **asked: Any,
) -> results.Run:
    data = {
        "name": "t",
        "engines": [{"adapter": "openai" if url else "reference", "label": label, "url": url} for label in engines],
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}},
        "loads": [{"concurrency": 2}, {"concurrency": 8}],
        "trial": {"ramp_s": 0.2, "duration_s": 1.1, "warm_up_s": warm_up_s, "timeout_s": 1.0},
        "client": {"calibrate": False},
        "quality": {"samples": 0},
    }
    experiment = experiment_from(data, "t")
    return virtual_search(experiment, engines, tmp_path, search_config(experiment, slo, **asked))


def of(run: results.Run, engine: str) -> EngineSearch:
    assert run.search is not None
    return next(one for one in run.search.engines if one.engine == engine)


def starts(run: results.Run, engine: str) -> int:
    return len(list((run.path / "engines").glob(f"{engine}-*.log")))


def test_an_engine_that_dies_of_a_crowd_is_started_again_and_one_that_never_starts_is_lost(tmp_path: Path):
    crowded, broken = VirtualEngine(deaths=(Death(beyond=4),)), VirtualEngine(deaths=(Death(after_requests=0),))
    run = searched(tmp_path, {"broken": broken, "crowded": crowded}, trials=4)
    found = of(run, "crowded")
    assert {attempt.level for attempt in found.attempts if attempt.met} <= {2.0, 3.0, 4.0}
    died = [attempt for attempt in found.attempts if not attempt.met]
    assert died
    assert all(attempt.level > 4 and attempt.findings[0].code is FindingCode.ENGINE_DIED for attempt in died)
    assert (found.low or 0) <= 4 <= (found.high or 0)
    assert starts(run, "crowded") >= 2
    lost = of(run, "broken")
    assert (lost.ended, lost.attempts, starts(run, "broken")) == (Ended.ENGINE, [], 1)
    assert lost.lost is not None
    assert lost.lost.startswith("broken, repeat 1: ")
    assert (run.status, run.manifest.failure) == (RunStatus.FAILED, lost.lost), "deaths under load are no failure"


def test_engines_take_turns_on_fresh_starts(tmp_path: Path):
    quick, slow = VirtualEngine(slots=4), VirtualEngine(slots=4, slowdown=1.2)
    run = searched(tmp_path, {"quick": quick, "slow": slow}, slo="ttft_p50<100ms", high=64.0, trials=6)
    order = [trial.record.engine for trial in sorted(run.finished, key=lambda trial: trial.record.order)]
    assert order == ["quick"] * 4 + ["slow"] * 4 + ["slow"] * 2 + ["quick"] * 2
    counts = {engine: len(of(run, engine).attempts) for engine in ("quick", "slow")}
    assert counts == {"quick": 6, "slow": 6}, "neither is known to 5 % after six trials"
    assert {engine: starts(run, engine) for engine in counts} == {"quick": 2, "slow": 2}


@pytest.mark.parametrize("url", [None, "http://theirs"], ids=["ours", "theirs"])
def test_an_engine_that_stays_busy_is_started_again_or_given_up_where_it_is_not_ours(tmp_path: Path, url: str | None):
    """It goes on with requests that have timed out: two at a time for a second are three seconds of work for it."""
    drowning = VirtualEngine(service=Whole(Fixed(0.9)), slots=1, aborts=False)
    run = searched(tmp_path, {"a": drowning}, url=url, warm_up_s=2.0, trials=2)
    found = of(run, "a")
    if url is None:
        assert (starts(run, "a"), len(found.attempts), run.status) == (2, 2, RunStatus.COMPLETE)
    else:
        assert (len(found.attempts), found.ended) == (1, Ended.ENGINE)
        assert found.lost == "a was still busy long after its trial at c=2; restart it, and search below that"
