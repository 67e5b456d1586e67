import asyncio
import signal
import threading
from pathlib import Path

import pytest

from bakeoff.engines import Model
from bakeoff.harness.conduct.world import RealWorld
from bakeoff.harness.experiment.config import ModelConfig
from bakeoff.workloads import NoTokenizer
from tests.workloads.small_tokenizers import checkpoint


def test_a_model_that_is_only_named_has_the_tokenizer_of_the_cached_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    config, model = ModelConfig(name="org/name"), Model("org/name")
    with pytest.raises(NoTokenizer, match=r"set tokenizer in \[model\]"):
        RealWorld().tokenizer(config, model)
    snapshot = tmp_path / "models--org--name/snapshots/abc"
    snapshot.mkdir(parents=True)
    checkpoint(snapshot)
    assert RealWorld().tokenizer(config, model).encode("a")


def test_cancelled_work_in_a_thread_ends_before_its_files_may_go():
    async def cancelled_while_it_runs() -> list[str]:
        order: list[str] = []
        is_running, may_end = threading.Event(), threading.Event()

        def work() -> None:
            is_running.set()
            may_end.wait()
            order.append("written")

        task = asyncio.ensure_future(RealWorld().in_thread(work))
        await asyncio.to_thread(is_running.wait)
        task.cancel()
        asyncio.get_running_loop().call_later(0.01, may_end.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        order.append("cancelled")
        return order

    assert asyncio.run(cancelled_while_it_runs()) == ["written", "cancelled"]


def test_a_run_in_a_thread_leaves_signals_to_the_program() -> None:
    """Only the main thread may install handlers; a program with several threads has its own."""
    called: list[str] = []

    async def scene() -> None:
        RealWorld().on_termination(lambda: called.append("stopped"))

    thread = threading.Thread(target=lambda: called.append(str(asyncio.run(scene()))))
    thread.start()
    thread.join()
    assert called == ["None"]


def test_a_signal_just_before_the_end_of_the_loop_is_not_lost():
    async def scene() -> None:
        task = asyncio.current_task()
        assert task is not None
        RealWorld().on_termination(task.cancel)
        await asyncio.sleep(0)
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(asyncio.CancelledError):
        RealWorld().run(scene())


def test_signals_are_no_longer_ignored_once_the_loop_has_ended():
    async def scene() -> None:
        RealWorld().on_termination(lambda: None)

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    RealWorld().run(scene())
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
