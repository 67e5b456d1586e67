"""A driver in virtual time against a scripted transport, for scenes of any kind."""

from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

from bakeoff.engines.dialects import ReferenceDialect
from bakeoff.harness.client import Driver
from bakeoff.harness.client.wire.fake import ScriptedTransport
from bakeoff.harness.client.wire.plan import WireSession, wire_sessions
from bakeoff.harness.host.clock import LoopClock, run_virtual
from bakeoff.results.records import StreamRecord
from bakeoff.workloads import PlannedSession
from tests.harness.samples import DONE, FINISH, TOKEN, MemoryRecorder

T = TypeVar("T")
ANSWER = [(0.1, TOKEN), (0.1, TOKEN), (0.0, FINISH + DONE)]
"""An answer of two tokens that takes 0.2 s."""
S = 1_000_000_000


def wire(sessions: Iterable[PlannedSession], first_index: int = 0) -> Iterator[WireSession]:
    return wire_sessions(sessions, ReferenceDialect(), "m", first_index=first_index)


def drive(
    transport_of: Callable[[], ScriptedTransport],
    work: Callable[[Driver], Coroutine[Any, Any, T]],
    *,
    timeout_s: float = 30.0,
) -> tuple[T, list[StreamRecord], ScriptedTransport, Driver]:
    """Run ``work`` on a fresh driver; returns its result, the records, the transport and the driver."""
    recorder = MemoryRecorder()

    async def scene() -> tuple[T, ScriptedTransport, Driver]:
        transport = transport_of()
        driver = Driver(transport, clock=LoopClock(), recorder=recorder, timeout_s=timeout_s)
        return await work(driver), transport, driver

    result, transport, driver = run_virtual(scene())
    assert not recorder.unflushed
    return result, recorder.records, transport, driver
