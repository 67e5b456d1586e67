"""A load is the same however many workers share it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bakeoff import results
from bakeoff.harness.virtual import Fixed, PerToken, VirtualEngine, run_in, virtual_experiment
from bakeoff.harness.virtual.world import VirtualWorld
from bakeoff.results.metrics.throughput import requests_in_flight
from bakeoff.results.records import Verdict
from bakeoff.workloads import Session, Turn

TOKENS, TOKEN_S = 5, 0.1
ANSWER_S = TOKENS * TOKEN_S


def trial_of(root: Path, workers: int, load: dict[str, object], **changes: Any) -> results.Trial:
    experiment = virtual_experiment(
        ["a"], [load], repeats=1, client={"workers": workers}, trial={"warm_up_s": 0.0, "duration_s": 10.0}, **changes
    )
    world = VirtualWorld({"a": VirtualEngine(service=PerToken(Fixed(TOKEN_S), Fixed(TOKEN_S)))})
    (trial,) = run_in(world, experiment, root).finished
    assert trial.record.verdict is Verdict.VALID
    return trial


def ramp_s(trial: results.Trial) -> float:
    return (trial.window.start_ns - trial.record.issue_start_ns) / 1e9


@pytest.mark.parametrize("workers", [1, 60])
def test_the_ramp_of_an_open_loop_ends_on_every_worker(tmp_path: Path, workers: int):
    """The ramp's plan has forty sessions or a few more."""
    trial = trial_of(tmp_path, workers, {"rate_per_s": 60, "arrival": "constant"})
    assert ramp_s(trial) < 8.0
    assert trial.record.ramp is not None
    assert trial.record.ramp.complete
    assert len(trial.record.clients) == workers
    assert all(client.planned_requests > 10 for client in trial.record.clients)
    assert requests_in_flight(trial.load, trial.window).value == pytest.approx(60 * ANSWER_S, rel=0.05)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_no_slot_of_a_closed_loop_waits_for_a_session(tmp_path: Path, workers: int, seed: int):
    """Sessions of a hundred turns: a few of them have all the requests that a window needs, and ramp and tail too."""
    turns = tuple(Turn(2, TOKENS, prompt="the the") for _ in range(100))
    path = tmp_path / "sessions.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(Session(f"s{number}", turns)) + b"\n" for number in range(60)))
    workload = {"name": "sessions", "options": {"path": str(path)}}
    trial = trial_of(tmp_path, workers, {"concurrency": 8}, workload=workload, seed=seed)
    assert trial.window.length_s == pytest.approx(10.0)
    assert requests_in_flight(trial.load, trial.window).value == pytest.approx(8, rel=0.001)
