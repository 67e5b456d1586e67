"""Commands on a system that lacks what only Linux has: they measure a remote server, and launch no engine."""

import os
import subprocess
import sys
from pathlib import Path

from bakeoff.harness.truth import Schedule
from bakeoff.results import load
from bakeoff.results.findings import Severity
from tests.fresh import ROOT
from tests.harness.fake_runs import PAUSED
from tests.harness.truth_client import serving

SIMULATED = ROOT / "tests/harness/simulated_mac"


def bakeoff(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "bakeoff", *arguments]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(SIMULATED), str(ROOT / "src")])}
    return subprocess.run(argv, check=False, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def test_a_remote_server_is_measured_and_what_cannot_be_is_absent_with_its_reason(tmp_path: Path) -> None:
    lengths = ("--workload", "random", "--option", "input_tokens=8", "--option", "output_tokens=4")
    short = ("--concurrency", "2", "--duration", "0.5", "--ramp", "0.1", "--no-calibrate", "--max-foreign-share", "1")
    with serving(Schedule(0.002, 0.001)) as server:
        url = f"http://127.0.0.1:{server.port}"
        done = bakeoff(tmp_path, "bench", url, "--tokenizer", "approximate", "--out", "runs", *lengths, *short)
    assert "Traceback" not in done.stderr
    trial = load(next((tmp_path / "runs").iterdir())).finished[-1]
    assert {finding.code for finding in trial.record.findings if finding.severity is Severity.INVALID} <= PAUSED
    assert len(trial.requests) > 0
    for source, name in (("host", "cpu_share"), ("host", "memory_available_bytes"), ("cpu", "own_s"),
                         ("client", "rss_bytes"), ("client", "cpu_s")):  # fmt: skip
        values = [record.values[name] for record in trial.telemetry if record.source == source]
        assert any(value is not None for value in values), f"{source} {name}"


def test_an_engine_is_launched_on_linux_only(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    done = bakeoff(tmp_path, "serve", "model")
    expected = "bakeoff: engines are launched on Linux only; start this one there, and give its address as url\n"
    assert (done.returncode, done.stderr) == (2, expected)
