"""Searches of engines that die under load, do not start, or stay busy: each ends with what is known of it."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import results
from engines import registry
from harness.experiment import experiment_from
from harness.searching import create_search, search, terms_of
from harness.settling import Settler
from results.records import RunStatus
from results.search import Ended, EngineSearch
from tests.engines.fakes.quill import FakeQuill
from tests.engines.fakes.stage import Script, running
from tests.engines.quill import install, model

SERVER = "tests.engines.fakes.quill"


@pytest.fixture(autouse=True)
def _quill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    programs = install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    registry._others.cache_clear()
    yield
    registry._others.cache_clear()
    left = [child for child in psutil.Process().children(recursive=True) if SERVER in child.cmdline()]
    assert left == [], "no engine outlives its search"


async def searched(tmp_path: Path, *engines: dict[str, Any], settle_s: float = 0.0, **asked: Any) -> results.Run:
    data = {
        "name": "t",
        "model": {"name": "smol", "path": str(model(tmp_path / "model"))},
        "engines": list(engines),
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}},
        "loads": [{"concurrency": 2}, {"concurrency": 8}],
        "trial": {"duration_s": 1.1, "warmup_requests": 0, "settle_s": settle_s},
        "client": {"calibrate": False},
        "quality": {"samples": 0},
    }
    experiment = experiment_from(data, "t")
    folder = create_search(experiment, tmp_path / "runs")
    watcher: Any = SimpleNamespace(
        **{name: lambda *_: None for name in ("fetching", "starting", "trial_started", "trial_finished", "judged")}
    )
    await search(experiment, folder, watcher, terms_of(experiment, "e2e_p50<5s", **asked))
    return results.load(folder.path)


def of(run: results.Run, engine: str) -> EngineSearch:
    assert run.search is not None
    return next(one for one in run.search.engines if one.engine == engine)


def starts(run: results.Run, engine: str) -> int:
    return len(list((run.path / "engines").glob(f"{engine}-*.log")))


def test_an_engine_that_dies_of_a_crowd_is_started_again_and_one_that_never_starts_is_lost(tmp_path: Path):
    crowded = {"adapter": "quill", "label": "crowded", "args": ["--fault", "starve-crowded"]}
    broken = {"adapter": "quill", "label": "broken", "args": ["--fault", "crash"]}
    run = asyncio.run(searched(tmp_path, broken, crowded, trials=4))
    found = of(run, "crowded")
    assert {attempt.level for attempt in found.attempts if attempt.kept} <= {2.0, 3.0, 4.0}
    died = [attempt for attempt in found.attempts if not attempt.kept]
    assert died
    assert all(attempt.level > 4 and attempt.why[0].startswith("engine died: ") for attempt in died)
    assert (found.low or 0) <= 4 <= (found.high or 0)
    assert starts(run, "crowded") >= 2
    lost = of(run, "broken")
    assert (lost.ended, lost.attempts, starts(run, "broken")) == (Ended.ENGINE, [], 1)
    assert lost.note is not None
    assert lost.note.startswith("broken, repeat 1: ")
    assert (run.status, run.manifest.failure) == (RunStatus.FAILED, lost.note), "deaths under load are no failure"


def test_an_engine_that_stays_busy_is_started_again_or_given_up_where_it_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def never(*_: object) -> bool:
        return False

    monkeypatch.setattr(Settler, "recovered", never)
    ours = asyncio.run(searched(tmp_path / "ours", {"adapter": "quill", "label": "a"}, settle_s=5.0, trials=2))
    assert (starts(ours, "a"), len(of(ours, "a").attempts), ours.status) == (2, 2, RunStatus.COMPLETE)

    async def scene() -> results.Run:
        async with running(FakeQuill(Script(0.002, 0.002), [], "smol", {})) as url:
            return await searched(
                tmp_path / "theirs", {"adapter": "quill", "label": "a", "url": url}, settle_s=5.0, trials=2
            )

    theirs = asyncio.run(scene())
    found = of(theirs, "a")
    assert (len(found.attempts), found.ended) == (1, Ended.ENGINE)
    assert found.note == "a was still busy long after its trial at c=2; restart it, and search below that"
