import asyncio
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bakeoff.harness.telemetry import sampler
from bakeoff.harness.telemetry.host import HostProbe, ProcessProbe
from bakeoff.harness.telemetry.loop import Ticker, sample
from bakeoff.results.errors import NotWritable
from bakeoff.results.files.jsonl import read_log
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.records import TelemetryRecord


def test_ticks_are_absolute_and_missed_ones_counted():
    ticker = Ticker(100, start_ns=1000)
    waits = []
    for now in (1000, 1105, 1450, 1460):
        waits.append(ticker.wait_ns(now))
        if waits[-1] == 0:
            ticker.fire(now)
    assert waits == [0, 0, 0, 40]  # 1105 was 5 late and did not shift 1200
    assert ticker.missed == 2  # 1200 and 1300 passed unseen; 1400 fired at 1450


def test_sources_of_one_tick_share_its_time():
    records: list[TelemetryRecord] = []
    probes = [HostProbe(), ProcessProbe("client", [os.getpid()])]
    sample(probes, Ticker(100, 0), iter([42]).__next__, records.append)
    assert [(record.t_ns, record.source) for record in records] == [(42, "host"), (42, "client")]
    assert all(value is not None for record in records for value in record.values.values())


def test_a_process_tree_is_summed():
    waiting = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # Linux counts no memory of a process that has only just begun
        (tree,) = ProcessProbe("engine", [os.getpid()]).read(0)
        (alone,) = ProcessProbe("client", [child.pid]).read(0)
        assert tree.values["processes"] >= 2
        assert alone.values["processes"] == 1
        assert tree.values["rss_bytes"] > alone.values["rss_bytes"] > 0
        child.communicate(b"\n")


def test_processes_that_were_stopped_are_counted():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        probe = ProcessProbe("engine", [child.pid])
        (running,) = probe.read(0)
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        (halted,) = probe.read(1)
        child.send_signal(signal.SIGCONT)
    assert [reading.values["stopped"] for reading in (running, halted)] == [0, 1]


def test_several_processes_are_summed():
    pipe = {"stdin": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", "input()"], **pipe) as child:
        with subprocess.Popen([sys.executable, "-c", "input()"], **pipe) as other:
            (total,) = ProcessProbe("client", [child.pid, other.pid]).read(0)
            assert total.values["processes"] == 2
            other.communicate(b"\n")
        child.communicate(b"\n")


def test_a_process_that_is_gone_is_null_with_the_reason():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    (record,) = ProcessProbe("engine", [child.pid]).read(0)
    assert record.values["rss_bytes"] is None
    assert record.reasons["rss_bytes"] == f"process {child.pid} is gone"


def test_the_sampler_process_writes_while_its_block_runs_and_then_ends(tmp_path: Path):
    folder = TrialFolder(tmp_path)

    async def scene() -> int:
        async with sampler() as running:
            async with running.into(folder.telemetry_log, [os.getpid()], [os.getpid()]):
                while len(folder.read_telemetry().records) < 9:
                    await asyncio.to_thread(psutil.cpu_percent, 0.05)
            size = folder.telemetry_log.stat().st_size
            async with running.into(tmp_path / "second.jsonl", [], []):
                pass
            assert folder.telemetry_log.stat().st_size == size
            return running._process.pid

    pid = asyncio.run(scene())
    assert not psutil.pid_exists(pid)
    records = folder.read_telemetry().records
    assert {"host", "engine", "client", "sampler"} <= {record.source for record in records}
    closing = next(record for record in records if record.source == "sampler")
    assert closing.values["missed_ticks"] >= 0
    times = [record.t_ns for record in records if record.source == "host"]
    gaps_ms = [(b - a) / 1e6 for a, b in itertools.pairwise(times)]
    assert 60 < sorted(gaps_ms)[len(gaps_ms) // 2] < 140


def test_a_sampler_that_was_killed_is_started_again_for_the_next_trial(tmp_path: Path):
    async def scene() -> list[int]:
        async with sampler() as running:
            pids: list[int] = []
            for trial in ("first", "second", "third"):
                async with running.into(tmp_path / trial, [], [os.getpid()]):
                    pids.append(running._process.pid)
                    if trial == "first":
                        os.kill(pids[0], signal.SIGKILL)
                        await running._process.wait()
                    await running.mark("after")
            return pids

    first, *others = asyncio.run(scene())
    assert others[0] == others[1] != first
    assert not any(psutil.pid_exists(pid) for pid in (first, *others))
    for trial in ("second", "third"):
        assert "sampler" in {record.source for record in read_log(tmp_path / trial, TelemetryRecord).records}


@pytest.mark.parametrize("full", ["/dev/full", "/dev"])
def test_samples_that_cannot_be_written_are_reported_at_the_end_at_the_latest(tmp_path: Path, full: str):
    """A log on a full disk, and one that cannot be opened; the sampler itself goes on."""
    (tmp_path / "full.jsonl").symlink_to(full)

    async def scene() -> None:
        async with sampler() as running:
            with pytest.raises(NotWritable, match=r"full\.jsonl: (No space left on device|Is a directory)"):
                async with running.into(tmp_path / "full.jsonl", [], [os.getpid()]):
                    pass
            async with running.into(tmp_path / "next.jsonl", [], [os.getpid()]):
                await running.mark("now")

    asyncio.run(scene())
    assert read_log(tmp_path / "next.jsonl", TelemetryRecord).records


def test_the_sampler_ends_when_its_parent_is_gone(tmp_path: Path):
    code = (
        "import asyncio, os, pathlib, sys\n"
        "from bakeoff.harness.telemetry import sampler\n"
        "async def main():\n"
        "    async with sampler() as s, s.into(pathlib.Path(sys.argv[1]), [os.getpid()], []):\n"
        "        print(s._process.pid, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "t.jsonl")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    psutil.wait_procs([child], timeout=5)
    assert not child.is_running()


@pytest.mark.parametrize("process", ["bakeoff.harness.telemetry.__main__", "bakeoff.harness.client.worker.process"])
def test_what_starts_with_every_run_imports_little(process: str) -> None:
    code = f"import sys, {process}; print([m for m in ('aiohttp', 'pandas', 'scipy', 'rich') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"[]\n"
