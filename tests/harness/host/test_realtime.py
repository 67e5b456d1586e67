"""Who gets a processor first. Linux keeps policy and nice value by thread, so a thread stands in for a process."""

import os
import threading
from collections.abc import Callable
from typing import TypeVar

from bakeoff.harness.host.realtime import lower_priority, raise_priority, without_preempting

T = TypeVar("T")


def in_thread(act: Callable[[], T]) -> T:
    """Call ``act`` in a thread of its own; returns its result."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(act()))
    thread.start()
    thread.join()
    return results[0]


def standing() -> tuple[int, int]:
    return os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)


def test_the_worker_goes_first_as_far_as_it_may():
    def act() -> tuple[bool, tuple[int, int]]:
        return raise_priority(), standing()

    is_realtime, (policy, nice) = in_thread(act)
    assert is_realtime == (policy == os.SCHED_FIFO)
    assert nice <= standing()[1]


def test_the_sampler_goes_last():
    def act() -> tuple[int, int]:
        lower_priority()
        return standing()

    assert in_thread(act) == (os.SCHED_BATCH, min(19, standing()[1] + 10))


def test_the_parent_steps_back_while_a_load_is_on_and_no_longer():
    def act() -> list[int]:
        policies = [os.sched_getscheduler(0)]
        with without_preempting():
            policies.append(os.sched_getscheduler(0))
            with without_preempting():
                policies.append(os.sched_getscheduler(0))
            policies.append(os.sched_getscheduler(0))
        return [*policies, os.sched_getscheduler(0)]

    before = os.sched_getscheduler(0)
    assert in_thread(act) == [before, *[os.SCHED_BATCH] * 3, before]
