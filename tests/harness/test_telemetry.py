import asyncio
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest

from harness.telemetry import sampler
from harness.telemetry.gpu import open_gpus, visible_to
from harness.telemetry.host import HostProbe, ProcessProbe
from harness.telemetry.loop import Ticker, sample
from results.errors import NotWritable
from results.jsonl import read_log
from results.records import TelemetryRecord
from results.store import TrialFolder

POWER_CAP = pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP
DRIVER_HEAT = pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN


class FakeNvml:
    """GPUs of 700 W; calls named in ``broken`` fail as a driver without permission does.

    The driver counts time with lowered clocks: 3 s at the power cap, 0.25 s for heat by itself; ``counts`` says which.
    """

    def __init__(
        self,
        *,
        count: int = 1,
        gpm: bool = True,
        broken: frozenset[str] = frozenset(),
        counts: tuple[int, ...] = (POWER_CAP, DRIVER_HEAT, pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN),
    ) -> None:
        self._count = count
        self._gpm = gpm
        self._broken = broken
        self._counts = counts

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "_broken"):
            raise pynvml.NVMLError_NoPermission
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return self._count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA Fake"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}a{handle}"

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return type("Memory", (), {"used": 7, "total": 80})()

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return type("Rates", (), {"gpu": 50, "memory": 25})()

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[Any]:
        return [self._field(field) for field in fields]

    def _field(self, field: int) -> Any:
        known = {*self._counts, pynvml.NVML_FI_DEV_POWER_INSTANT, pynvml.NVML_FI_DEV_POWER_AVERAGE}
        code = pynvml.NVML_SUCCESS if field in known else pynvml.NVML_ERROR_NOT_SUPPORTED
        counted_ns = {POWER_CAP: 3_000_000_000, DRIVER_HEAT: 250_000_000}.get(field, 0)
        value = type("Value", (), {"uiVal": 700_000, "ullVal": counted_ns})()
        return type("Field", (), {"nvmlReturn": code, "value": value})()

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return 5_000

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return 1980

    def nvmlDeviceGetTemperature(self, handle: int, kind: int) -> int:
        return 40

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 0

    def nvmlGpmQueryDeviceSupport(self, handle: int) -> Any:
        return type("Support", (), {"isSupportedDevice": self._gpm})()

    def nvmlGpmSampleAlloc(self) -> Any:
        return pynvml.c_nvmlGpmSample_t()

    def nvmlGpmSampleGet(self, handle: int, sample: Any) -> None: ...

    def nvmlGpmMetricsGet(self, request: Any) -> None:
        for slot in range(request.numMetrics):
            request.metrics[slot].value = 90.0


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
            (both,) = ProcessProbe("client", [child.pid, other.pid]).read(0)
            assert both.values["processes"] == 2
            other.communicate(b"\n")
        child.communicate(b"\n")


def test_a_process_that_is_gone_is_null_with_the_reason():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    (record,) = ProcessProbe("engine", [child.pid]).read(0)
    assert record.values["rss_bytes"] is None
    assert record.reasons["rss_bytes"] == f"process {child.pid} is gone"


def test_a_gpu_reads_every_counter():
    gpus, reason = open_gpus(FakeNvml())
    assert reason is None
    assert gpus[0].identity()["name"] == "NVIDIA Fake"
    assert gpus[0].identity()["memory_bytes"] == 80
    first, second = gpus[0].read(1)[0], gpus[0].read(2)[0]
    assert first.values["power_w"] == 700
    assert first.values["energy_j"] == 5
    assert first.values["utilization_gpu_share"] == 0.5
    assert "gpm_sm_share" not in first.values  # every second tick: samples must be over 100 ms apart
    assert second.values["gpm_tensor_share"] == 0.9
    assert second.reasons == {}


@pytest.mark.parametrize(
    ("names", "seen"),
    [
        (None, ["gpu0", "gpu1", "gpu2"]),
        ("2,0", ["gpu2", "gpu0"]),
        ("GPU-1a", ["gpu1"]),
        ("0, 7,1", ["gpu0"]),  # CUDA stops at the first that is none
        ("-1", []),
        ("", []),
        ("MIG-1", ["gpu0", "gpu1", "gpu2"]),
    ],
)
def test_an_engines_gpus_are_those_that_it_may_use(names: str | None, seen: list[str]) -> None:
    gpus, _ = open_gpus(FakeNvml(count=3))
    assert [gpu.read(0)[0].source for gpu in visible_to(names, gpus)] == seen


def test_a_counter_that_is_refused_is_null_and_the_others_stay():
    gpus, _ = open_gpus(FakeNvml(broken=frozenset({"nvmlDeviceGetTotalEnergyConsumption"})))
    (record,) = gpus[0].read(1)
    assert record.values["energy_j"] is None
    assert "Permission" in record.reasons["energy_j"]
    assert record.values["power_w"] == 700


def test_time_with_lowered_clocks_is_counted_by_the_driver():
    """A driver that lacks a counter leaves it out; none of them is 0."""
    held_back = {"power_cap_s", "heat_driver_s", "heat_hardware_s", "power_brake_s"}
    (newer,), (older,) = (open_gpus(FakeNvml(counts=counts))[0] for counts in (FakeNvml()._counts, (POWER_CAP,)))
    values = newer.read(1)[0].values
    assert {name: values[name] for name in held_back & set(values)} == {
        "power_cap_s": 3.0, "heat_driver_s": 0.25, "heat_hardware_s": 0.0,
    }  # fmt: skip
    assert held_back & set(older.read(1)[0].values) == {"power_cap_s"}


def test_a_gpu_without_gpm_says_so():
    gpus, _ = open_gpus(FakeNvml(gpm=False))
    (record,) = gpus[0].read(1)
    assert record.values["gpm_sm_share"] is None
    assert record.reasons["gpm_sm_share"] == "GPM needs Hopper or newer"


def test_no_nvml_is_a_reason_not_an_error():
    gpus, reason = open_gpus(FakeNvml(broken=frozenset({"nvmlInit"})))
    assert gpus == []
    assert reason is not None
    assert reason.startswith("NVML is not available: ")


def test_the_sampler_process_writes_while_its_block_runs_and_then_ends(tmp_path: Path):
    folder = TrialFolder(tmp_path)

    async def scene() -> int:
        async with sampler() as running:
            async with running.into(folder.telemetry_log, os.getpid(), [os.getpid()]):
                while len(folder.read_telemetry().records) < 9:
                    await asyncio.to_thread(psutil.cpu_percent, 0.05)
            size = folder.telemetry_log.stat().st_size
            async with running.into(tmp_path / "second.jsonl", None, []):
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


@pytest.mark.parametrize("full", ["/dev/full", "/dev"])
def test_samples_that_cannot_be_written_are_told_at_the_end_at_the_latest(tmp_path: Path, full: str):
    """A log on a full disk, and one that cannot be opened; the sampler itself goes on."""
    (tmp_path / "full.jsonl").symlink_to(full)

    async def scene() -> None:
        async with sampler() as running:
            with pytest.raises(NotWritable, match=r"full\.jsonl: (No space left on device|Is a directory); "):
                async with running.into(tmp_path / "full.jsonl", None, [os.getpid()]):
                    pass
            async with running.into(tmp_path / "next.jsonl", None, [os.getpid()]):
                await running.mark("now")

    asyncio.run(scene())
    assert read_log(tmp_path / "next.jsonl", TelemetryRecord).records


def test_the_sampler_ends_when_its_parent_is_gone(tmp_path: Path):
    code = (
        "import asyncio, os, pathlib, sys\n"
        "from harness.telemetry import sampler\n"
        "async def main():\n"
        "    async with sampler() as s, s.into(pathlib.Path(sys.argv[1]), os.getpid(), []):\n"
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


@pytest.mark.parametrize("process", ["harness.telemetry.__main__", "harness.client.worker"])
def test_what_starts_with_every_run_imports_little(process: str) -> None:
    code = f"import sys, {process}; print([m for m in ('aiohttp', 'pandas', 'scipy', 'rich') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"[]\n"
