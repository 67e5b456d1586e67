"""Ctrl-C at any instant: the run ends at once, with status interrupted, and finished trials are readable."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bakeoff import results
from bakeoff.harness.conduct.recovery import recover
from bakeoff.harness.conduct.run import create_run, run_experiment
from bakeoff.harness.conduct.world import inside
from bakeoff.harness.virtual import Ending, Fixed, PerToken, VirtualEngine, VirtualWorld, run_in, virtual_experiment
from bakeoff.harness.virtual.runs import QUIET
from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import Outcome, RunStatus

ENGINES = {"a": VirtualEngine(service=PerToken(Fixed(0.1), Fixed(0.05)))}
EXPERIMENT = virtual_experiment(
    ENGINES,
    [{"concurrency": 2}, {"concurrency": 3}],
    repeats=1,
    workload={"name": "random", "options": {"input_tokens": 8, "output_tokens": 3}},
    trial={"warm_up_s": 0.0, "duration_s": 0.5, "ramp_s": 0.2, "min_requests": 3, "max_requests": 20, "idle_s": 0.1},
)


class Interrupted(VirtualWorld):
    """A world in which the signal comes between two turns of the event loop.

    Args:
        turn: of the loop, counted from the start of the run; None for no signal.

    Attributes:
        turns: until the run ended.
        struck_s: virtual time of the signal.
    """

    def __init__(self, turn: int | None = None) -> None:
        super().__init__(ENGINES)
        self._turn = turn
        self.turns = 0
        self.struck_s = 0.0

    def on_termination(self, callback: Callable[[], object]) -> None:
        """Count turns from here on; a callback of the loop's own would keep virtual time from passing."""
        loop: Any = asyncio.get_running_loop()
        run, turn_once = asyncio.current_task(), loop._run_once

        def counted() -> None:
            if run is not None and not run.done():
                if self.turns == self._turn:
                    self.struck_s = loop.time()
                    callback()
                self.turns += 1
            turn_once()

        loop._run_once = counted


def whole_run(root: Path) -> tuple[results.Run, int]:
    """An uninterrupted run, and its number of event loop iterations."""
    world = Interrupted()
    return run_in(world, EXPERIMENT, root), world.turns


def interrupted_run(world: Interrupted, root: Path) -> results.Run:
    with inside(world):
        folder = create_run(EXPERIMENT, root)
        with pytest.raises(asyncio.CancelledError):
            world.run(run_experiment(EXPERIMENT, folder, QUIET))
    assert recover(folder) == 0, "all that was recorded is decoded"
    return results.load(folder.path)


def test_ctrl_c_at_fifty_instants(tmp_path: Path):
    """The run ends within 2 s; finished trials are complete, and a cut-off trial has all its requests."""
    whole, turns = whole_run(tmp_path / "whole")
    records = {trial.record.id: trial.record for trial in whole.finished}
    cuts: Counter[tuple[int, bool]] = Counter()
    for turn in sorted(random.Random(1).sample(range(turns), 50)):
        world = Interrupted(turn)
        run = interrupted_run(world, tmp_path / str(turn))
        assert world.now_ns() / 1e9 - world.struck_s <= 2.0
        assert run.status is RunStatus.INTERRUPTED
        assert {trial.record.id: trial.record for trial in run.finished}.items() <= records.items()
        sent = [request for site in world.sites.values() for request in site.served]
        assert {request.ending for request in sent} <= {Ending.COMPLETE, Ending.DROPPED}, (
            "no request was left to the engine"
        )
        stored = [*itertools.chain(*(requests for _, requests in run.salvaged), *(t.requests for t in run.finished))]
        assert len(stored) == len(sent)
        assert {request.outcome for request in stored} <= {Outcome.OK, Outcome.CANCELLED}
        cuts[len(run.finished), bool(run.salvaged)] += 1
    assert {finished for finished, _ in cuts} >= {0, 1}
    assert {is_cut_off for _, is_cut_off in cuts} == {True, False}


def test_an_interrupted_run_can_be_resumed(tmp_path: Path):
    whole, turns = whole_run(tmp_path / "whole")
    cut_off = interrupted_run(Interrupted(turns // 2), tmp_path)
    assert 0 < len(cut_off.finished) < len(whole.finished)
    resumed = run_in(Interrupted(), EXPERIMENT, tmp_path / "resumed", earlier=RunFolder.open(cut_off.path))
    assert resumed.status is RunStatus.COMPLETE
    assert [bool(trial.record.reused_from) for trial in resumed.finished] == [True, False]
