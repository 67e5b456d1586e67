import asyncio
import time

import pytest

from harness.clock import LoopClock, MonotonicClock, run_virtual


def test_an_hour_of_virtual_time_takes_no_time():
    async def wait() -> int:
        clock = LoopClock()
        await clock.sleep_until_ns(3_600_000_000_000)
        return clock.now_ns()

    started = time.monotonic()
    assert run_virtual(wait()) == 3_600_000_000_000
    assert time.monotonic() - started < 1


def test_virtual_time_interleaves_tasks_as_real_time_would():
    order: list[str] = []

    async def say(delay_s: float, word: str) -> None:
        await asyncio.sleep(delay_s)
        order.append(word)

    async def both() -> None:
        await asyncio.gather(say(2, "late"), say(1, "early"), say(1.5, "middle"))

    run_virtual(both())
    assert order == ["early", "middle", "late"]


def test_virtual_time_refuses_to_wait_for_ever():
    async def never() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="waits for ever"):
        run_virtual(never())


def test_a_deadline_that_has_passed_returns_at_once():
    async def late() -> int:
        clock = LoopClock()
        await clock.sleep_until_ns(-1)
        return clock.now_ns()

    assert run_virtual(late()) == 0


def test_the_real_clock_never_wakes_early():
    async def wake_times() -> list[int]:
        clock = MonotonicClock()
        late = []
        for _ in range(20):
            deadline = clock.now_ns() + 3_000_000
            await clock.sleep_until_ns(deadline)
            late.append(clock.now_ns() - deadline)
        return late

    late_ns = asyncio.run(wake_times())
    assert min(late_ns) >= 0
    assert sorted(late_ns)[10] < 2_000_000
