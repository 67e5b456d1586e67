import asyncio
import ctypes
import time

import pytest

from bakeoff.harness.host.clock import LoopClock, MonotonicClock, run_virtual, sleep_until_ns


def test_an_hour_of_virtual_time_takes_no_time():
    async def wait() -> int:
        clock = LoopClock()
        await sleep_until_ns(clock, 3_600_000_000_000)
        return clock.now_ns()

    started = time.monotonic()
    assert run_virtual(wait()) == 3_600_000_000_000
    assert time.monotonic() - started < 1


def test_virtual_time_interleaves_tasks_as_real_time_would():
    order: list[str] = []

    async def say(delay_s: float, word: str) -> None:
        await asyncio.sleep(delay_s)
        order.append(word)

    async def say_all() -> None:
        await asyncio.gather(say(2, "late"), say(1, "early"), say(1.5, "middle"))

    run_virtual(say_all())
    assert order == ["early", "middle", "late"]


def test_virtual_time_refuses_to_wait_for_ever():
    async def never() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="waits forever"):
        run_virtual(never())


def test_a_deadline_that_has_passed_returns_at_once():
    async def late() -> int:
        clock = LoopClock()
        await sleep_until_ns(clock, -1)
        return clock.now_ns()

    assert run_virtual(late()) == 0


@pytest.mark.parametrize("has_timerfd", [True, False])
def test_the_real_clock_never_wakes_early(monkeypatch: pytest.MonkeyPatch, has_timerfd: bool):
    if not has_timerfd:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())

    async def wake_times() -> list[int]:
        clock = MonotonicClock()
        late = []
        for _ in range(20):
            deadline = clock.now_ns() + 3_000_000
            await sleep_until_ns(clock, deadline)
            late.append(clock.now_ns() - deadline)
        clock.close()
        return late

    late_ns = asyncio.run(wake_times())
    assert min(late_ns) >= 0
    assert sorted(late_ns)[10] < 2_000_000


def test_alarms_ring_in_the_order_of_their_deadlines():
    async def rings() -> list[str]:
        clock = MonotonicClock()
        rung: list[str] = []
        done = asyncio.Event()
        now_ns = clock.now_ns()
        clock.call_at_ns(now_ns + 9_000_000, lambda: (rung.append("last"), done.set()))
        clock.call_at_ns(now_ns + 4_000_000, lambda: rung.append("second"))
        clock.call_at_ns(now_ns - 1, lambda: clock.call_at_ns(now_ns, lambda: rung.append("set by the first")))
        await asyncio.wait_for(done.wait(), 5)
        clock.close()
        return rung

    assert asyncio.run(rings()) == ["set by the first", "second", "last"]


def test_a_closed_clock_rings_no_more():
    async def rings() -> list[str]:
        clock = MonotonicClock()
        rung: list[str] = []
        clock.call_at_ns(clock.now_ns(), lambda: rung.append("too late"))
        clock.close()
        await asyncio.sleep(0)
        return rung

    assert asyncio.run(rings()) == []


def test_without_a_kernel_timer_the_loop_keeps_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.platform", "plan9")

    async def late_ns() -> int:
        clock = MonotonicClock()
        deadline_ns = clock.now_ns() + 2_000_000
        await sleep_until_ns(clock, deadline_ns)
        clock.close()
        return clock.now_ns() - deadline_ns

    assert asyncio.run(late_ns()) >= 0
