"""Children that stop, planning that is given up, and chains of resumed runs."""

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest

from bakeoff.harness.client.fleet import local_worker
from bakeoff.harness.client.fleet.local_worker import LocalWorker
from bakeoff.harness.client.wire.orders import ClockTime, ReadClock
from bakeoff.harness.conduct.run import create_run, run_experiment
from bakeoff.harness.conduct.world import inside
from bakeoff.harness.errors import WorkerLost
from bakeoff.harness.host.threads import WorkCancelled, check_cancelled, in_thread
from bakeoff.harness.virtual import VirtualEngine, VirtualWorld, virtual_experiment
from bakeoff.harness.virtual.runs import QUIET, run_in
from bakeoff.results.log.store import earlier_run


def test_a_stopped_worker_is_lost_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with LocalWorker.started() as worker:
            await worker.send(ReadClock())
            assert isinstance(await worker.reply(), ClockTime)
            first = worker.pid
            assert first is not None
            os.kill(first, signal.SIGSTOP)
            monkeypatch.setattr(local_worker, "SILENT_S", 0.2)
            await worker.send(ReadClock())
            with pytest.raises(WorkerLost, match="silent"):
                await worker.reply()
            monkeypatch.undo()
            await worker.renew()
            assert worker.pid != first
            await worker.send(ReadClock())
            assert isinstance(await worker.reply(), ClockTime)

    asyncio.run(scene())


def test_work_in_a_thread_ends_when_its_task_is_cancelled() -> None:
    began, ended = threading.Event(), threading.Event()

    def plan() -> None:
        began.set()
        try:
            while True:
                check_cancelled()
        except WorkCancelled:
            ended.set()
            raise

    async def scene() -> None:
        task = asyncio.create_task(in_thread(plan))
        await asyncio.to_thread(began.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(scene())


def test_a_resumed_run_reuses_the_trials_of_the_run_before_the_last(tmp_path: Path) -> None:
    experiment = virtual_experiment(["a"], [{"concurrency": 1}], repeats=2, trial={"duration_s": 1.0, "warm_up_s": 0.0})
    world = VirtualWorld({"a": VirtualEngine()})
    first = run_in(world, experiment, tmp_path)
    with inside(world):
        earlier = earlier_run(tmp_path, "virtual", "latest")
        assert earlier.path == first.path
        cut_off = create_run(experiment, tmp_path, earlier)
        assert earlier_run(tmp_path, "virtual", "latest").path == cut_off.path
        third = create_run(experiment, tmp_path, cut_off)
        world.run(run_experiment(experiment, third, QUIET, cut_off))
    records = third.read_log().finished.values()
    assert [record.reused_from for record in records] == [first.path.name] * 2
