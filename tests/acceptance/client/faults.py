"""Each fault has one outcome, no request is lost, and none hangs.

A truth server injects one fault into every answer, then all faults into some answers, with a restart in between.
"""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

import msgspec

from bakeoff.engines import pick_port
from bakeoff.engines.dialects import ReferenceDialect
from bakeoff.harness.client import Closed, decode_stream, local_fleet
from bakeoff.harness.client.fleet.fleet import LoadOrder
from bakeoff.harness.client.wire.orders import Target
from bakeoff.harness.client.wire.plan import wire_sessions
from bakeoff.harness.truth import Fault, Schedule, truth_process
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.records import Outcome, RequestRecord
from bakeoff.workloads import PlannedSession, Session, Turn
from benchmarks.bars import Bars

TIMEOUT_S, STREAMS, REQUESTS = 1.0, 16, 64
PLAIN = Schedule(ttft_s=0.01, itl_s=0.005)
CLASSES = {
    Fault.HTTP_429: Outcome.HTTP_ERROR,
    Fault.HTTP_500: Outcome.HTTP_ERROR,
    Fault.HTTP_503: Outcome.HTTP_ERROR,
    Fault.RESET: Outcome.STREAM_ERROR,
    Fault.TRUNCATED: Outcome.STREAM_ERROR,
    Fault.ERROR_EVENT: Outcome.STREAM_ERROR,
    Fault.NO_FINISH: Outcome.TRUNCATED,
    Fault.STALL: Outcome.TIMEOUT,
}


async def load(schedule: Schedule, requests: int) -> list[RequestRecord]:
    port = pick_port()
    sessions = (PlannedSession(Session(str(i), (Turn(1, 8, prompt="a"),)), None) for i in range(requests))
    with tempfile.TemporaryDirectory() as scratch:
        folder = TrialFolder(Path(scratch))
        async with truth_process(schedule, port), local_fleet(1) as fleet:
            order = LoadOrder((Target(f"http://127.0.0.1:{port}"),), Closed(STREAMS, 600.0), TIMEOUT_S)
            result = await fleet.load(order, wire_sessions(sessions, ReferenceDialect(), "truth"), folder)
        records = [decode_stream(stream, ReferenceDialect(), None) for stream in folder.read_streams()]
    assert len(records) == result.planned == requests, f"{result.planned} planned, {len(records)} recorded"
    return records


def overdue_s(requests: list[RequestRecord]) -> float:
    """Time by which the longest exchange exceeds its timeout."""
    return max((r.ended_ns - (r.sent_ns or r.planned_ns)) / 1e9 - TIMEOUT_S for r in requests)


def main() -> None:
    misclassed, late_s = 0, -TIMEOUT_S
    for fault, outcome in CLASSES.items():
        requests = asyncio.run(load(msgspec.structs.replace(PLAIN, faults={fault: 1.0}), REQUESTS))
        classes = Counter(request.outcome for request in requests)
        misclassed += REQUESTS - classes[outcome]
        late_s = max(late_s, overdue_s(requests))
        print(f"{fault.value:12} {dict(classes)}; e.g. {requests[0].error}")
    mixed = msgspec.structs.replace(PLAIN, faults=dict.fromkeys(Fault, 0.1), restart=(0.5, 0.3))
    requests = asyncio.run(load(mixed, 10 * REQUESTS))
    classes = Counter(request.outcome for request in requests)
    late_s = max(late_s, overdue_s(requests))
    print(f"all at once, with a restart: {dict(classes)}")
    bars = Bars()
    bars.add("fault_classes", len(CLASSES), "==", len(Fault))
    bars.add("requests_in_a_wrong_class", misclassed, "==", 0)
    bars.add("classes_minus_planned", sum(classes.values()) - 10 * REQUESTS, "==", 0)
    bars.add("classes_seen_at_once", len(classes), ">=", 5)
    bars.add("longest_hang_beyond_deadline_s", max(0.0, late_s), "<=", 1)
    bars.finish()


if __name__ == "__main__":
    main()
