"""One load over several addresses, in virtual time against scripted transports, and once against real servers."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from bakeoff.engines.addresses import Balance
from bakeoff.harness.client import Closed, Driver, local_fleet
from bakeoff.harness.client.fleet.fleet import LoadOrder
from bakeoff.harness.client.wire.balancing import balancer
from bakeoff.harness.client.wire.divided_transport import DividedTransport
from bakeoff.harness.client.wire.fake import ScriptedTransport
from bakeoff.harness.client.wire.orders import Target
from bakeoff.harness.host.clock import LoopClock, run_virtual
from bakeoff.harness.truth import Schedule, truth_process
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.records import StreamEnd, StreamRecord
from tests.harness.driving import ANSWER, wire
from tests.harness.fleet_scenes import planned, play
from tests.harness.fleet_scenes import wire as to_truth
from tests.harness.samples import TOKEN, MemoryRecorder, closed

LABELS = ("a:1", "b:2")
TARGETS = [Target(f"http://{label}", label) for label in LABELS]


def drive(
    balance: Balance, scripts: list[list[tuple[float, bytes]]], *, slots: int, sessions: int, timeout_s: float = 30.0
) -> tuple[list[StreamRecord], list[ScriptedTransport]]:
    recorder = MemoryRecorder()

    async def scene() -> list[ScriptedTransport]:
        parts = [ScriptedTransport(script) for script in scripts]
        divided = DividedTransport(TARGETS, parts, balancer(balance, LABELS))
        driver = Driver(divided, clock=LoopClock(), recorder=recorder, timeout_s=timeout_s)
        await driver.closed_loop(wire(closed(sessions, turns=3)), slots, duration_s=1000.0)
        return parts

    parts = run_virtual(scene())
    return sorted(recorder.records, key=lambda record: record.index), parts


@pytest.mark.parametrize("balance", Balance)
def test_each_record_names_the_address_that_got_its_request(balance: Balance):
    records, parts = drive(balance, [ANSWER, ANSWER], slots=3, sessions=20)
    assert len(records) == 60
    assert Counter(record.address for record in records) == {
        label: len(part.sent) for label, part in zip(LABELS, parts, strict=True)
    }
    assert all(part.sent for part in parts)


def test_calls_of_a_session_stay_together_only_by_session():
    for balance, most in ((Balance.BY_SESSION, 1), (Balance.ROUND_ROBIN, 2)):
        records, _ = drive(balance, [ANSWER, ANSWER], slots=3, sessions=20)
        places = [{r.address for r in records if r.session == f"s{i}"} for i in range(20)]
        assert max(map(len, places)) == most


def test_a_slow_address_gets_fewer_requests_if_the_least_in_flight_get_them():
    slow = [(2.0, TOKEN), *ANSWER]
    by_turns, _ = drive(Balance.ROUND_ROBIN, [ANSWER, slow], slots=4, sessions=40)
    by_flight, _ = drive(Balance.LEAST_IN_FLIGHT, [ANSWER, slow], slots=4, sessions=40)
    counts = [Counter(record.address for record in records) for records in (by_turns, by_flight)]
    assert counts[0] == {"a:1": 60, "b:2": 60}
    assert counts[1]["a:1"] > 3 * counts[1]["b:2"]


def test_a_request_that_timed_out_is_in_flight_no_more():
    never = [(1e6, TOKEN)]
    records, _ = drive(Balance.LEAST_IN_FLIGHT, [never, ANSWER], slots=2, sessions=6, timeout_s=5.0)
    assert len(records) == 18
    timed_out = [record for record in records if record.end is StreamEnd.TIMEOUT]
    assert {record.address for record in timed_out} == {"a:1"}
    assert len(timed_out) >= 2, "after its timeout the address is among the idlest again"


def test_the_addresses_of_records_are_those_of_the_servers_own_logs(tmp_path: Path):
    async def scene() -> tuple[list[StreamRecord], dict[str, list[int]]]:
        schedule = Schedule(ttft_s=0.005, itl_s=0.001)
        async with truth_process(schedule) as one, truth_process(schedule) as other, local_fleet(2) as fleet:
            targets = tuple(Target(truth.url, truth.url.removeprefix("http://")) for truth in (one, other))
            trial = TrialFolder(tmp_path)
            trial.create()
            order = LoadOrder(targets, Closed(4, 20.0), 20.0, balance=Balance.BY_SESSION)
            await fleet.load(order, to_truth(planned(24, turns=2, tokens=(3, 4, 5, 6, 7))), trial)
            logs = {
                target.label: sorted(answer.tokens for answer in await truth.answered())
                for target, truth in zip(targets, (one, other), strict=True)
            }
            return list(trial.read_streams()), logs

    records, logs = play(scene())
    assert len(records) == 48
    found: dict[str, list[int]] = {label: [] for label in logs}
    for record in records:
        found[record.address or "none"].append(record.requested_output_tokens or 0)
    assert {label: sorted(tokens) for label, tokens in found.items()} == logs
    assert all(logs.values())


def test_closing_closes_every_transport():
    closed_labels: list[str] = []

    class Closing(ScriptedTransport):
        async def close(self) -> None:
            closed_labels.append("closed")

    async def scene() -> None:
        parts = [Closing(ANSWER), Closing(ANSWER)]
        await DividedTransport(TARGETS, parts, balancer(Balance.ROUND_ROBIN, LABELS)).close()

    asyncio.run(scene())
    assert closed_labels == ["closed", "closed"]
