"""Runs the two clients on one recording."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from bakeoff.harness.cli.exits import EXIT_INVALID, EXIT_OK
from benchmarks.peers.install import executable

_RULES = """
name = "first-call"
summary = "sessions begin at their first call, each once"
source = "benchmarks.agents.aiperf"
start = "first-call"
by_count = true
"""
_LIMIT_S = 300


def bakeoff(folder: Path, url: str, tokenizer: Path, lanes: int) -> None:
    """Replay ``traces.jsonl`` with Bakeoff: ``lanes`` sessions, each from its first call."""
    rules = folder / "rules.toml"
    rules.write_text(_RULES, encoding="utf-8")
    command = [
        sys.executable, "-m", "bakeoff", "bench", url, "--workload", str(folder / "traces.jsonl"),
        "--rules", str(rules), "--concurrency", str(lanes), "--repeats", "1",
        "--model", "timed", "--tokenizer", str(tokenizer),
        # A machine that others use delays both clients; a second trial would be another run.
        "--max-foreign-share", "1", "--out", str(folder / "runs"),
    ]  # fmt: skip
    # A trial is INVALID if the machine is too busy to judge a server, which nobody does here.
    _run(command, {}, folder / "bakeoff.log", passes=(EXIT_OK, EXIT_INVALID))


def aiperf(folder: Path, url: str, tokenizer: Path, lanes: int, duration_s: float) -> None:
    """Replay the same sessions with AIPerf's timing of agents.

    Its scenario is left out because it lasts 900 s at least and salts the prompts. A number of sessions instead of a
    duration would cut sub-agents that outlive the last main agent, and the run would not end.
    """
    config = {
        "schemaVersion": "2.0",
        "randomSeed": 42,
        "benchmark": {
            "model": "timed",
            "endpoint": {"url": url, "type": "chat", "streaming": True, "extra": {"ignore_eos": True}},
            "tokenizer": {"name": str(tokenizer)},
            "dataset": {
                "type": "file", "path": str(folder / "sessions"), "format": "weka_trace", "sampling": "sequential",
            },
            "phases": {
                "type": "concurrency", "timingMode": "agentic_replay", "concurrency": lanes,
                "trajectoryStartMinRatio": 0.0, "trajectoryStartMaxRatio": 0.0,
                "duration": duration_s, "gracePeriod": 1.0,
            },
            "artifacts": {"dir": str(folder / "artifacts")},
            "gpuTelemetry": {"enabled": False},
            "serverMetrics": {"enabled": False},
        },
    }  # fmt: skip
    (folder / "aiperf.yaml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    # Offline it takes the tokenizer's folder for a name on the hub and refuses it.
    environment = {"AIPERF_DATASET_WEKA_SPLIT_FLATTENED_AGENTS": "false", "HF_HUB_OFFLINE": ""}
    command = [executable("aiperf", "aiperf"), "profile", "--config", str(folder / "aiperf.yaml"), "--ui", "none"]
    _run(command, environment, folder / "aiperf.log")


def _run(command: list[str], environment: dict[str, str], log: Path, *, passes: tuple[int, ...] = (EXIT_OK,)) -> None:
    """Run a client to its end; exit with the end of its output if it fails."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            start_new_session=True,
        )  # fmt: skip
    try:
        process.wait(_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode not in passes:
        sys.exit(f"{Path(command[0]).name} ended with {process.returncode}:\n{log.read_text(errors='replace')[-1500:]}")
