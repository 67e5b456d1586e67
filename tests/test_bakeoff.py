"""The Python API: its names, nothing else leaks, and each function does what its command does."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bakeoff
from bakeoff.harness.conduct.world import inside
from bakeoff.harness.virtual import VirtualEngine, VirtualWorld
from bakeoff.results.compare.gate import Outcome

EXPERIMENT: dict[str, Any] = {
    "name": "t",
    "engines": [{"adapter": "openai", "label": label, "url": f"http://{label}"} for label in "ab"],
    "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}},
    "loads": [{"concurrency": 4}],
    "trial": {"ramp_s": 1.0, "duration_s": 20.0, "warm_up_s": 0.0},
    "client": {"calibrate": False},
    "quality": {"samples": 0},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    world = VirtualWorld({"a": VirtualEngine(), "b": VirtualEngine(slowdown=1.5)})
    with inside(world):
        yield bakeoff.run(EXPERIMENT, out=tmp_path_factory.mktemp("runs"))


def test_names_are_sorted_and_nothing_else_leaks():
    assert bakeoff.__all__ == sorted(bakeoff.__all__)
    assert dir(bakeoff) == bakeoff.__all__
    for name in bakeoff.__all__:
        assert getattr(bakeoff, name).__name__ == name
        assert getattr(bakeoff, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'msgspec'"):
        bakeoff.msgspec  # noqa: B018


def test_importing_it_imports_nothing_heavy_and_it_runs_as_a_module():
    heavy = (
        "{'pandas', 'numpy', 'aiohttp', 'msgspec', 'torch', 'bakeoff.harness', 'bakeoff.engines'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, bakeoff; print({heavy} or 'nothing')"],
        capture_output=True, text=True, cwd=Path(bakeoff.__file__).parent, check=True,
    )  # fmt: skip
    assert done.stdout == "nothing\n"
    version = subprocess.run(
        [sys.executable, "-m", "bakeoff", "--version"],
        capture_output=True, text=True, cwd=Path(bakeoff.__file__).parent, check=True,
    )  # fmt: skip
    assert version.stdout.count(".") >= 2


def test_a_run_is_measured_loaded_compared_and_gated(run: bakeoff.Run):
    assert [cell.valid for cell in run.cells] == [3, 3]
    assert bakeoff.load(run.path).cells == run.cells
    a, b = f"{run.path}@a", f"{run.path}@b"
    assert bakeoff.compare(a, b, primary="ttft_p50_s").primary.metric == "ttft_p50_s"
    assert bakeoff.gate(baseline=a, candidate=b).outcome is Outcome.REGRESSION
    assert bakeoff.gate(baseline=[b], candidate=a).outcome is Outcome.NO_REGRESSION


def test_a_server_is_benched(tmp_path: Path):
    with inside(VirtualWorld({"openai": VirtualEngine()})):
        run = bakeoff.bench(
            url="http://virtual", engine="openai", model="m", tokenizer="approximate", workload="random",
            concurrency=[1, 2], ramp=1.0, duration=5.0, calibrate=False, out=tmp_path,
        )  # fmt: skip
    assert [cell.load for cell in run.cells] == ["c=1", "c=2"]


def test_a_load_is_searched(tmp_path: Path):
    loads = [{"concurrency": 2}, {"concurrency": 8}]
    with inside(VirtualWorld({"a": VirtualEngine(slots=4), "b": VirtualEngine()})):
        run = bakeoff.search(EXPERIMENT | {"loads": loads}, slo="ttft_p50<80ms", trials=4, out=tmp_path)
    assert run.search is not None
    assert {engine.engine for engine in run.search.engines} == {"a", "b"}


def test_a_mistake_is_one_line():
    with pytest.raises(bakeoff.BadExperiment, match=r"loads is empty; give at least one \[\[loads\]\]"):
        bakeoff.experiment(EXPERIMENT | {"loads": []})
