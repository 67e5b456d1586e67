"""The same workers as Ray actors: a real cluster of two nodes, which differ from two machines in their clock only."""

import asyncio
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import ray
from rich.console import Console

from bakeoff import results
from bakeoff.engines import Access, pick_port
from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.harness.client import Closed, Fleet, LoadResult, Open
from bakeoff.harness.client.decode.log import Setup
from bakeoff.harness.client.fleet import ray_worker
from bakeoff.harness.client.fleet.forwarder import CHUNK_BYTES
from bakeoff.harness.client.fleet.machine import Machine
from bakeoff.harness.client.fleet.ray_fleet import ray_fleet
from bakeoff.harness.client.fleet.ray_worker import Description, RayWorker, copy_shifted, shifted
from bakeoff.harness.client.fleet.worker_host import WorkerClock
from bakeoff.harness.client.wire.orders import Format, Prepare, Target
from bakeoff.harness.conduct.progress import PlainObserver
from bakeoff.harness.conduct.run import create_run, run_experiment
from bakeoff.harness.errors import ClientFailed
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.verdict import client as client_rules
from bakeoff.harness.verdict import punctuality
from bakeoff.installation import how_to_install
from bakeoff.results.files.frames import FrameAppender, FrameLog
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.records import Phase, RunStatus, StreamEnd, StreamRecord, Verdict
from tests.harness.fleet_scenes import planned, play, put_on, truth, under_way
from tests.harness.ray_nodes import ray_nodes
from tests.harness.samples import TOKEN, stream
from tests.workloads.small_tokenizers import checkpoint

OPEN = Open(duration_s=0.3)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with ray_nodes(2) as nodes:
        yield nodes.address


@pytest.fixture(autouse=True)
def _no_connection_is_left(cluster: str) -> Iterator[None]:
    """One test's connection must not serve the next: Ray has one per process."""
    yield
    is_left = ray.is_initialized()
    ray.shutdown()
    assert not is_left


@asynccontextmanager
async def two_workers(cluster: str, **options: Any) -> AsyncGenerator[tuple[Fleet, list[RayWorker]]]:
    async with ray_fleet(cluster, 2, **options) as fleet:
        yield fleet, list(fleet._hosts)


def measured(path: Path, experiment: dict[str, Any], client: dict[str, Any]) -> results.Run:
    async def scene() -> None:
        async with truth() as (url, _):
            made = experiment_from(
                {**experiment, "client": client, "engines": [{"adapter": "reference", "url": url}]}, "t"
            )
            await run_experiment(made, create_run(made, path), PlainObserver(Console(quiet=True), made))

    play(scene())
    return results.load(next(path.iterdir()))


def test_two_nodes_record_what_one_process_records(cluster: str, tmp_path: Path):
    experiment: dict[str, Any] = {
        "name": "t",
        "seed": 7,
        "repeats": 1,
        "model": {"name": "truth", "tokenizer": str(checkpoint(tmp_path / "tok"))},
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5, "spread": 0.5}},
        "loads": [{"rate_per_s": 60.0, "arrival": "poisson"}, {"concurrency": 4}],
        "trial": {"ramp_s": 0.1, "duration_s": 1.0, "min_requests": 60},
    }
    single = measured(tmp_path / "one", experiment, {"calibrate": False})
    fleet = measured(tmp_path / "two", experiment, {"calibrate": False, "ray": cluster, "workers": 2})
    for of_single, of_fleet in zip(single.finished, fleet.finished, strict=True):
        is_open = of_single.record.load.rate_per_s is not None
        fleet_records, single_records = [_essence(trial, is_open=is_open) for trial in (of_fleet, of_single)]
        common = fleet_records.keys() & single_records.keys()
        assert len(common) > 20
        assert all(fleet_records[index] == single_records[index] for index in common)
        assert not is_open or fleet_records.keys() == single_records.keys()
        assert of_single.record.workload_sha256 == of_fleet.record.workload_sha256
        assert len(of_fleet.record.clients) == 2
        assert sum(client.planned_requests for client in of_fleet.record.clients) == of_fleet.record.planned_requests
        assert all(client.clock_uncertainty_ns == 0 for client in of_fleet.record.clients)
    assert fleet.manifest.experiment["client"]["ray"] == cluster


def _essence(trial: Any, *, is_open: bool) -> dict[int, tuple[Any, ...]]:
    """The requests of the window's plan; a closed loop has as many as there was time for."""
    return {
        request.index: (
            request.session, request.turn, request.outcome, request.chunk_tokens,
            request.requested_input_tokens, request.requested_output_tokens, request.output_tokens,
            request.planned_ns - trial.record.window.start_ns if is_open else None,
        )
        for request in trial.requests
        if request.phase is Phase.MEASURED
    }  # fmt: skip


@pytest.mark.nightly
def test_nodes_come_first_and_then_several_to_a_node(cluster: str):
    async def scene() -> list[str]:
        before = signal.getsignal(signal.SIGTERM)
        async with ray_fleet(cluster, 3) as fleet:
            assert signal.getsignal(signal.SIGTERM) == before  # a run's own: Ray would take it over
            assert len(set(fleet.pids)) == 3
            tables = ray.util.placement_group_table().values()
            (table,) = (table for table in tables if table["state"] == "CREATED")
        return list(table["bundles_to_node_id"].values())

    nodes = play(scene())
    assert sorted(nodes.count(node) for node in set(nodes)) == [1, 2]


@pytest.mark.nightly
def test_a_clock_is_measured_around_the_load_and_nothing_of_ray_runs_in_it(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: dict[RayWorker, list[str]] = {}
    call = RayWorker._call

    async def logged(self: RayWorker, method: str, *arguments: object) -> object:
        is_go = method == "send" and b'"type":"go"' in msgspec.convert(arguments[0], bytes)
        calls.setdefault(self, []).append("go" if is_go else method)
        result = await call(self, method, *arguments)
        if method == "reply" and b'"type":"done"' in msgspec.convert(result, bytes):
            calls[self].append("done")
        return result

    async def scene() -> tuple[LoadResult, list[StreamRecord], list[RayWorker]]:
        async with truth() as (url, _), two_workers(cluster, measure_always=True) as (fleet, workers):
            monkeypatch.setattr(RayWorker, "_call", logged)
            return *await put_on(fleet, url, OPEN, planned(30, gap_s=0.01), tmp_path / "t"), workers

    result, records, workers = play(scene())
    for client, worker in zip(result.clients, workers, strict=True):
        assert 0 < client.clock_uncertainty_ns < 1_000_000_000
        assert abs(client.clock_offset_ns) <= client.clock_uncertainty_ns  # the true offset is 0
        assert WorkerClock(client.clock_offset_ns, client.clock_uncertainty_ns) == worker.clock
        log = calls[worker]
        assert log[log.index("go") : log.index("done") + 1] == ["go", "reply", "done"]
        assert log[: log.index("go")].count("call") == log[log.index("done") :].count("call") > 10
    unsure_ns = 2 * sum(worker.clock.uncertainty_ns for worker in workers)
    for number, record in enumerate(records):
        assert record.planned_ns - result.issue.start_ns == pytest.approx(number * 10_000_000, abs=unsure_ns)
        assert record.planned_ns <= record.sent_ns < record.read_ns[0] <= record.ended_ns


@pytest.mark.nightly
def test_a_cancelled_load_is_collected_and_the_fleet_goes_on(cluster: str, tmp_path: Path):
    async def scene() -> list[Path]:
        async with truth() as (url, server), two_workers(cluster) as (fleet, workers):
            sessions = planned(4, tokens=(5000,))
            load = asyncio.create_task(put_on(fleet, url, Closed(4, duration_s=30), sessions, tmp_path / "cut"))
            await under_way(server, 4)
            load.cancel()
            with pytest.raises(asyncio.CancelledError):
                await load
            again, records = await put_on(fleet, url, OPEN, planned(6, gap_s=0.01), tmp_path / "next")
            assert again.planned == len(records) == 6
            folders = [Path(worker._description.folder) for worker in workers]
            assert all(folder.is_dir() for folder in folders)
            assert not [log for folder in folders for log in folder.glob("streams-*")]
        return folders

    folders = play(scene())
    cut = list(TrialFolder(tmp_path / "cut").read_streams())
    assert sorted(record.session for record in cut) == ["s0", "s1", "s2", "s3"]
    assert {record.end for record in cut} == {StreamEnd.CANCELLED}
    assert not any(folder.exists() for folder in folders)  # nothing is left behind


@pytest.mark.nightly
def test_a_worker_that_is_killed_ends_the_load_with_one_line(cluster: str, tmp_path: Path):
    async def scene() -> str:
        async with truth() as (url, server), two_workers(cluster) as (fleet, _):
            sessions = planned(4, tokens=(5000,))
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


def _workers_of(cluster: str) -> list[psutil.Process]:
    """The client's workers on a cluster; its nodes name its address. Tests beside this one have workers, too."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if (process.info["cmdline"] or [])[-1:] == ["bakeoff.harness.client.worker"] and _is_below(process, cluster)
    ]


def _is_below(process: psutil.Process, word: str) -> bool:
    """Whether a process was started, perhaps by others, by one with this in its command line."""
    try:
        return any(word in " ".join(parent.cmdline()) for parent in process.parents())
    except psutil.NoSuchProcess:
        return False


@pytest.mark.nightly
def test_a_lost_worker_voids_its_trial_and_the_plan_goes_on_with_another(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # How late the workers are on a busy machine is not the question here.
    monkeypatch.setattr(punctuality, "MAX_LATE_S", 10.0)
    monkeypatch.setattr(client_rules, "MAX_SEND_LAG_S", 10.0)
    experiment = experiment_from(
        {
            "name": "t", "repeats": 2, "model": {"name": "truth", "tokenizer": str(checkpoint(tmp_path / "tok"))},
            "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5, "spread": 0.0}},
            "loads": [{"rate_per_s": 60.0, "arrival": "poisson"}], "trial": {"ramp_s": 0.1, "duration_s": 1.0},
            "client": {"calibrate": False, "ray": cluster, "workers": 2, "max_error_share": 1.0},
            "engines": [{"adapter": "reference"}],
        },
        "t",
    )  # fmt: skip

    async def scene() -> None:
        async with truth() as (url, server):
            engines = [msgspec.structs.replace(experiment.engines[0], url=url)]
            made = msgspec.structs.replace(experiment, engines=engines)
            running = asyncio.create_task(
                run_experiment(made, create_run(made, tmp_path / "runs"), PlainObserver(Console(quiet=True), made))
            )
            await under_way(server, 20)
            _workers_of(cluster)[-1].kill()
            await running

    play(scene())
    run = results.load(next((tmp_path / "runs").iterdir()))
    cut, *others = sorted((trial.record for trial in run.finished), key=lambda record: record.order)
    assert [finding.code for finding in cut.findings] == [FindingCode.CLIENT_LOST]
    assert "ended with status -9" in str(cut.findings[0].parameters["detail"])
    # the other repeat, and the first one again, since the client spoilt it
    assert [(record.verdict, len(record.clients)) for record in others] == [(Verdict.VALID, 2)] * 2


@pytest.mark.nightly
def test_a_node_that_is_lost_ends_the_load_with_one_line(cluster: str, tmp_path: Path):
    async def scene() -> str:
        async with truth() as (url, server), two_workers(cluster) as (fleet, workers):
            sessions = planned(4, tokens=(5000,))
            load = asyncio.create_task(put_on(fleet, url, Closed(2, duration_s=30), sessions, tmp_path / "cut"))
            await under_way(server, 2)
            left = Path(workers[1]._description.folder)
            orphan = psutil.Process(fleet.pids[1])
            ray.kill(workers[1].forwarder)
            with pytest.raises(ClientFailed, match="is lost") as failure:
                async with asyncio.timeout(10):
                    await load
            assert psutil.wait_procs([orphan], timeout=5)[1] == []
            shutil.rmtree(left)  # the one case in which a node keeps its files: they are all there is of that worker
        return str(failure.value)

    assert "\n" not in play(scene())
    (survivor,) = TrialFolder(tmp_path / "cut").read_streams()
    assert (survivor.session, survivor.end) == ("s0", StreamEnd.CANCELLED)


@pytest.mark.nightly
def test_files_of_many_pieces_arrive_whole(cluster: str, tmp_path: Path):
    plan, log, empty = (tmp_path / name for name in ("plan", "streams-0.frames", "empty"))
    plan.write_bytes(os.urandom(2 * CHUNK_BYTES + 1))
    empty.touch()
    record = stream([(7, b"x" * 1_000_000)])

    async def scene() -> None:
        async with ray_fleet(cluster, 1) as fleet:
            (worker,) = fleet._hosts
            staged = [await worker.stage(plan), await worker.stage(empty)]
            assert str(plan) not in staged
            assert [Path(there).read_bytes() for there in staged] == [plan.read_bytes(), b""]  # noqa: ASYNC240
            with FrameAppender(Path(worker.remote_path(log))) as raw:
                for _ in range(2 * CHUNK_BYTES // 1_000_000 + 1):
                    raw.append(record)
            await worker.collect(log)
            assert list(FrameLog(log, StreamRecord)) == [record] * 9
            setup = msgspec.json.encode(Setup(Format("vllm", {}), None))
            lines = await worker.decode(setup, log.read_bytes())
            assert lines is not None
            assert lines.count(b"\n") == 9
            assert await worker.decode(setup, b"\x00\x00\x00\x01\xc1") is None
            assert fleet.decoders == [], "its node is this machine, whose cores decode already"
            worker.pid = None
            assert fleet.decoders == [worker]

    play(scene())


def test_every_time_is_shifted_and_nothing_else(tmp_path: Path):
    record = msgspec.structs.replace(
        stream([(1_000, TOKEN), (2_000, TOKEN)]), due_ns=3, dial_start_ns=4, dial_end_ns=5
    )  # fmt: skip
    times = [name for name in StreamRecord.__struct_fields__ if name.endswith("_ns") and name != "read_ns"]
    assert shifted(record, 0) == record
    moved = shifted(record, 400)
    assert [getattr(record, name) - getattr(moved, name) for name in times] == [400] * len(times)
    assert moved.read_ns == [600, 1_600]
    assert shifted(moved, -400) == record
    unsent = stream([], end=StreamEnd.REFUSED, status=None)
    assert shifted(shifted(unsent, 5), -5) == unsent
    with FrameAppender(tmp_path / "raw") as raw:
        for _ in range(1_000):
            raw.append(record)
    with (tmp_path / "raw").open("ab") as torn:
        torn.write(b"\x00\x00")
    copy_shifted(tmp_path / "raw", tmp_path / "log", 400)
    assert list(FrameLog(tmp_path / "log", StreamRecord)) == [moved] * 1_000


def test_an_engine_that_a_node_cannot_reach_is_refused_before_the_load():
    far = Machine("far", "another boot", "", "", "")
    worker = RayWorker(lambda _: None, None, Description("0", far, 1, "/tmp/x"), measure_always=True)
    assert worker.pid is None
    for url in ("http://127.0.0.1:8000", "http://localhost:8000/v1", "http://[::1]:8000"):
        order = Prepare((Target(url),), Access(), "log", "sessions", OPEN, 1.0, Phase.MEASURED)
        with pytest.raises(ClientFailed, match=f"on far cannot reach {url.replace('[', '.')[:12]}.*give its url"):
            asyncio.run(worker.send(order))


def test_mistakes_are_one_line_that_says_what_to_do(cluster: str, monkeypatch: pytest.MonkeyPatch):
    async def enter(address: str, workers: int = 1) -> None:
        async with ray_fleet(address, workers):
            raise AssertionError("entered")

    def refused(address: str, workers: int = 1) -> str:
        with pytest.raises(ClientFailed) as failure:
            play(enter(address, workers))
        assert "\n" not in str(failure.value)
        return str(failure.value)

    assert "has 4 CPUs for 5 workers; lower client.workers" in refused(cluster, 5)
    assert "ray start --address" in refused(f"127.0.0.1:{pick_port()}")
    assert "ray start --address" in refused("nowhere")
    theirs = ray_worker.VERSION
    with monkeypatch.context() as patch:
        patch.setattr(ray_worker, "VERSION", "9.9")
        assert f"is {theirs} on" in (message := refused(cluster))
        assert "9.9 here; install the same version" in message
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ray", None)
        assert f"{how_to_install('ray')}" in refused(cluster)


def test_the_command_line_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = (
        f"bench --engine reference --url http://127.0.0.1:9 --model m --tokenizer {checkpoint(tmp_path / 'tok')} "
        f"--workload random --concurrency 1 --workers 2 --ray 127.0.0.1:{pick_port()} --out {tmp_path / 'runs'}"
    )
    assert guarded(make_app(), words.split()) == 3
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1].startswith("bakeoff: no Ray cluster answers at 127.0.0.1:")
    assert printed.err.count("\n") == 2, "the plan, and the reason"
    run = results.load(next((tmp_path / "runs").iterdir()))
    assert run.status is RunStatus.FAILED
    assert run.manifest.experiment["client"]["workers"] == 2


def test_a_cluster_that_does_not_take_us_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    closing = threading.Event()

    def never(**options: object) -> None:
        closing.wait()

    def refuse(**options: object) -> None:
        raise RuntimeError("Version mismatch:\n    The cluster was started with:\n        Ray: 1.0")

    async def enter() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            async with ray_fleet(f"127.0.0.1:{server.getsockname()[1]}", 1):
                raise AssertionError("entered")

    monkeypatch.setattr("bakeoff.harness.client.fleet.ray_fleet._CONNECT_S", 0.1)
    for init, words in (
        (never, "cannot join the Ray cluster at .*: no reply; check"),
        (refuse, "Version mismatch:; check"),
    ):
        monkeypatch.setattr(ray, "init", init)
        with pytest.raises(ClientFailed, match=words):
            play(enter())
    closing.set()
    monkeypatch.undo()

    def late(**options: object) -> None:
        """Connects after the caller has given up waiting."""
        connecting.wait()
        connected.append(True)

    connecting, connected, shut = threading.Event(), [], threading.Event()
    monkeypatch.setattr("bakeoff.harness.client.fleet.ray_fleet._CONNECT_S", 0.1)
    monkeypatch.setattr(ray, "init", late)
    with pytest.raises(ClientFailed, match="no reply"):
        play(enter())
    monkeypatch.setattr(ray, "shutdown", shut.set)
    connecting.set()
    assert shut.wait(10)
    assert connected == [True]
