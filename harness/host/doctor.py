"""Checks this machine for settings that make measurements noisy or slow, with their effect and a command that helps.

The checks read /proc, /sys and NVML, and change nothing. Values that are not visible are unknown, not errors: virtual
machines and containers do not show their host.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pynvml

from bakeoff.harness.host.cpu import CpuProbe
from bakeoff.harness.host.machine_state import MAX_FOREIGN_SHARE, SOME_FOREIGN_SHARE
from bakeoff.results.metrics.machine import foreign_cpu_share
from bakeoff.results.records import Window
from bakeoff.results.text.format import percent_text

_SAMPLE_S = 1.0
_CPUS = "sys/devices/system/cpu"


class State(StrEnum):
    """Result of a check."""

    FINE = "fine"
    DISTURBS = "disturbs"
    UNKNOWN = "unknown"


class Check(msgspec.Struct, frozen=True):
    """One property of the machine.

    Attributes:
        subject: name of the property.
        state: whether it disturbs measurements.
        seen: its current value.
        effect: on measurements; None if there is none or it is unknown.
        remedy: command that helps; None if none is needed.
    """

    subject: str
    state: State
    seen: str
    effect: str | None = None
    remedy: str | None = None


def examine_machine(
    root: Path = Path("/"),
    nvml: Any = pynvml,  # noqa: ANN401  (a module, or a fake)
    wait: Callable[[float], None] = time.sleep,
) -> list[Check]:
    """Check processors, memory, load and GPUs; samples the load for a second.

    Args:
        root: of the file system.
        nvml: the NVML binding; tests pass a fake.
        wait: sleeps.
    """
    checks = [_governor(root), _turbo(root), _smt(root), _cpu_limit(root), _swap(root), _load(wait)]
    return [*checks, *_gpus(nvml)]


def _fine(subject: str, seen: str) -> Check:
    return Check(subject, State.FINE, seen)


def _unknown(subject: str, why: str) -> Check:
    return Check(subject, State.UNKNOWN, why)


def _disturbs(subject: str, seen: str, effect: str, remedy: str) -> Check:
    return Check(subject, State.DISTURBS, seen, effect, remedy)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _governor(root: Path) -> Check:
    files = (root / _CPUS).glob("cpu[0-9]*/cpufreq/scaling_governor")
    governors = sorted({governor for file in files if (governor := _read(file))})
    if not governors:
        return _unknown("governor", "this machine does not show how it sets clock frequencies")
    if governors == ["performance"]:
        return _fine("governor", "performance")
    effect = "clock frequencies follow the load with a delay, so the first requests after a pause are slower"
    return _disturbs("governor", ", ".join(governors), effect, "sudo cpupower frequency-set -g performance")


def _turbo(root: Path) -> Check:
    for name, on, off in (("intel_pstate/no_turbo", "0", "1"), ("cpufreq/boost", "1", "0")):
        file = root / _CPUS / name
        if (value := _read(file)) is not None:
            effect = "the clock frequency of a core depends on its temperature and on how many other cores are busy"
            command = f"echo {off} | sudo tee /{_CPUS}/{name}"
            return _disturbs("turbo", "on", effect, command) if value == on else _fine("turbo", "off")
    return _unknown("turbo", "this machine does not show whether it has turbo")


def _smt(root: Path) -> Check:
    active, control = (_read(root / _CPUS / "smt" / name) for name in ("active", "control"))
    if active is None:
        return _unknown("SMT", "this machine does not show whether threads share cores")
    if active != "1":
        return _fine("SMT", "this processor has none" if control in {"notsupported", "notimplemented"} else "off")
    effect = "two hardware threads share a core, so engine, client and other processes slow each other down"
    return _disturbs("SMT", "on", effect, f"echo off | sudo tee /{_CPUS}/smt/control")


def _cpu_limit(root: Path) -> Check:
    """The limit of our control group, in which engines run too; cgroup v2 has one file, v1 has two."""
    groups = root / "sys/fs/cgroup"
    path = next((line[3:] for line in (_read(root / "proc/self/cgroup") or "").splitlines() if line[:3] == "0::"), "/")
    for folder in (groups / path.lstrip("/"), groups):
        if (limit := _read(folder / "cpu.max")) is not None:
            return _limited(*limit.split()[:2])
    quota, period = (_read(groups / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    if quota is None or period is None:
        return _unknown("CPU limit", "the control group shows none")
    return _limited("max" if quota == "-1" else quota, period)


def _limited(quota: str, period: str) -> Check:
    if quota == "max":
        return _fine("CPU limit", "none")
    quota_text = f"{int(quota) / int(period):g} cores in each {int(period) / 1000:g} ms"
    effect = "processes above the limit pause until the next period, which looks like gaps between tokens"
    return _disturbs("CPU limit", quota_text, effect, "start this container with --cpuset-cpus in place of --cpus")


def _swap(root: Path) -> Check:
    swaps = _read(root / "proc/swaps")
    if swaps is None:
        return _unknown("swap", "this machine does not show whether it has swap")
    areas = [line.split() for line in swaps.splitlines()[1:]]
    if not areas:
        return _fine("swap", "none")
    size, used = (sum(int(area[i]) for area in areas) * 1024 for i in (2, 3))
    usage_text = f"{_gib(used)} of {_gib(size)} in use"
    return _disturbs(
        "swap", usage_text, "an engine's memory may be swapped out and in during a trial", "sudo swapoff -a"
    )


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 1024**3:.1f} GiB"


def _load(wait: Callable[[float], None]) -> Check:
    """Foreign load over a second, and the process that causes most of it."""
    with contextlib.closing(CpuProbe([os.getpid()])) as probe:
        start_ns = time.monotonic_ns()
        first = probe.read(start_ns)
        if (reason := first[0].reasons.get("unused_s")) is not None:
            return _unknown("load", reason)
        before = _cpu_s()
        wait(_SAMPLE_S)
        end_ns = max(time.monotonic_ns(), start_ns + 1)
        last, after = probe.read(end_ns), _cpu_s()
    share = foreign_cpu_share([*first, *last], Window(start_ns, end_ns))
    if share.value is None:
        return _unknown("load", share.reason or "")
    if share.value <= SOME_FOREIGN_SHARE:
        return _fine("load", f"{percent_text(share.value)} of all cores")
    warned, invalid = percent_text(SOME_FOREIGN_SHARE), percent_text(MAX_FOREIGN_SHARE)
    effect = f"above {warned} trials carry a warning, above {invalid} they are INVALID"
    load_text = f"{percent_text(share.value)} of all cores"
    busiest = max(after.keys() - {os.getpid()}, key=lambda pid: after[pid] - before.get(pid, 0), default=None)
    if busiest is None:
        return Check("load", State.DISTURBS, f"{load_text}, by processes that cannot be seen from here", effect)
    try:
        name = psutil.Process(busiest).name()
    except psutil.Error:
        name = "a process that has ended"
    return _disturbs("load", f"{load_text}, busiest is {name} (pid {busiest})", effect, f"ps -fp {busiest}")


def _cpu_s() -> dict[int, float]:
    """Seconds of CPU time of each process that can be read."""
    processes = psutil.process_iter(["cpu_times"])
    return {process.pid: times.user + times.system for process in processes if (times := process.info["cpu_times"])}


def _gpus(nvml: Any) -> Iterator[Check]:  # noqa: ANN401
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        yield _fine("GPUs", f"none (NVML is not available: {error})")
        return
    for index in range(count):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        for subject, look in (("processes", _gpu_processes), ("power limit", _power_limit), ("driver", _persistence)):
            try:
                yield look(f"GPU {index} {subject}", index, nvml, handle)
            except pynvml.NVMLError as error:
                yield _unknown(f"GPU {index} {subject}", str(error))


def _gpu_processes(subject: str, _: int, nvml: Any, handle: Any) -> Check:  # noqa: ANN401
    others = [process for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle) if process.pid != os.getpid()]
    if not others:
        return _fine(subject, "none")
    pids = ", ".join(
        f"pid {process.pid}" + (f" with {_gib(used)}" if (used := process.usedGpuMemory) else "") for process in others
    )
    effect = "they share the GPU's memory, power and time with the engine"
    return _disturbs(subject, pids, effect, "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv")


def _power_limit(subject: str, index: int, nvml: Any, handle: Any) -> Check:  # noqa: ANN401
    limit_w, default_w = (
        read(handle) / 1000
        for read in (nvml.nvmlDeviceGetEnforcedPowerLimit, nvml.nvmlDeviceGetPowerManagementDefaultLimit)
    )
    if limit_w >= default_w:
        return _fine(subject, f"{limit_w:g} W")
    effect = "the GPU throttles earlier than others of its model"
    remedy = f"sudo nvidia-smi -i {index} -pl {default_w:g}"
    return _disturbs(subject, f"{limit_w:g} W instead of {default_w:g} W", effect, remedy)


def _persistence(subject: str, index: int, nvml: Any, handle: Any) -> Check:  # noqa: ANN401
    if nvml.nvmlDeviceGetPersistenceMode(handle) == pynvml.NVML_FEATURE_ENABLED:
        return _fine(subject, "stays loaded")
    effect = "engines start more slowly, and energy and throttling counters are reset"
    return _disturbs(subject, "unloaded when nothing uses it", effect, f"sudo nvidia-smi -i {index} -pm 1")
