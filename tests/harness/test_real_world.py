import asyncio
import threading

import pytest

from harness.conduct.world import RealWorld


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
