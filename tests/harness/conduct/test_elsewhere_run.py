"""Quill in a container and on another host, both made up, through the whole harness."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bakeoff.engines import registry
from bakeoff.results.findings import is_against_engine
from bakeoff.results.records import EngineDescription, RunStatus
from tests.engines.elsewhere import Elsewhere, elsewhere
from tests.engines.quill import install, model
from tests.harness.fake_runs import measured_run

SENTINEL = "hf-sentinel-5512"


@pytest.fixture
def other_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    programs = install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    registry._others.cache_clear()
    with elsewhere(tmp_path) as side:
        monkeypatch.setenv("PATH", f"{side.programs}:{programs}:{os.environ['PATH']}")
        yield side
    registry._others.cache_clear()


@pytest.mark.parametrize(
    ("way", "client", "env"),
    [
        ({"container": {"image": "image"}}, "docker", {"HF_TOKEN": SENTINEL}),
        ({"ssh": {"host": "box"}}, "ssh", {"OMP_NUM_THREADS": "2"}),
    ],
)
def test_it_is_started_measured_and_stopped_elsewhere(
    tmp_path: Path, other_side: Elsewhere, way: dict[str, Any], client: str, env: dict[str, str]
) -> None:
    ((place, table),) = way.items()
    table = {**table, "command": [str(tmp_path / "site/programs/quill-server")]}
    side = {"adapter": "quill", place: table, "env": env}
    smol = {"name": "smol", "path": str(model(tmp_path / "model"))}
    run = asyncio.run(measured_run(tmp_path, side, model=smol, samples=True))
    assert run.status is RunStatus.COMPLETE, run.manifest.failure
    (trial,) = run.finished
    assert trial.answered
    assert not is_against_engine(trial.record.findings), trial.record.findings
    description = trial.record.engine_description
    assert isinstance(description, EngineDescription)
    assert description.argv[0] == client
    assert "engine" not in {record.source for record in trial.telemetry}, "only its client runs here"
    hidden = "the engine's processes: those of its container cannot be seen from here"
    assert trial.metrics["foreign_cpu_share"].reason == (hidden if place == "container" else None)
    assert other_side.engines[0].poll() is not None
    files = (path for path in run.path.rglob("*") if path.is_file())
    assert [path for path in files if SENTINEL.encode() in path.read_bytes()] == []
