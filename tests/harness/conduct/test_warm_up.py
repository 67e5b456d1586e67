"""Warm-up sends small requests until the engine stops getting faster."""

import asyncio
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from bakeoff.engines import attached
from bakeoff.engines.dialects import ReferenceDialect
from bakeoff.harness.client.fleet.fleet import LoadOrder
from bakeoff.harness.client.wire.plan import WireSession
from bakeoff.harness.conduct.warm_up import WarmUp, WarmUpResult
from bakeoff.harness.experiment.config import TrialConfig
from bakeoff.results.files.frames import FrameAppender
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.records import Phase, StreamEnd, StreamRecord
from bakeoff.workloads import PlannedSession, Session, Turn

ENGINE: Any = SimpleNamespace(dialect=ReferenceDialect(), model_id="m")


class Planner:
    """A planner of rounds of three requests that records their names."""

    tokenizer = None
    experiment = SimpleNamespace(classes=[])

    def __init__(self) -> None:
        self.names: list[str] = []

    def warm_up_sessions(self, name: str) -> tuple[PlannedSession, ...]:
        self.names.append(name)
        turn = Turn(4, 2, prompt=f"p {name}")
        return tuple(PlannedSession(Session(f"s{i}", (turn,)), None) for i in range(3))


class Rounds:
    """A fleet whose n-th round takes this many seconds per request; a ``StreamEnd`` is how its requests end instead."""

    def __init__(self, took: Sequence[float | StreamEnd]) -> None:
        self._took = iter(took)
        self.orders: list[LoadOrder] = []

    async def load(self, order: LoadOrder, sessions: Iterable[WireSession], folder: TrialFolder) -> None:
        self.orders.append(order)
        took = next(self._took)
        end = took if isinstance(took, StreamEnd) else StreamEnd.COMPLETE
        seconds = 1.0 if isinstance(took, StreamEnd) else took
        with FrameAppender(folder.stream_log(0)) as log:
            for session in sessions:
                log.append(
                    StreamRecord(
                        index=session.index, phase=Phase.WARMUP, session=session.id, turn=0, planned_ns=0,
                        sent_ns=1000, status=200, ended_ns=1000 + int(seconds * 1e9), end=end,
                    )
                )  # fmt: skip


def limits(warm_up_s: float) -> TrialConfig:
    return TrialConfig(warm_up_s=warm_up_s, timeout_s=5)


def warmed_up(took: Sequence[float | StreamEnd], limit_s: float = 60.0) -> tuple[WarmUpResult | None, Rounds, Planner]:
    fleet, planner = Rounds(took), Planner()
    warm_up = WarmUp(fleet, planner, limits(limit_s), "http")  # type: ignore[arg-type]

    async def scene() -> WarmUpResult | None:
        return await warm_up.run(ENGINE, attached("http://127.0.0.1:9"), "a/1")

    return asyncio.run(scene()), fleet, planner


@pytest.mark.parametrize(
    ("took", "rounds"),
    [([1.0, 1.0], 2), ([9.0, 3.0, 1.0, 0.95], 4), ([1.0, 2.0], 2), ([2.0, 1.0, 0.91], 3)],
)
def test_warm_up_ends_when_a_round_is_less_than_a_tenth_faster(took: list[float], rounds: int):
    result, fleet, _ = warmed_up(took)
    assert result == WarmUpResult(3 * rounds, is_warm=True)
    assert len(fleet.orders) == rounds


def test_rounds_are_sent_one_request_at_a_time_with_different_words():
    _, fleet, planner = warmed_up([1.0, 1.0])
    assert {order.phase for order in fleet.orders} == {Phase.WARMUP}
    assert planner.names == ["a/1/0", "a/1/1"]


def test_a_failed_request_ends_the_warm_up_as_not_warm():
    assert warmed_up([3.0, StreamEnd.TIMEOUT])[0] == WarmUpResult(3, is_warm=False)


def test_a_warm_up_without_end_stops_as_not_warm():
    result, fleet, _ = warmed_up([2.0**-n for n in range(40)])
    assert result == WarmUpResult(3 * len(fleet.orders), is_warm=False)
    assert len(fleet.orders) == 12


def test_warm_up_s_of_0_sends_nothing():
    result, fleet, _ = warmed_up([], limit_s=0)
    assert result is None
    assert not fleet.orders


def is_idle(took: Sequence[float | StreamEnd], limit_s: float = 60.0, *, dead: bool = False) -> tuple[bool, Rounds]:
    fleet = Rounds(took)
    warm_up = WarmUp(fleet, Planner(), limits(limit_s), "http")  # type: ignore[arg-type]
    server: Any = SimpleNamespace(base_url="http://127.0.0.1:9", access=None, exit_status=9 if dead else None)
    return asyncio.run(warm_up.is_idle(ENGINE, server, "after r1", idle_s=1.0)), fleet


def test_an_engine_is_idle_when_a_round_is_about_as_quick_as_before_the_load():
    idle, fleet = is_idle([9.0, 2.5, StreamEnd.TIMEOUT, 1.9, 1.0])
    assert idle
    assert len(fleet.orders) == 4


def test_an_engine_that_stays_busy_or_ends_is_not_idle():
    assert is_idle([9.0] * 1000, limit_s=0.05)[0] is False
    assert is_idle([1.0], dead=True)[0] is False


def test_an_idle_round_is_measured_unless_warm_up_s_is_0():
    for limit_s, took, seconds in ((60.0, [2.0], 2.0), (60.0, [StreamEnd.TIMEOUT], None), (0.0, [], None)):
        warm_up = WarmUp(Rounds(took), Planner(), limits(limit_s), "http")  # type: ignore[arg-type]
        assert asyncio.run(warm_up.round_s(ENGINE, attached("http://127.0.0.1:9"), "idle")) == seconds
