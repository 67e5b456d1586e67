"""Searches of engines that die under load, do not start, or stay busy: each keeps the interval found so far."""

from pathlib import Path
from typing import Any

import pytest

from bakeoff import results
from bakeoff.harness.conduct.policies.search_config import search_config
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.virtual import Death, Fixed, VirtualEngine, Whole, virtual_search
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.log.search import Ended, EngineSearch
from bakeoff.results.records import RunStatus


def searched(
    tmp_path: Path,
    engines: dict[str, VirtualEngine],
    *,
    url: str | None = None,
    warm_up_s: float = 0.0,
    slo: str = "e2e_p50<5s",
    **options: Any,
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
    return virtual_search(experiment, engines, tmp_path, search_config(experiment, slo, **options))


def search_of(run: results.Run, engine: str) -> EngineSearch:
    assert run.search is not None
    return next(search for search in run.search.engines if search.engine == engine)


def starts(run: results.Run, engine: str) -> int:
    return len(list((run.path / "engines").glob(f"{engine}-*.log")))


def test_an_engine_that_dies_under_load_is_restarted_and_one_that_never_starts_is_lost(tmp_path: Path):
    crowded, broken = VirtualEngine(deaths=(Death(beyond=4),)), VirtualEngine(deaths=(Death(after_requests=0),))
    run = searched(tmp_path, {"broken": broken, "crowded": crowded}, trials=4)
    search = search_of(run, "crowded")
    assert {attempt.level for attempt in search.attempts if attempt.met} <= {2.0, 3.0, 4.0}
    died = [attempt for attempt in search.attempts if not attempt.met]
    assert died
    assert all(attempt.level > 4 and attempt.findings[0].code is FindingCode.ENGINE_DIED for attempt in died)
    assert (search.low or 0) <= 4 <= (search.high or 0)
    assert starts(run, "crowded") >= 2
    lost = search_of(run, "broken")
    assert (lost.ended, lost.attempts, starts(run, "broken")) == (Ended.ENGINE, [], 1)
    assert lost.lost is not None
    assert lost.lost.startswith("broken, repeat 1: ")
    assert (run.status, run.manifest.failure) == (RunStatus.FAILED, lost.lost), "deaths under load are no failure"


def test_engines_take_turns_on_fresh_starts(tmp_path: Path):
    quick, slow = VirtualEngine(slots=4), VirtualEngine(slots=4, slowdown=1.2)
    run = searched(tmp_path, {"quick": quick, "slow": slow}, slo="ttft_p50<100ms", high=64.0, trials=6)
    order = [trial.record.engine for trial in sorted(run.finished, key=lambda trial: trial.record.order)]
    assert order == ["quick"] * 4 + ["slow"] * 4 + ["slow"] * 2 + ["quick"] * 2
    counts = {engine: len(search_of(run, engine).attempts) for engine in ("quick", "slow")}
    assert counts == {"quick": 6, "slow": 6}, "neither is known to 5 % after six trials"
    assert {engine: starts(run, engine) for engine in counts} == {"quick": 2, "slow": 2}


@pytest.mark.parametrize("url", [None, "http://theirs"], ids=["ours", "theirs"])
def test_a_busy_engine_is_restarted_or_given_up_if_it_is_a_running_server(tmp_path: Path, url: str | None):
    """The engine keeps working on timed-out requests: two at a time for one second are three seconds of work."""
    drowning = VirtualEngine(service=Whole(Fixed(0.9)), slots=1, aborts=False)
    run = searched(tmp_path, {"a": drowning}, url=url, warm_up_s=2.0, trials=2)
    search = search_of(run, "a")
    if url is None:
        assert (starts(run, "a"), len(search.attempts), run.status) == (2, 2, RunStatus.COMPLETE)
    else:
        assert (len(search.attempts), search.ended) == (1, Ended.ENGINE)
        assert search.lost == "a was still busy long after its trial at c=2; restart it, and search below that load"
