"""The NVML sampler on a real GPU. Run by ``make bench-gpu`` on a machine that has one.

A bf16 matrix product keeps the GPU busy for 35 s while the sampler's own process writes at 10 Hz. Checked: every
counter answers, ticks are not missed, the energy counter and the power readings step about every 100 ms (polled at
1 kHz by a second reader), over 30 s the counter agrees with the integral of power, the counted time at the power cap
agrees with the samples of the mask, and the PCIe counter agrees with the bytes copied. Then the cost: duration and CPU
time of each group of readings and of a sample with and without the newer groups, CPU time of the sampler's process, and
a loop of small kernels with and without it. ``--xid`` lets another process write to a wrong address, and checks that
its XID is seen.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pynvml
import torch

from bakeoff.harness.host.gpu import Gpu, open_gpus
from bakeoff.harness.telemetry import sampler
from bakeoff.harness.telemetry.gpu_probe import GpuProbe
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.metrics.energy import energy
from bakeoff.results.metrics.machine import held_back
from bakeoff.results.records import TelemetryRecord, Window
from benchmarks.bars import Bars
from benchmarks.gpu.parts import sampler_cost

IDLE_S, BUSY_S, NS = 6.0, 35.0, 1_000_000_000
OPTIONAL = (
    "nvlink",
    "ecc",
    "memory_repair",
    "xid",
    "heat_limit",
    "below",
    "board",
    "reliability",
    "low_",
    "sync_",
)
"""Prefixes of counters that some GPUs and drivers do not have."""


def step_ms(read: Callable[[], int], seconds: float = 3.0) -> float:
    """Median time between two changes of a counter that is polled at about 1 kHz."""
    changes, last, end = [], read(), time.monotonic() + seconds
    while time.monotonic() < end:
        value = read()
        if value != last:
            changes.append(time.monotonic())
            last = value
        time.sleep(0.001)
    return statistics.median(b - a for a, b in itertools.pairwise(changes)) * 1e3


async def record(folder: TrialFolder) -> tuple[Window, Window, float, float]:
    """Record an idle and a busy window; returns both, and the milliseconds between steps of energy and of power."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    stop = threading.Event()
    async with sampler() as running, running.into(folder.telemetry_log, [os.getpid()], []):
        idle_start = time.monotonic_ns()
        await asyncio.sleep(IDLE_S)
        idle = Window(idle_start + NS // 2, time.monotonic_ns())
        worker = threading.Thread(target=sampler_cost.burn, args=(iter(stop.is_set, None),))
        worker.start()
        await asyncio.sleep(3)
        start = time.monotonic_ns()
        energy_step = step_ms(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        power_step = step_ms(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
        await asyncio.sleep(BUSY_S - 6)
        busy = Window(start, time.monotonic_ns() - NS // 2)
        stop.set()
        worker.join()
    return idle, busy, energy_step, power_step


def series(records: list[TelemetryRecord], window: Window, name: str) -> np.ndarray:
    values = [r.values[name] for r in records if r.source == "gpu0" and window.holds(r.t_ns) and name in r.values]
    return np.array([value for value in values if value is not None], dtype=float)


def mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def power_cap_difference(records: Sequence[TelemetryRecord], window: Window) -> float:
    """Difference between the counted share of time at the power cap and the share of samples with its bit."""
    masks = [TelemetryRecord(r.t_ns, r.source, {"throttle_reasons": r.values.get("throttle_reasons")}) for r in records]
    counted, sampled = (held_back(source, window)[0] for source in (records, masks))
    print(f"at the power cap: {counted.power_capped_share:.3f} {counted.power_basis}, {sampled.power_capped_share:.3f}")
    return abs(counted.power_capped_share - sampled.power_capped_share)


def xids_of_a_wrong_address(gpu: Gpu) -> list[int]:
    """The XIDs that the probe sees while another process writes to a wrong address, and 3 s longer."""
    records: list[TelemetryRecord] = []
    with contextlib.closing(GpuProbe(gpu)) as probe:
        subprocess.run([sys.executable, "-m", "benchmarks.gpu.parts.xid"], stderr=subprocess.DEVNULL, check=False)
        for _ in range(30):
            records += probe.read(time.monotonic_ns())
            time.sleep(0.1)
    print(f"XIDs: {[record.values for record in records if 'xid' in record.values]}; {records[0].reasons}")
    return [int(xid) for record in records if isinstance(xid := record.values.get("xid"), int)]


def add_costs(bars: Bars, gpu: Gpu) -> None:
    with sampler_cost.busy():
        sampler_cost.print_costs(gpu)
        older, full = (sampler_cost.cost_of_sample(gpu, is_new=is_new) for is_new in (False, True))
        print(f"one sample without the newer readings: {older}\n            with them: {full}")
        without_gpus, with_gpus = (asyncio.run(sampler_cost.process_cpu_percent(gpus, 10)) for gpus in ("", None))
    print(f"the sampler's process takes {without_gpus:.2f} % of a core without GPUs, {with_gpus:.2f} % with them")
    slowdown, rounds = asyncio.run(sampler_cost.slowdown_percent())
    print(f"a loop of small kernels is slower by {slowdown:.2f} % beside it; rounds: {[round(x, 2) for x in rounds]}")
    counted = sampler_cost.pcie_counted_share(gpu)
    print(f"the PCIe counter shows {counted} of the bytes copied to the GPU")
    bars.add("sample_median_ms", full.median_ms, "<=", 10)
    bars.add("sample_longest_ms", full.longest_ms, "<=", 50)
    bars.add("sample_cpu_percent_of_a_core", full.cpu_percent, "<=", 1)
    bars.add("sampler_process_cpu_percent_added_by_gpus", with_gpus - without_gpus, "<=", 1)
    bars.add("loop_slowdown_percent", slowdown, "<=", 1)
    if counted is not None:
        bars.add("pcie_counted_share_off_1", abs(counted - 1), "<=", 0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xid", action="store_true", help="provoke an XID error, and check that it is seen")
    options = parser.parse_args()
    torch.randn(8, device="cuda")  # the context's own start is not part of the idle window
    gpus, reason = open_gpus()
    print(gpus[0].identity() if gpus else reason)
    with tempfile.TemporaryDirectory() as name:
        folder = TrialFolder(Path(name))
        idle, busy, energy_step, power_step = asyncio.run(record(folder))
        records = folder.read_telemetry().records
    samples = [r for r in records if r.source == "gpu0"]
    refused = {key: reason for sample in samples for key, reason in sample.reasons.items()}
    print(f"{len(samples)} samples; refused counters: {refused or 'none'}")
    for key in sorted({key for sample in samples for key in sample.values}):
        before, during = (mean(series(records, window, key)) for window in (idle, busy))
        print(f"  {key:26} idle {before:18.3f}  busy {during:18.3f}")
    joules = energy(samples, busy, idle)
    times = np.array([r.t_ns for r in samples if busy.holds(r.t_ns)]) / NS
    integral = float(np.trapezoid(series(records, busy, "power_w"), times)) * busy.length_s / (times[-1] - times[0])
    total = joules.total_j.value or float("nan")
    print(f"energy over {busy.length_s:.1f} s: counter {total:.0f} J, integrated power {integral:.0f} J, {joules}")
    ticks_missed = next(r.values["missed_ticks"] for r in records if r.source == "sampler")
    bars = Bars()
    bars.add("refused_counters", len([name for name in refused if not name.startswith(OPTIONAL)]), "==", 0)
    bars.add("missed_tick_share", float(ticks_missed or 0) / len(samples), "<=", 0.01)
    bars.add("energy_step_ms_off_100", abs(energy_step - 100), "<=", 15)
    bars.add("power_step_ms_off_100", abs(power_step - 100), "<=", 15)
    bars.add("counter_vs_power_percent", abs(total - integral) / total * 100, "<=", 0.3)
    bars.add("tensor_share_busy", float(series(records, busy, "gpm_tensor_share").mean()), ">=", 0.7)
    bars.add("power_cap_counted_vs_sampled_share", power_cap_difference(records, busy), "<=", 0.1)
    add_costs(bars, gpus[0])
    if options.xid:
        bars.add("xids_seen", len(xids_of_a_wrong_address(gpus[0])), ">=", 1)
    bars.finish()


if __name__ == "__main__":
    main()
