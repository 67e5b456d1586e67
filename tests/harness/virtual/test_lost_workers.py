"""A worker that is lost at any instant of a load: its share is missing and named, and nothing else is."""

import random
from pathlib import Path

import pytest

from bakeoff.harness.virtual import Fixed, PerToken, VirtualEngine, VirtualWorld, run_in, virtual_experiment
from bakeoff.harness.virtual.served import Ending
from bakeoff.harness.virtual.world import WorkerLoss
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.records import Verdict
from bakeoff.results.text.findings import sentence

WORKERS, RATE, WINDOW_S = 10, 20.0, 10.0


@pytest.mark.parametrize("seed", range(4))
def test_the_share_of_a_lost_worker_is_missing_and_named(tmp_path: Path, seed: int):
    rng = random.Random(seed)
    loss = WorkerLoss(rng.randint(1, WORKERS), rng.uniform(2.0, 12.0))
    experiment = virtual_experiment(
        ["a"], [{"rate_per_s": RATE, "arrival": "poisson"}], repeats=2, client={"workers": WORKERS},
        trial={"duration_s": WINDOW_S, "ramp_s": 2.0, "warm_up_s": 0.0},
    )  # fmt: skip
    world = VirtualWorld({"a": VirtualEngine(service=PerToken(Fixed(0.5), Fixed(0.2)))}, losses=[loss])
    cut, *others = sorted(run_in(world, experiment, tmp_path).finished, key=lambda trial: trial.record.order)
    (finding,) = cut.record.findings
    assert finding.code is FindingCode.CLIENT_LOST
    assert f"virtual-{loss.worker} " in str(finding.parameters["detail"])
    assert [(each.record.verdict, len(each.record.clients)) for each in others] == [(Verdict.VALID, WORKERS)] * 2
    complete = [
        each for each in world.sites["a"].served if each.trial == cut.record.id and each.ending is Ending.COMPLETE
    ]
    requests = cut.requests
    assert int(requests.is_ok.sum()) == len(complete) > 0
    assert len(requests) == len(complete) + int(requests.is_cancelled.sum())


def test_trials_after_a_lasting_loss_say_how_many_workers_they_had(tmp_path: Path):
    experiment = virtual_experiment(
        ["a"], [{"rate_per_s": RATE, "arrival": "poisson"}], repeats=2, client={"workers": 3},
        trial={"duration_s": WINDOW_S, "ramp_s": 2.0, "warm_up_s": 0.0},
    )  # fmt: skip
    world = VirtualWorld({"a": VirtualEngine()}, losses=[WorkerLoss(2, 6.0, for_good=True)])
    cut, *others = sorted(run_in(world, experiment, tmp_path).finished, key=lambda trial: trial.record.order)
    assert [finding.code for finding in cut.record.findings] == [FindingCode.CLIENT_LOST]
    assert others
    for trial in others:
        assert (trial.record.verdict, len(trial.record.clients)) == (Verdict.VALID, 2)
        (finding,) = trial.record.findings
        assert sentence(finding).startswith("1 of 3 workers of the client were lost in an earlier trial")
