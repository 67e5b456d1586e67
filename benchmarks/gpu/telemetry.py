"""The NVML sampler on a real GPU. Run by ``make bench-gpu`` on a machine that has one.

A bf16 matrix product keeps the GPU busy for 35 s while the sampler's own process writes at 10 Hz. Checked: every
counter answers, ticks are not missed, the energy counter and the power readings step about every 100 ms (polled at
1 kHz by a second reader), and over 30 s the counter agrees with the integral of power.
"""

import asyncio
import itertools
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pynvml
import torch

from benchmarks.bars import Bars
from harness.telemetry import sampler
from harness.telemetry.gpu import open_gpus
from results.metrics.energy import energy
from results.records import TelemetryRecord, Window
from results.store import TrialFolder

IDLE_S, BUSY_S, NS = 6.0, 35.0, 1_000_000_000


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


def burn(stop: threading.Event) -> None:
    """Random data: zeros would draw less power."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    while not stop.is_set():
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()


async def record(folder: TrialFolder) -> tuple[Window, Window, float, float]:
    """Idle, then busy; returns both windows and the steps of energy and power."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    stop = threading.Event()
    async with sampler() as running, running.into(folder.telemetry_log, os.getpid(), []):
        idle_start = time.monotonic_ns()
        await asyncio.sleep(IDLE_S)
        idle = Window(idle_start + NS // 2, time.monotonic_ns())
        worker = threading.Thread(target=burn, args=(stop,))
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


def main() -> None:
    torch.randn(8, device="cuda")  # the context's own start is not part of the idle window
    gpus, reason = open_gpus()
    print(gpus[0].identity() if gpus else reason)
    with tempfile.TemporaryDirectory() as name:
        folder = TrialFolder(Path(name))
        idle, busy, energy_step, power_step = asyncio.run(record(folder))
        records = folder.read_telemetry().records
    samples = [r for r in records if r.source == "gpu0"]
    refused = {key: why for sample in samples for key, why in sample.reasons.items()}
    print(f"{len(samples)} samples; refused counters: {refused or 'none'}")
    for key in sorted({key for sample in samples for key in sample.values}):
        before, during = series(records, idle, key), series(records, busy, key)
        print(f"  {key:26} idle {before.mean() if len(before) else float('nan'):14.3f}  busy {during.mean():14.3f}")
    joules = energy(records, busy, idle)
    times = np.array([r.t_ns for r in samples if busy.holds(r.t_ns)]) / NS
    integral = float(np.trapezoid(series(records, busy, "power_w"), times)) * busy.length_s / (times[-1] - times[0])
    total = joules.total_j.value or float("nan")
    print(f"energy over {busy.length_s:.1f} s: counter {total:.0f} J, integrated power {integral:.0f} J, {joules}")
    ticks_missed = next(r.values["missed_ticks"] for r in records if r.source == "sampler")
    bars = Bars()
    bars.add("refused_counters", len(refused), "==", 0)
    bars.add("missed_tick_share", float(ticks_missed or 0) / len(samples), "<=", 0.01)
    bars.add("energy_step_ms_off_100", abs(energy_step - 100), "<=", 15)
    bars.add("power_step_ms_off_100", abs(power_step - 100), "<=", 15)
    bars.add("counter_vs_power_percent", abs(total - integral) / total * 100, "<=", 0.3)
    bars.add("tensor_share_busy", float(series(records, busy, "gpm_tensor_share").mean()), ">=", 0.7)
    bars.finish()


if __name__ == "__main__":
    main()
