"""Ends of launched engines: on request, and when the harness or the guard dies."""

import asyncio
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from bakeoff.engines import Launch, launched, launcher
from bakeoff.engines.errors import EngineDied
from bakeoff.engines.tail import tail
from tests.engines.processes import Held, fake_engine, guard_of, own_children, visit

SOON_S = 5.0
"""Longer than any step here on a busy machine, shorter than the grace periods that must not elapse."""


async def forever(launch: Launch, log: Path) -> None:
    async with launched(launch, log):
        await asyncio.Event().wait()


class TestStop:
    def test_sigint_comes_first_and_is_enough_for_an_orderly_engine(self, tmp_path: Path) -> None:
        started = time.monotonic()
        asyncio.run(visit(fake_engine(tmp_path), tmp_path / "log"))
        assert time.monotonic() - started < SOON_S, "no grace is waited for in vain"
        assert (tmp_path / "signals").read_text() == "SIGINT\n"
        assert tail(tmp_path / "log", 1) == ["bye"]

    def test_an_engine_that_was_stopped_by_a_signal_hears_it_too(self, tmp_path: Path) -> None:
        async def story() -> float:
            async with launched(fake_engine(tmp_path), tmp_path / "log") as server:
                os.kill(server.pid or 0, signal.SIGSTOP)
                leaving = time.monotonic()
            return time.monotonic() - leaving

        assert asyncio.run(story()) < SOON_S, "no grace is waited for in vain"
        assert (tmp_path / "signals").read_text() == "SIGINT\n"

    def test_sigterm_follows_when_sigint_is_ignored(self, tmp_path: Path) -> None:
        asyncio.run(visit(fake_engine(tmp_path, "ignore-SIGINT", stop_grace_s=(0.2, 10.0)), tmp_path / "log"))
        assert (tmp_path / "signals").read_text() == "SIGINT\nSIGTERM\n"
        assert tail(tmp_path / "log", 1) == ["bye"]

    def test_an_engine_that_ignores_both_is_killed_after_its_graces(self, tmp_path: Path) -> None:
        launch = fake_engine(tmp_path, "ignore-SIGINT", "ignore-SIGTERM", stop_grace_s=(0.2, 0.3))

        async def story() -> float:
            async with launched(launch, tmp_path / "log") as server:
                assert server.pid is not None
                held = Held(server.pid)
                leaving = time.monotonic()
            with held:
                assert held.alive() == 0
            return time.monotonic() - leaving

        assert 0.5 <= asyncio.run(story()) < SOON_S
        assert (tmp_path / "signals").read_text() == "SIGINT\nSIGTERM\n"

    def test_a_daemon_that_left_the_group_and_ignores_signals_is_found(self, tmp_path: Path) -> None:
        async def story() -> None:
            async with launched(fake_engine(tmp_path, "orphan"), tmp_path / "log") as server:
                orphan = int((tmp_path / "orphan").read_text())
                assert os.getsid(orphan) != server.pid
                held = Held(orphan)
            with held:
                assert held.alive() == 0

        asyncio.run(story())

    def test_an_exception_in_the_block_stops_it_and_goes_on_its_way(self, tmp_path: Path) -> None:
        held: list[Held] = []

        async def story() -> None:
            async with launched(fake_engine(tmp_path), tmp_path / "log") as server:
                assert server.pid is not None
                held.append(Held(server.pid))
                raise KeyError("ours")

        with pytest.raises(KeyError, match="ours"):
            asyncio.run(story())
        with held[0]:
            assert held[0].alive() == 0

    @pytest.mark.parametrize("behaviours", [(), ("never-ready",)], ids=["while it runs", "while it loads"])
    def test_cancelling_stops_it(self, tmp_path: Path, behaviours: tuple[str, ...]) -> None:
        """As with Ctrl-C. Leftovers are searched among all descendants of this process."""

        async def story() -> None:
            os.mkfifo(tmp_path / "announced")
            task = asyncio.ensure_future(forever(fake_engine(tmp_path, "announce", *behaviours), tmp_path / "log"))
            assert await asyncio.to_thread((tmp_path / "announced").read_text) == "loading"
            with Held(*(child.pid for child in psutil.Process().children(recursive=True))) as held:
                assert held.alive() >= 2, "the guard and the engine"
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(task, SOON_S)
                assert held.gone_within(SOON_S)

        asyncio.run(story())

    def test_a_guard_that_does_not_answer_is_killed_and_the_engine_with_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(launcher, "_GUARD_MARGIN_S", 0.1)

        async def story() -> None:
            async with launched(fake_engine(tmp_path, stop_grace_s=(0.1, 0.1)), tmp_path / "log") as server:
                assert server.pid is not None
                held = Held(server.pid)
                os.kill(guard_of(server), signal.SIGSTOP)
            with held:
                assert held.gone_within(SOON_S)

        asyncio.run(story())


class TestGuard:
    """The guard may be killed as well, as by the kernel when memory is short."""

    def test_when_it_is_killed_everything_goes_and_the_block_says_so(self, tmp_path: Path) -> None:
        async def story() -> None:
            async with launched(fake_engine(tmp_path, "orphan"), tmp_path / "log") as server:
                held = Held(int((tmp_path / "orphan").read_text()), server.pid or 0)
                os.kill(guard_of(server), signal.SIGKILL)
                await asyncio.wait_for(server.ended.wait(), SOON_S)
                assert str(server.died()) == "the engine's guard was killed by signal 9, and the engine with it"
            with held:
                assert held.alive() == 0, "the daemon too, which nobody had adopted"

        asyncio.run(story())

    def test_when_it_is_killed_while_the_engine_loads_that_is_the_error(self, tmp_path: Path) -> None:
        async def story() -> None:
            os.mkfifo(tmp_path / "announced")
            task = asyncio.ensure_future(visit(fake_engine(tmp_path, "announce", "never-ready"), tmp_path / "log"))
            assert await asyncio.to_thread((tmp_path / "announced").read_text) == "loading"
            (guard,) = own_children()
            with Held(*(child.pid for child in guard.children())) as held:
                guard.kill()
                with pytest.raises(EngineDied, match="guard was killed by signal 9"):
                    await asyncio.wait_for(task, SOON_S)
                assert held.alive() == 0

        asyncio.run(story())

    def test_what_it_would_have_cleaned_up_is_cleaned_up_all_the_same(self, tmp_path: Path) -> None:
        launch = fake_engine(tmp_path, cleanup=("touch", str(tmp_path / "clean")))

        async def story() -> None:
            async with launched(launch, tmp_path / "log") as server:
                os.kill(guard_of(server), signal.SIGKILL)

        asyncio.run(story())
        assert (tmp_path / "clean").exists()
