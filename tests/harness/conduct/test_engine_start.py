"""The startup record counts only the GPUs that the engine may use."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

import bakeoff.harness.conduct.engine_start
from bakeoff.engines import EngineError, Model, engine
from bakeoff.harness.conduct.world import RealWorld
from bakeoff.harness.host.gpu import open_gpus
from bakeoff.harness.virtual.telemetry import VirtualSampler
from tests.engines.quill import model
from tests.harness.cli.test_adapters_docs import quill
from tests.harness.fake_nvml import FakeNvml
from tests.harness.fake_runs import measured_run

__all__ = ["quill"]


def test_a_taken_port_is_an_engine_error_before_the_launch(tmp_path: Path) -> None:
    async def start(port: int) -> None:
        reference = engine("reference", Model("m"), {})
        async with RealWorld().started(reference, "a", Model("m"), port, tmp_path / "log"):
            raise AssertionError

    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(EngineError, match=rf"port {port} cannot be used \(Address already in use\)"):
            asyncio.run(start(port))


@pytest.mark.usefixtures("quill")
@pytest.mark.parametrize(
    ("inherited", "its_own", "gpu_count"), [(None, {}, 3), ("0,1", {}, 2), ("0,1", {"CUDA_VISIBLE_DEVICES": "2"}, 1)]
)
def test_a_start_counts_the_gpus_that_the_engine_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inherited: str | None, its_own: dict[str, str], gpu_count: int
) -> None:
    """The GPUs of its ``env``, else those of Bakeoff's own environment; trials sample the same GPUs."""
    sampled: list[str | None] = []
    into = VirtualSampler.into

    def noted(self: Any, *order: Any, **rest: Any) -> Any:
        sampled.append(order[-1])
        return into(self, *order, **rest)

    monkeypatch.setattr(bakeoff.harness.conduct.engine_start, "open_gpus", lambda: open_gpus(FakeNvml(count=3)))
    monkeypatch.setattr(VirtualSampler, "into", noted)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if inherited is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", inherited)
    smol = {"name": "smol", "path": str(model(tmp_path / "model"))}
    (trial,) = asyncio.run(measured_run(tmp_path, {"adapter": "quill", "env": its_own}, model=smol)).finished
    description = trial.record.engine_description
    assert description is not None
    assert description.details["build"].keys() >= {"program_sha256"}, "which build it was, for who reads the run"
    assert trial.record.startup is not None
    assert (
        len(trial.record.startup.gpu_used_before_bytes) == len(trial.record.startup.gpu_used_ready_bytes) == gpu_count
    )
    assert set(sampled) == {its_own.get("CUDA_VISIBLE_DEVICES", inherited)}  # a spoilt trial is measured again
