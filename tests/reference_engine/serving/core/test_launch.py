"""The GPUs that each replica's process may use."""

import subprocess

import pytest

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.serving.core import launch


@pytest.mark.parametrize(
    ("visible", "tensor_parallel_size", "expected"),
    [
        (None, 1, ["0", "1"]),
        ("4,5,6,7", 2, ["4,5", "6,7"]),
        ("", 1, ["", ""]),  # the user hides all GPUs
    ],
)
def test_replicas_share_the_gpus_that_are_visible(monkeypatch, visible, tensor_parallel_size, expected):
    shares = []
    monkeypatch.setattr(subprocess, "Popen", lambda *_, env, **__: shares.append(env.get("CUDA_VISIBLE_DEVICES")))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    config = EngineConfig(model="m", data_parallel_size=2, tensor_parallel_size=tensor_parallel_size)
    for number in range(2):
        launch.CoreProcess(config, number).socket.close()
    assert shares == expected
