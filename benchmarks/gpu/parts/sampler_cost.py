"""Cost of reading GPUs: of each group of readings, of a whole sample, of the sampler's process, and to a GPU load.

Run as a program, it loads the GPU until stdin closes; a process of its own keeps its calls from delaying the readings.
"""

import asyncio
import contextlib
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pynvml
import torch

from bakeoff.harness.host.gpu import Gpu
from bakeoff.harness.telemetry import sampler
from bakeoff.harness.telemetry.gpu_events import GpuEvents
from bakeoff.harness.telemetry.gpu_probe import GpuProbe, Group
from bakeoff.harness.telemetry.nvml_fields import LINKS, FieldReader, Readings

TICK_S, TICKS = 0.1, 40
OLDER_GROUPS = {"memory", "utilization", "clocks", "state", "held_back", "power", "power_average", "energy", "gpm"}
"""Groups that were read before limits, links and errors were added."""
COPIED_BYTES = 2 << 30
"""Below the 4 GiB at which a counter of 32 bits wraps."""


class Cost(NamedTuple):
    """Duration and CPU time of readings.

    Attributes:
        median_ms: duration of one.
        longest_ms: of the longest.
        cpu_percent: CPU time at the rate at which they are read, of one core.
    """

    median_ms: float
    longest_ms: float
    cpu_percent: float


def cost(read: Callable[[], Any], *, every_s: float, times: int = TICKS, paused_s: float = 0.0) -> Cost:
    """Cost of a reading that happens every ``every_s`` seconds; here readings are ``paused_s`` apart."""
    walls: list[float] = []
    cpu_s = 0.0
    for _ in range(times):
        wall, cpu = time.perf_counter(), time.thread_time()
        with contextlib.suppress(pynvml.NVMLError):
            read()
        walls.append(time.perf_counter() - wall)
        cpu_s += time.thread_time() - cpu
        time.sleep(paused_s)
    return Cost(statistics.median(walls) * 1e3, max(walls) * 1e3, cpu_s / times / every_s * 100)


def costs_of_groups(gpu: Gpu) -> dict[str, Cost]:
    """Cost of each group of readings, and of a call that is not used."""
    probe = GpuProbe(gpu)
    probe.read(0)  # later reads skip readings that are refused now
    costs = {
        name: _cost_of_group(group, paused_s=1.1 * TICK_S * (name == "gpm")) for name, group in probe.groups.items()
    }
    probe.close()
    with contextlib.suppress(pynvml.NVMLError), contextlib.closing(GpuEvents(gpu)) as events:
        costs["events"] = cost(events.take, every_s=TICK_S)
    costs["(nvmlDeviceGetPcieThroughput, not used)"] = cost(
        lambda: gpu.nvml.nvmlDeviceGetPcieThroughput(gpu.handle, pynvml.NVML_PCIE_UTIL_TX_BYTES),
        every_s=TICK_S,
        times=5,
    )
    return costs


def _cost_of_group(group: Group, paused_s: float) -> Cost:
    """Cost of a group at the rate at which the probe reads it."""
    each_tick = cost(lambda: group.read(Readings()), every_s=TICK_S, paused_s=paused_s)
    return each_tick._replace(cpu_percent=each_tick.cpu_percent / group.ticks(each_tick.median_ms / 1e3))


def cost_of_sample(gpu: Gpu, *, is_new: bool) -> Cost:
    """Cost of a whole tick, without or with the newer groups."""
    with contextlib.closing(GpuProbe(gpu)) as probe:
        if not is_new:
            probe.groups = {name: group for name, group in probe.groups.items() if name in OLDER_GROUPS}
        return cost(lambda: probe.read(0), every_s=TICK_S, paused_s=TICK_S)


def print_costs(gpu: Gpu) -> None:
    """Print the cost of each group."""
    print(f"{'group':<40} {'median':>9} {'longest':>9} {'of a core':>10}")
    for name, reading in costs_of_groups(gpu).items():
        print(f"{name:<40} {reading.median_ms:6.3f} ms {reading.longest_ms:6.3f} ms {reading.cpu_percent:8.3f} %")


async def process_cpu_percent(gpus: str | None, seconds: float) -> float:
    """CPU time of the sampler's process while it samples these GPUs, of one core."""
    with tempfile.TemporaryDirectory() as folder:
        async with sampler() as running, running.into(Path(folder, "t.jsonl"), [os.getpid()], [], (), gpus):
            (process,) = [
                child for child in psutil.Process().children() if "bakeoff.harness.telemetry" in child.cmdline()
            ]
            await asyncio.sleep(1)
            before, start = process.cpu_times(), time.monotonic()
            await asyncio.sleep(seconds)
            after, end = process.cpu_times(), time.monotonic()
    return (after.user + after.system - before.user - before.system) / (end - start) * 100


def loop_rate(seconds: float) -> float:
    """Steps per second of a loop that starts small kernels and waits for them, as a decode step does."""
    a = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    end, steps, start = time.monotonic() + seconds, 0, time.monotonic()
    while time.monotonic() < end:
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()
        steps += 1
    return steps / (time.monotonic() - start)


async def slowdown_percent(rounds: int = 6, seconds: float = 1.5) -> tuple[float, list[float]]:
    """How much slower the loop is beside the sampler: the median over rounds in alternating order, and each round."""
    loop_rate(seconds)  # warms up
    slowdowns: list[float] = []
    for number in range(rounds):
        rates: dict[bool, float] = {}
        for is_sampled in (number % 2 == 0, number % 2 == 1):
            with tempfile.TemporaryDirectory() as folder:
                async with contextlib.AsyncExitStack() as stack:
                    if is_sampled:
                        running = await stack.enter_async_context(sampler())
                        await stack.enter_async_context(running.into(Path(folder, "t.jsonl"), [os.getpid()], []))
                        await asyncio.sleep(0.5)  # the sampler's start is not part of its cost
                    rates[is_sampled] = loop_rate(seconds)
        slowdowns.append((rates[False] / rates[True] - 1) * 100)
    return statistics.median(slowdowns), slowdowns


def pcie_counted_share(gpu: Gpu) -> float | None:
    """Bytes that the PCIe counter shows of a copy to the GPU, over the bytes copied; None without a counter."""
    source = torch.empty(COPIED_BYTES // 8, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device="cuda")
    reader = FieldReader(gpu.nvml, gpu.handle, LINKS)

    def received() -> float | None:
        time.sleep(0.5)  # the counter may step
        readings = Readings()
        reader.read(readings)
        value = readings.values.get("pcie_rx_bytes")
        return float(value) if isinstance(value, int | float) else None

    before = received()
    for _ in range(8):
        target.copy_(source)
    torch.cuda.synchronize()
    after = received()
    return None if before is None or after is None else (after - before) / COPIED_BYTES


@contextlib.contextmanager
def busy() -> Generator[None]:
    """A load on the GPU by another process while the block runs."""
    with subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as load:
        assert load.stdout is not None
        load.stdout.readline()
        try:
            yield
        finally:
            load.communicate()


def burn(is_over: Iterator[bool]) -> None:
    """Multiply random matrices, since zeros would draw less power."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for over in is_over:
        if over:
            return
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()


def main() -> None:
    """Print a line when the load has begun, and burn until stdin closes."""
    torch.randn(8, device="cuda")
    print(flush=True)
    burn(iter(lambda: bool(select.select([sys.stdin], [], [], 0)[0]), None))


if __name__ == "__main__":
    main()
