"""Loads for fleets of any kind against the truth server, and the part of them that no fleet may change."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from bakeoff.engines.dialects import ReferenceDialect
from bakeoff.harness.client import Closed, Fleet, LoadResult, Open
from bakeoff.harness.client.fleet.fleet import LoadOrder
from bakeoff.harness.client.wire.orders import Target
from bakeoff.harness.client.wire.plan import WireSession, wire_sessions
from bakeoff.harness.truth import Schedule, Truth, truth_process
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.records import StreamRecord
from bakeoff.workloads import PlannedSession, Session, Turn

T = TypeVar("T")

SCHEDULE = Schedule(ttft_s=0.01, itl_s=0.002)


def play(scene: Coroutine[Any, Any, T]) -> T:
    """Run a scene on the event loop that the harness uses."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(scene)


@asynccontextmanager
async def truth(schedule: Schedule = SCHEDULE) -> AsyncGenerator[tuple[str, Truth]]:
    """A truth server's URL and handle."""
    async with truth_process(schedule) as server:
        yield server.url, server


def planned(
    count: int, *, gap_s: float | None = None, turns: int = 1, tokens: Sequence[int] = (3, 4, 5)
) -> list[PlannedSession]:
    """Sessions of ``turns`` turns whose lengths cycle through ``tokens``; ``gap_s`` apart, or for a closed loop."""
    return [
        PlannedSession(
            Session(f"s{i}", tuple(Turn(2, tokens[i % len(tokens)], prompt=f"p{i}") for _ in range(turns))),
            None if gap_s is None else i * gap_s,
        )
        for i in range(count)
    ]


def wire(sessions: Sequence[PlannedSession]) -> Iterator[WireSession]:
    return wire_sessions(sessions, ReferenceDialect(), "truth")


async def put_on(
    fleet: Fleet, url: str, share: Closed | Open, sessions: Sequence[PlannedSession], folder: Path
) -> tuple[LoadResult, list[StreamRecord]]:
    """Run one load; returns the fleet's result and the records in the order of the plan."""
    trial = TrialFolder(folder)
    trial.create()
    result = await fleet.load(LoadOrder((Target(url),), share, timeout_s=20), wire(sessions), trial)
    return result, sorted(trial.read_streams(), key=lambda record: record.index)


async def under_way(server: Truth, count: int) -> None:
    """Return when the server has received ``count`` requests."""
    while len(await server.answered()) < count:  # noqa: ASYNC110  (another process counts)
        await asyncio.sleep(0.005)  # each query costs both processes a millisecond
