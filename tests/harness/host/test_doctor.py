"""The doctor on made-up machines: what it finds, why that disturbs, and the remedy."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs
import psutil
import pynvml
import pytest

from bakeoff.harness.cli import make_app
from bakeoff.harness.cli.guarded import guarded
from bakeoff.harness.host.doctor import Check, State, examine_machine

CPUS = "sys/devices/system/cpu"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
FOREIGN_PID = 4_000_000


class Nvml:
    """One GPU of 700 W that another process uses, unless ``broken``."""

    def __init__(
        self, *, limit_w: int = 700, pids: tuple[int, ...] = (), persistent: bool = True, broken: str = ""
    ) -> None:
        self._limit_w, self._pids, self._persistent, self._broken = limit_w, pids, persistent, broken

    def nvmlInit(self) -> None:
        if self._broken == "nvmlInit":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, _: int) -> list[Any]:
        if self._broken == "processes":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return [type("Process", (), {"pid": pid, "usedGpuMemory": 3 * 1024**3})() for pid in self._pids]

    def nvmlDeviceGetEnforcedPowerLimit(self, _: int) -> int:
        return self._limit_w * 1000

    def nvmlDeviceGetPowerManagementDefaultLimit(self, _: int) -> int:
        return 700_000

    def nvmlDeviceGetPersistenceMode(self, _: int) -> int:
        return int(self._persistent)


NO_GPU = Nvml(broken="nvmlInit")


@pytest.fixture(autouse=True)
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of /proc but those that a test writes."""
    (tmp_path / "proc").mkdir()
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))


def checks_of(root: Path, nvml: Nvml = NO_GPU, meanwhile: Callable[[], None] = lambda: None) -> dict[str, Check]:
    return {check.subject: check for check in examine_machine(root, nvml, lambda _: meanwhile())}


def put(root: Path, **files: str) -> Path:
    """Files below the folder of the processors; a double underscore is a slash."""
    for name, text in files.items():
        place = root / CPUS / name.replace("__", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")
    return root


def test_a_machine_that_shows_nothing_is_unknown_and_no_error(tmp_path: Path) -> None:
    states = {subject: check.state for subject, check in checks_of(tmp_path).items()}
    unknown = dict.fromkeys(("governor", "turbo", "SMT", "CPU limit", "swap", "load"), State.UNKNOWN)
    assert states == {**unknown, "GPUs": State.FINE}


@pytest.mark.parametrize(
    ("files", "subject", "remedy"),
    [
        ({"cpu0__cpufreq__scaling_governor": "powersave"}, "governor", "sudo cpupower frequency-set -g performance"),
        ({"intel_pstate__no_turbo": "0"}, "turbo", f"echo 1 | sudo tee /{CPUS}/intel_pstate/no_turbo"),
        ({"cpufreq__boost": "1"}, "turbo", f"echo 0 | sudo tee /{CPUS}/cpufreq/boost"),
        ({"smt__active": "1", "smt__control": "on"}, "SMT", f"echo off | sudo tee /{CPUS}/smt/control"),
    ],
)
def test_a_processor_that_disturbs_comes_with_a_command(
    tmp_path: Path, files: dict[str, str], subject: str, remedy: str
) -> None:
    check = checks_of(put(tmp_path, **files))[subject]
    assert (check.state, check.remedy) == (State.DISTURBS, remedy)
    assert check.effect


@pytest.mark.parametrize(
    ("files", "subject", "words"),
    [
        ({"cpu0__cpufreq__scaling_governor": "performance"}, "governor", "performance"),
        ({"intel_pstate__no_turbo": "1"}, "turbo", "off"),
        ({"cpufreq__boost": "0"}, "turbo", "off"),
        ({"smt__active": "0", "smt__control": "off"}, "SMT", "off"),
        ({"smt__active": "0", "smt__control": "notsupported"}, "SMT", "this processor has none"),
    ],
)
def test_a_processor_that_is_set_up_is_fine(tmp_path: Path, files: dict[str, str], subject: str, words: str) -> None:
    assert checks_of(put(tmp_path, **files))[subject] == Check(subject, State.FINE, words)


def test_governors_that_differ_are_all_named(tmp_path: Path) -> None:
    put(tmp_path, cpu0__cpufreq__scaling_governor="performance", cpu11__cpufreq__scaling_governor="powersave")
    assert checks_of(tmp_path)["governor"].seen == "performance, powersave"


@pytest.mark.parametrize(
    ("files", "state", "words"),
    [
        ({"job/cpu.max": "max 100000"}, State.FINE, "none"),
        ({"job/cpu.max": "150000 100000"}, State.DISTURBS, "1.5 cores in each 100 ms"),
        ({"cpu.max": "50000 100000"}, State.DISTURBS, "0.5 cores in each 100 ms"),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, State.FINE, "none"),
        (
            {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"},
            State.DISTURBS,
            "4 cores in each 100 ms",
        ),
    ],
)
def test_a_limit_of_the_control_group(tmp_path: Path, files: dict[str, str], state: State, words: str) -> None:
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    for name, text in files.items():
        (tmp_path / "sys/fs/cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/fs/cgroup" / name).write_text(text)
    check = checks_of(tmp_path)["CPU limit"]
    assert (check.state, check.seen) == (state, words)


def test_swap_that_is_in_use(tmp_path: Path) -> None:
    swaps = tmp_path / "proc/swaps"
    swaps.write_text("Filename Type Size Used Priority\n")
    assert checks_of(tmp_path)["swap"] == Check("swap", State.FINE, "none")
    swaps.write_text("Filename Type Size Used Priority\n/dev/a partition 2097152 1048576 -2\n/b file 2097152 0 -3\n")
    check = checks_of(tmp_path)["swap"]
    assert (check.state, check.seen, check.remedy) == (State.DISTURBS, "1.0 GiB of 4.0 GiB in use", "sudo swapoff -a")


def busy(root: Path, pid: int, own_ticks: int, idle_ticks: int) -> None:
    place = root / "proc" / str(pid)
    place.mkdir(parents=True, exist_ok=True)
    fields = ["R", 1, *[0] * 9, own_ticks, 0, 0, 0, *[0] * 30]
    (place / "stat").write_text(f"{pid} (burner) {' '.join(map(str, fields))}\n")
    (root / "proc/stat").write_text(
        f"cpu  0 0 0 {idle_ticks} 0 0 0 0 0 0\ncpu0 0 0 0 {idle_ticks} 0 0 0 0 0 0\nbtime 1\n"
    )


def test_foreign_load_names_the_busiest_process(tmp_path: Path) -> None:
    """A core that is never idle while the doctor measures."""
    busy(tmp_path, FOREIGN_PID, own_ticks=10, idle_ticks=500)
    busy(tmp_path, FOREIGN_PID + 1, own_ticks=900, idle_ticks=500)  # was busy before the measurement only
    checks = checks_of(
        tmp_path, meanwhile=lambda: busy(tmp_path, FOREIGN_PID, own_ticks=10 + TICKS_PER_S, idle_ticks=500)
    )
    check = checks["load"]
    assert (check.state, check.remedy) == (State.DISTURBS, f"ps -fp {FOREIGN_PID}")
    assert check.seen == f"100 % of all cores, busiest is burner (pid {FOREIGN_PID})"


def test_a_quiet_machine_is_fine(tmp_path: Path) -> None:
    busy(tmp_path, FOREIGN_PID, own_ticks=10, idle_ticks=500)
    assert checks_of(tmp_path, meanwhile=lambda: busy(tmp_path, FOREIGN_PID, 10, 10**9))["load"].state is State.FINE


@pytest.mark.parametrize(
    ("nvml", "subject", "words", "remedy"),
    [
        (Nvml(limit_w=350), "GPU 0 power limit", "350 W instead of 700 W", "sudo nvidia-smi -i 0 -pl 700"),
        (Nvml(persistent=False), "GPU 0 driver", "unloaded when nothing uses it", "sudo nvidia-smi -i 0 -pm 1"),
        (Nvml(pids=(7, 9)), "GPU 0 processes", "pid 7 with 3.0 GiB, pid 9 with 3.0 GiB",
         "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv"),
    ],
)  # fmt: skip
def test_a_gpu_that_is_held_back_or_shared(tmp_path: Path, nvml: Nvml, subject: str, words: str, remedy: str) -> None:
    check = checks_of(tmp_path, nvml)[subject]
    assert (check.state, check.seen, check.remedy) == (State.DISTURBS, words, remedy)


def test_a_gpu_of_ones_own_is_fine_and_what_it_does_not_tell_is_unknown(tmp_path: Path) -> None:
    own = [check for subject, check in checks_of(tmp_path, Nvml()).items() if subject.startswith("GPU")]
    assert [check.state for check in own] == [State.FINE] * 3
    assert checks_of(tmp_path, Nvml(broken="processes"))["GPU 0 processes"].state is State.UNKNOWN


def test_the_command_prints_one_line_for_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = [
        Check("turbo", State.DISTURBS, "on", "clocks vary", "echo 1"),
        Check("swap", State.FINE, "none"),
        Check("SMT", State.UNKNOWN, "not shown"),
    ]
    monkeypatch.setattr("bakeoff.harness.host.doctor.examine_machine", lambda: checks)
    app = make_app()
    assert app("doctor", result_action="return_value") == 1
    *lines, cache, proxy = capsys.readouterr().out.splitlines()
    assert lines == [
        "disturbs  turbo: on; clocks vary → echo 1", "fine      swap: none", "unknown   SMT: not shown",
    ]  # fmt: skip
    assert cache.startswith(f"fine      cache: {platformdirs.user_cache_path('bakeoff')}: ")
    assert proxy.startswith("fine      proxy: ")
    assert app(["doctor", "--json"], result_action="return_value") == 1
    assert [check["subject"] for check in json.loads(capsys.readouterr().out)] == [
        "turbo", "swap", "SMT", "cache", "proxy",
    ]  # fmt: skip


@pytest.mark.parametrize(("state", "code"), [(State.FINE, 0), (State.UNKNOWN, 0), (State.DISTURBS, 1)])
def test_the_exit_code_tells_a_job_whether_to_measure(
    state: State, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = [Check("SMT", State.FINE, "none"), Check("load", state, "98 %")]
    monkeypatch.setattr("bakeoff.harness.host.doctor.examine_machine", lambda: checks)
    assert guarded(make_app(), ["doctor"]) == code
    assert "98 %" in capsys.readouterr().out
