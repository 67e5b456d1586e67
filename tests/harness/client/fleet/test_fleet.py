"""One load over several worker processes of this machine."""

import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.harness.client import Closed, Open, local_fleet
from bakeoff.harness.client.fleet.fleet import Fleet, LoadOrder, divided
from bakeoff.harness.client.wire.orders import Alive, Done, Order, Ready, Reply, Silence, Target
from bakeoff.harness.errors import BadExperiment, ClientFailed
from bakeoff.harness.host.clock import run_virtual
from bakeoff.harness.virtual.worker_host import VirtualEnvironment, VirtualWorkerHost
from bakeoff.results.errors import NotWritable
from bakeoff.results.files.frames import FrameLog
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.records import StreamEnd, StreamRecord
from tests.harness.essence import essence
from tests.harness.fleet_scenes import planned, play, put_on, truth, under_way, wire

OPEN = Open(duration_s=0.3)
NS = 1_000_000_000


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
def test_two_workers_send_what_one_sends(tmp_path: Path, is_open: bool):
    sessions = planned(31, gap_s=0.01 if is_open else None, turns=2)
    share = Open(duration_s=1.0) if is_open else Closed(4, duration_s=30)  # time for the last session's second turn

    async def scene(workers: int):
        async with truth() as (url, _), local_fleet(workers) as fleet:
            return await put_on(fleet, url, share, sessions, tmp_path / str(workers))

    (result_1, records_1), (result_2, records_2) = play(scene(1)), play(scene(2))
    assert len(records_1) == result_1.planned == result_2.planned == 62
    assert essence(result_1, records_1, is_open=is_open) == essence(result_2, records_2, is_open=is_open)
    assert [client.planned_requests for client in result_2.clients] == [32, 30]
    assert all(client.cpu_s > 0 and client.rss_bytes > 1 << 20 for client in result_2.clients)
    assert result_2.loop_lag is not None


def test_an_open_loop_has_one_start_for_all_and_records_in_the_order_of_the_plan(tmp_path: Path):
    async def scene():
        async with truth() as (url, _), local_fleet(3) as fleet:
            return await put_on(fleet, url, OPEN, planned(7, gap_s=0.04), tmp_path / "t")

    result, records = play(scene())
    assert [record.planned_ns - result.issue.start_ns for record in records] == [i * NS // 25 for i in range(7)]
    assert result.issue.end_ns - result.issue.start_ns == 0.3 * NS
    assert all(record.planned_ns <= record.sent_ns < record.read_ns[0] <= record.ended_ns for record in records)
    assert [record.session for record in records] == [f"s{i}" for i in range(7)]
    logs = TrialFolder(tmp_path / "t").stream_logs()
    assert [sorted(record.session for record in log) for log in logs] == [
        ["s0", "s3", "s6"],
        ["s1", "s4"],
        ["s2", "s5"],
    ]


def test_a_cancelled_load_leaves_every_record_and_a_fleet_for_the_next(tmp_path: Path):
    # the second worker has finished when the load is cancelled: its end must not be taken for that of the next load
    sessions = planned(8, tokens=(2000, 2))

    async def scene() -> list[StreamRecord]:
        async with truth() as (url, _), local_fleet(2) as fleet:
            load = asyncio.create_task(put_on(fleet, url, Closed(4, duration_s=30), sessions, tmp_path / "cut"))
            while len(list(FrameLog(tmp_path / "cut" / "streams-1.frames", StreamRecord))) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0)
            load.cancel()
            with pytest.raises(asyncio.CancelledError):
                await load
            again, records = await put_on(fleet, url, OPEN, planned(5, gap_s=0.01), tmp_path / "next")
            assert again.planned == len(records) == 5
        return list(TrialFolder(tmp_path / "cut").read_streams())

    ends = {record.session: record.end for record in play(scene())}
    assert ends == {
        "s0": StreamEnd.CANCELLED,
        "s2": StreamEnd.CANCELLED,
        **dict.fromkeys(("s1", "s3", "s5", "s7"), StreamEnd.COMPLETE),
    }


def test_a_load_can_be_cancelled_before_it_has_begun(tmp_path: Path):
    async def scene() -> int:
        async with truth() as (url, _), local_fleet(2) as fleet:
            load = asyncio.create_task(put_on(fleet, url, OPEN, planned(500, gap_s=0.01), tmp_path / "cut"))
            while not (tmp_path / "cut" / "streams-0.frames").exists():  # noqa: ASYNC110  (the first has been told)
                await asyncio.sleep(0)
            load.cancel()
            await asyncio.wait([load])
            return (await put_on(fleet, url, OPEN, planned(3, gap_s=0.01), tmp_path / "next"))[0].planned

    assert play(scene()) == 3


def test_a_worker_that_is_killed_ends_the_load_with_one_line(tmp_path: Path):
    async def scene() -> str:
        async with truth() as (url, server), local_fleet(2) as fleet:
            sessions = planned(4, tokens=(5000,))  # twenty seconds: the first worker's end is not waited for
            load = asyncio.create_task(put_on(fleet, url, Closed(2, duration_s=30), sessions, tmp_path / "cut"))
            await under_way(server, 2)
            os.kill(fleet.pids[1], signal.SIGKILL)
            with pytest.raises(ClientFailed, match="ended with status -9") as failure:
                async with asyncio.timeout(10):
                    await load
        return str(failure.value)

    assert "\n" not in play(scene())
    (survivor,) = TrialFolder(tmp_path / "cut").read_streams()
    assert (survivor.session, survivor.end) == ("s0", StreamEnd.CANCELLED)


@pytest.mark.parametrize(("second", "told"), [(Silence(2, 6.0, 60.0), Silence(5, 4.0, 60.0)), (None, None)])
def test_a_server_is_silent_if_it_is_towards_every_worker(tmp_path: Path, second: Silence | None, told: Silence | None):
    class Told(VirtualWorkerHost):
        """Says how silent the server is before each reply."""

        def __init__(self, silence: Silence | None) -> None:
            super().__init__(VirtualEnvironment({}))
            self._due = [Done(0, 0, 0), Alive(silence), Ready(), Alive(silence)]

        async def reply(self) -> Reply:
            return self._due.pop()

        async def send(self, order: Order) -> None:
            pass

    async def scene() -> list[Silence | None]:
        fleet, heard = Fleet([Told(Silence(3, 4.0, 60.0)), Told(second)], now_ns=lambda: 0), list[Silence | None]()
        fleet.on_silence = heard.append
        await fleet.load(LoadOrder((Target("http://127.0.0.1:9"),), OPEN, timeout_s=60.0), [], TrialFolder(tmp_path))
        return heard

    assert set(play(scene())) == {told}


@pytest.mark.parametrize("at_once", [True, False], ids=["cannot be opened", "fills up"])
def test_a_log_that_cannot_be_written_ends_the_load_with_one_line(tmp_path: Path, at_once: bool):
    """The first of two workers has no place for its log; the other has recorded what it did."""
    log = tmp_path / "cut" / "streams-0.frames"
    log.parent.mkdir()
    log.mkdir() if at_once else log.symlink_to("/dev/full")

    async def scene() -> str:
        async with truth() as (url, _), local_fleet(2) as fleet:
            sessions = planned(4, tokens=(2, 5000))  # twenty seconds: the second worker's end is not waited for
            with pytest.raises(NotWritable, match=r"streams-0\.frames: (Is a dir|No space)") as failure:
                async with asyncio.timeout(10):
                    await put_on(fleet, url, Closed(2, duration_s=30), sessions, log.parent)
            assert (await put_on(fleet, url, OPEN, planned(5, gap_s=0.01), tmp_path / "next"))[0].planned == 5
        return str(failure.value)

    assert "\n" not in play(scene())
    assert {record.end for record in FrameLog(log.with_name("streams-1.frames"), StreamRecord)} <= {StreamEnd.CANCELLED}


def test_what_breaks_inside_a_worker_is_named(tmp_path: Path):
    async def scene() -> None:
        async with local_fleet(1) as fleet:
            order = LoadOrder((Target("http://127.0.0.1:9"),), OPEN, timeout_s=1, transport="pigeon")
            await fleet.load(order, wire(planned(1, gap_s=0.0)), TrialFolder(tmp_path))

    with pytest.raises(ClientFailed, match="KeyError: 'pigeon'"):
        play(scene())


def test_workers_are_here_and_end_with_their_block():
    async def scene() -> list[psutil.Process]:
        async with local_fleet(2) as fleet:
            assert fleet.is_local
            return [psutil.Process(pid) for pid in fleet.pids]

    assert [process.is_running() for process in play(scene())] == [False, False]


@given(st.integers(1, 300), st.integers(0, 300), st.integers(1, 20))
def test_shares_of_a_closed_loop_are_whole_and_near_equal(concurrency: int, minimum: int, workers: int):
    shares = [share for share in divided(Closed(concurrency, 1.0, minimum), workers) if isinstance(share, Closed)]
    slots = [share.concurrency for share in shares]
    assert sum(slots) == concurrency
    assert len(slots) == min(workers, concurrency)
    assert max(slots) - min(slots) <= 1
    assert sum(share.minimum for share in shares) == minimum


@given(st.integers(1, 300), st.integers(1, 20))
def test_shares_of_a_cap_are_whole(cap: int, workers: int):
    shares = [share.max_in_flight for share in divided(Open(1.0, cap), workers) if isinstance(share, Open)]
    assert sum(share or 0 for share in shares) == cap
    assert min(share or 0 for share in shares) >= 1


def test_an_open_loop_without_a_cap_is_the_same_for_all():
    assert divided(OPEN, 3) == [OPEN] * 3


def test_the_logs_of_the_others_are_collected_whole_if_one_worker_is_lost(tmp_path: Path):
    collected: list[str] = []

    class Host(SimpleNamespace):
        async def renew(self) -> None:
            pass

        async def collect(self, path: Path) -> None:
            if self.is_lost:
                raise ClientFailed("the client worker is lost")
            await asyncio.sleep(1)
            collected.append(path.name)

    async def scene() -> None:
        hosts: Any = [Host(is_lost=True), Host(is_lost=False)]
        async with Fleet(hosts)._assigned(Closed(2, duration_s=1), TrialFolder(tmp_path)):
            pass

    with pytest.raises(ClientFailed, match="is lost"):
        run_virtual(scene())
    assert collected == [TrialFolder(tmp_path).stream_log(1).name]


def test_a_core_that_this_machine_lacks_is_the_users_mistake() -> None:
    async def scene() -> None:
        async with local_fleet(1, [9999]):
            pass

    with pytest.raises(BadExperiment, match=r"^client\.cores names core 9999; this process may use \d"):
        asyncio.run(scene())
