"""Readings of GPUs from recorded answers of NVML."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

import bakeoff.harness.telemetry.__main__ as sampler_process
from bakeoff.harness.host.gpu import open_gpus, used_bytes, visible_to
from bakeoff.harness.host.machine_state import machine_findings
from bakeoff.harness.telemetry.gpu_probe import GpuProbe
from bakeoff.harness.telemetry.nvml_fields import HELD_BACK, LINKS, POLICIES
from bakeoff.harness.telemetry.orders import Sample
from bakeoff.results.files.jsonl import read_log
from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, Severity
from bakeoff.results.metrics.machine import held_back
from bakeoff.results.records import TelemetryRecord, Window
from tests.harness.fake_nvml import (
    DRIVER_HEAT,
    NVLINK_TX,
    PCIE_TX,
    RELIABILITY,
    UINT,
    ULL,
    FakeNvml,
    S,
    double_bit_error,
    xid,
)


def instant() -> float:
    """A clock by which no reading is too dear to repeat at the next tick, however busy the machine is."""
    return 0.0


def probe(nvml: FakeNvml, names: str | None = None) -> GpuProbe:
    (gpu,) = visible_to(names, open_gpus(nvml)[0])
    return GpuProbe(gpu, instant)


def reads(gpu: GpuProbe, ticks: int = 1) -> list[Any]:
    """The records of the ticks without those of XID errors."""
    return [gpu.read(t)[0] for t in range(ticks)]


def test_a_gpu_reads_every_counter() -> None:
    gpus, reason = open_gpus(FakeNvml())
    assert reason is None
    assert gpus[0].identity() == {"name": "NVIDIA Fake", "uuid": "GPU-0a0", "memory_bytes": 80, "driver": "580"}
    first, second, third = reads(GpuProbe(gpus[0], instant), 3)
    assert first.values == pytest.approx({
        "memory_used_bytes": 7, "utilization_gpu_share": 0.5, "utilization_memory_share": 0.25,
        "clock_sm_mhz": 1980, "clock_memory_mhz": 1980, "temperature_c": 40, "throttle_reasons": 4,
        "power_w": 700, "power_average_w": 690, "energy_j": 5,
        "power_cap_s": 3.0, "heat_driver_s": 0.25, "heat_hardware_s": 0, "power_brake_s": 0,
        "heat_limit_s": 0, "sync_boost_s": 0, "board_limit_s": 0, "low_utilization_s": 0, "reliability_limit_s": 2,
        "below_app_clocks_s": 5, "below_base_clocks_s": 0,
        "pcie_tx_bytes": 100, "pcie_rx_bytes": 200, "nvlink_tx_bytes": 3072, "nvlink_rx_bytes": 4096,
        "ecc_corrected_errors": 7, "ecc_uncorrected_errors": 0, "memory_repair_pending": 0,
    })  # fmt: skip
    assert {name for name in second.values if name not in first.values} == {
        "gpm_sm_share", "gpm_sm_occupancy_share", "gpm_tensor_share", "gpm_dram_share",
    }, "the counters have the traffic"  # fmt: skip
    assert second.values["gpm_tensor_share"] == pytest.approx(0.9)
    assert "gpm_sm_share" not in third.values, "every second tick: samples must be over 100 ms apart"
    assert first.reasons == second.reasons == {}


def test_what_changes_slowly_is_read_once_a_second_and_at_the_end() -> None:
    gpu = probe(FakeNvml())
    slow = {"ecc_corrected_errors", "memory_repair_pending", "power_average_w", *POLICIES}
    assert [bool(slow & set(record.values)) for record in reads(gpu, 12)] == [True] + [False] * 9 + [True, False]
    (last,) = gpu.finish(12)
    assert slow <= set(last.values)
    assert "gpm_sm_share" not in last.values


@pytest.mark.parametrize(
    ("slow", "cost_s", "every"),
    [
        ("nvmlDeviceGetTotalEnergyConsumption", 0.000_1, 1),
        ("nvmlDeviceGetTotalEnergyConsumption", 0.001_2, 3),
        ("nvmlDeviceGetTotalEnergyConsumption", 0.05, 4),
        ("nvmlDeviceGetUtilizationRates", 0.05, 10),
    ],
)
def test_a_reading_that_takes_long_is_made_seldom_and_at_the_end(slow: str, cost_s: float, every: int) -> None:
    nvml = FakeNvml()
    (gpu,) = visible_to(None, open_gpus(nvml)[0])
    sampler = GpuProbe(gpu, lambda: cost_s * nvml.calls[slow])
    value = {"nvmlDeviceGetTotalEnergyConsumption": "energy_j"}.get(slow, "utilization_gpu_share")
    read = [tick for tick, record in enumerate(reads(sampler, 21)) if value in record.values]
    assert read == list(range(0, 21, every))
    assert value in sampler.finish(21)[0].values


@pytest.mark.parametrize(
    ("names", "sources"),
    [
        (None, ["gpu0", "gpu1", "gpu2"]),
        ("2,0", ["gpu2", "gpu0"]),
        ("GPU-1a", ["gpu1"]),
        ("0, 7,1", ["gpu0"]),  # CUDA stops at the first that is none
        ("-1", []),
        ("", []),
        ("MIG-0b0", []),
    ],
)
def test_an_engines_gpus_are_those_that_it_may_use(names: str | None, sources: list[str]) -> None:
    gpus, _ = open_gpus(FakeNvml(count=3))
    assert [GpuProbe(gpu).read(0)[0].source for gpu in visible_to(names, gpus)] == sources


def test_a_counter_that_is_refused_is_null_with_the_reason_and_is_not_asked_for_again() -> None:
    nvml = FakeNvml(broken=frozenset({"nvmlDeviceGetTotalEnergyConsumption"}))
    first, second = reads(probe(nvml), 2)
    assert first.values["energy_j"] is None
    assert "Permission" in first.reasons["energy_j"]
    assert first.values["power_w"] == 700
    assert "energy_j" not in second.values
    assert nvml.calls["nvmlDeviceGetTotalEnergyConsumption"] == 1


def test_a_gpu_in_the_hosts_memory_has_no_memory_of_its_own() -> None:
    nvml = FakeNvml(missing=frozenset({"nvmlDeviceGetMemoryInfo"}))
    gpus, _ = open_gpus(nvml)
    assert gpus[0].identity()["memory_bytes"] is None
    assert used_bytes(gpus) == []
    (record,) = reads(GpuProbe(gpus[0], instant))
    assert record.reasons == {"memory_used_bytes": "Function Not Found"}
    nvml = FakeNvml()
    nvml.total = 0  # as some drivers say instead of refusing
    gpus, _ = open_gpus(nvml)
    assert gpus[0].identity()["memory_bytes"] is None
    assert used_bytes(gpus) == []
    (record,) = reads(GpuProbe(gpus[0], instant))
    assert record.reasons == {"memory_used_bytes": "Not Supported"}


def test_a_counter_that_fails_for_a_while_comes_back() -> None:
    nvml = FakeNvml()
    gpu = probe(nvml)
    nvml.failing = {"nvmlDeviceGetTemperature": pynvml.NVML_ERROR_UNKNOWN}
    (failed,) = reads(gpu)
    nvml.failing = {}
    (again,) = reads(gpu)
    assert failed.values["temperature_c"] is None
    assert failed.reasons["temperature_c"] == "Unknown Error"
    assert again.values["temperature_c"] == 40


def test_heat_of_an_older_driver_before_the_window_is_not_counted_into_it() -> None:
    """All of it lies between the readings of 0.2 and 0.3 s; the window begins at 0.5 s."""
    nvml, tick_ns, records = FakeNvml(), S // 10, list[TelemetryRecord]()
    nvml.fields = {}
    gpu = probe(nvml)
    for tick in range(21):
        nvml.policies = {pynvml.NVML_PERF_POLICY_THERMAL: 0 if tick < 3 else S // 10}
        records += gpu.read(tick * tick_ns)
    (limited,) = held_back(records, Window(5 * tick_ns, 20 * tick_ns))
    assert limited.heat_or_brake_s == 0


def test_a_driver_without_the_fields_may_have_the_older_counters() -> None:
    """The power cap and reliability are counted by violation status, board limit by nothing; none of them is 0."""
    nvml = FakeNvml()
    nvml.fields = {DRIVER_HEAT: nvml.fields[DRIVER_HEAT]}
    nvml.policies = {pynvml.NVML_PERF_POLICY_POWER: 4 * S, pynvml.NVML_PERF_POLICY_RELIABILITY: 6 * S}
    first, second = reads(probe(nvml), 2)
    assert {name: first.values[name] for name in (*HELD_BACK, "reliability_limit_s", "board_limit_s")} == {
        "power_cap_s": 4.0, "heat_driver_s": 0.25, "heat_hardware_s": None, "power_brake_s": None,
        "heat_limit_s": None, "reliability_limit_s": 6.0, "board_limit_s": None,
    }  # fmt: skip
    assert first.reasons["heat_hardware_s"] == first.reasons["board_limit_s"] == "Not Supported"
    assert first.values["power_w"] == 650, "the average of a second"
    assert "power_w" not in first.reasons
    assert set(HELD_BACK) & set(second.values) == {"power_cap_s", "heat_driver_s"}


@pytest.mark.parametrize("refusal", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT])
def test_a_driver_that_refuses_the_whole_call_has_the_older_counters(refusal: int) -> None:
    nvml = FakeNvml()
    nvml.failing = {"nvmlDeviceGetFieldValues": refusal}
    nvml.policies = {pynvml.NVML_PERF_POLICY_POWER: 4 * S}
    gpu = probe(nvml)
    first, second = reads(gpu, 2)
    assert (first.values["power_cap_s"], first.values["power_w"]) == (4.0, 650)
    assert first.values["heat_driver_s"] is None
    assert first.values["pcie_tx_bytes"] is None
    assert (second.values["power_cap_s"], second.values["power_w"]) == (4.0, 650)
    assert second.reasons == {}


def test_a_field_that_fails_at_the_first_tick_comes_back() -> None:
    """So do the older counter and all fields of a call that fails."""
    nvml = FakeNvml()
    del nvml.fields[RELIABILITY]
    nvml.policies = {pynvml.NVML_PERF_POLICY_RELIABILITY: 6 * S}
    nvml.failing_fields = {DRIVER_HEAT: pynvml.NVML_ERROR_TIMEOUT, NVLINK_TX: pynvml.NVML_ERROR_UNKNOWN}
    nvml.failing = {"nvmlDeviceGetViolationStatus": pynvml.NVML_ERROR_TIMEOUT}
    gpu = probe(nvml)
    (failed,) = reads(gpu)
    nvml.failing_fields, nvml.failing = {}, {"nvmlDeviceGetFieldValues": pynvml.NVML_ERROR_TIMEOUT}
    (none,) = reads(gpu)
    nvml.failing = {}
    (again,) = reads(gpu)
    (last,) = gpu.finish(3)
    assert failed.reasons == {
        "heat_driver_s": "Timeout", "nvlink_tx_bytes": "Unknown Error", "reliability_limit_s": "Timeout",
    }  # fmt: skip
    assert none.values["pcie_tx_bytes"] is None
    assert (again.values["heat_driver_s"], again.values["nvlink_tx_bytes"]) == (0.25, 3072)
    assert last.values["reliability_limit_s"] == 6.0


def test_an_old_driver_knows_throttle_reasons_by_their_old_name() -> None:
    (record,) = reads(probe(FakeNvml(missing=frozenset({"nvmlDeviceGetCurrentClocksEventReasons"}))))
    assert record.values["throttle_reasons"] == 8


@pytest.mark.parametrize(
    ("kind", "continued"),
    [(UINT, [2**32 - 10, 2**32 + 5, 2**32 + 7]), (ULL, [2**32 - 10, 5, 7])],  # 64 bits: the driver was loaded again
)
def test_a_pcie_counter_of_32_bits_is_continued_when_it_wraps(kind: int, continued: list[int]) -> None:
    nvml, values = FakeNvml(), list[int]()
    gpu = probe(nvml)
    for raw in (2**32 - 10, 5, 7):
        nvml.fields[PCIE_TX] = (kind, raw)
        values += [record.values["pcie_tx_bytes"] for record in reads(gpu)]
    assert values == continued


def test_a_field_of_an_unknown_type_is_absent() -> None:
    nvml = FakeNvml()
    nvml.fields[PCIE_TX] = (99, 1)
    (record,) = reads(probe(nvml))
    assert record.values["pcie_tx_bytes"] is None
    assert record.reasons["pcie_tx_bytes"] == "NVML answers with a value of the unknown type 99"


def test_a_gpm_metric_that_is_refused_is_absent_once() -> None:
    nvml = FakeNvml()
    nvml.refused_metrics = {pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL}
    _, second, _, fourth = reads(probe(nvml), 4)
    assert second.values["gpm_dram_share"] is None
    assert set(second.reasons.values()) == {"Not Supported"}
    assert "gpm_dram_share" not in fourth.values
    assert fourth.values["gpm_sm_share"] == pytest.approx(0.9)


def test_gpm_frees_its_samples_if_it_cannot_fill_them() -> None:
    nvml = FakeNvml(broken=frozenset({"nvmlGpmSampleGet"}))
    (record,) = reads(probe(nvml))
    assert record.reasons["gpm_sm_share"] == "GPM, which needs Hopper or newer: Insufficient Permissions"
    assert nvml.calls["nvmlGpmSampleFree"] == nvml.calls["nvmlGpmSampleAlloc"] == 2


def test_a_gpu_without_nvlink_or_gpm_says_so_once() -> None:
    nvml = FakeNvml(gpm=False)
    del nvml.fields[NVLINK_TX]
    first, second = reads(probe(nvml), 2)
    assert first.reasons["nvlink_tx_bytes"] == "Not Supported"
    assert first.reasons["gpm_sm_share"] == "GPM, which needs Hopper or newer: Not Supported"
    assert second.reasons == {}
    assert second.values["pcie_tx_bytes"] == 100


def test_no_nvml_is_a_reason_not_an_error() -> None:
    gpus, reason = open_gpus(FakeNvml(broken=frozenset({"nvmlInit"})))
    assert gpus == []
    assert reason is not None
    assert reason.startswith("NVML is not available: ")


def test_xid_errors_are_records_of_their_own() -> None:
    nvml = FakeNvml()
    gpu = probe(nvml)
    nvml.events = [xid(31), xid(79)]
    assert [record.values for record in gpu.read(5)[1:]] == [{"xid": 31}, {"xid": 79}]
    assert len(gpu.read(6)) == 1
    gpu.close()
    assert nvml.calls["nvmlEventSetFree"] == 1
    assert nvml.calls["nvmlGpmSampleFree"] == 2


def test_errors_without_end_do_not_hold_up_a_tick() -> None:
    nvml = FakeNvml()
    gpu = probe(nvml)
    nvml.events = [xid(13)] * 100
    assert len(gpu.read(0)) == 1 + 16
    assert len(nvml.events) == 84


def test_an_ecc_event_has_the_counters_read_at_once() -> None:
    nvml = FakeNvml()
    gpu = probe(nvml)
    reads(gpu, 2)
    nvml.ecc[1], nvml.events = 1, [double_bit_error()]
    (record,) = gpu.read(3)
    assert record.values["ecc_uncorrected_errors"] == 1


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        ("nvmlDeviceGetSupportedEventTypes", "Insufficient Permissions"),
        ("nvmlDeviceRegisterEvents", "Insufficient Permissions"),
        ("nvmlEventSetWait_v2", "Insufficient Permissions"),
    ],
)
def test_events_that_cannot_be_watched_are_absent_with_the_reason(refused: str, reason: str) -> None:
    nvml = FakeNvml(broken=frozenset({refused}))
    gpu = probe(nvml)
    first, second = (record for tick in range(2) for record in gpu.read(tick))
    assert first.values["xid"] is None
    assert first.reasons["xid"] == reason
    assert "xid" not in second.values
    gpu.close()
    assert nvml.calls["nvmlEventSetFree"] == nvml.calls["nvmlEventSetCreate"]


def test_memory_waits_for_a_repair_in_rows_or_on_older_gpus_in_pages() -> None:
    nvml = FakeNvml()
    nvml.pending = 1
    older = FakeNvml(broken=frozenset({"nvmlDeviceGetRemappedRows"}))
    assert [reads(probe(gpu))[0].values["memory_repair_pending"] for gpu in (FakeNvml(), nvml, older)] == [0, 1, 1]


TWO_SLICES, ONE_SLICE = ((1, 0), (2, 0)), ((1, 0),)


@pytest.mark.parametrize(
    ("slices", "names", "sources"),
    [
        (TWO_SLICES, "MIG-0b1", ["gpu0.1"]),
        (TWO_SLICES, "MIG-GPU-0a0/2/0", ["gpu0.1"]),
        (TWO_SLICES, "MIG-0b1,MIG-0b0", ["gpu0.1"]),  # CUDA sees the first slice of the list
        (TWO_SLICES, "MIG-GPU-0a0/2/1", []),
        (TWO_SLICES, "MIG-7", []),
        (TWO_SLICES, "0", ["gpu0.0"]),  # CUDA uses the first slice
        (TWO_SLICES, None, ["gpu0.0"]),
        ((), None, []),
    ],
)
def test_mig_slices_go_by_their_names(
    slices: tuple[tuple[int, int], ...], names: str | None, sources: list[str]
) -> None:
    gpus, _ = open_gpus(FakeNvml(slices=slices))
    assert [gpu.source for gpu in visible_to(names, gpus)] == sources


@pytest.mark.parametrize(("names", "sources"), [(None, ["gpu1.0"]), ("0,1", ["gpu1.0"]), ("0", ["gpu0"])])
def test_cuda_sees_one_slice_and_then_no_other_gpu(names: str | None, sources: list[str]) -> None:
    """The first GPU is whole, the others are in MIG mode."""
    gpus = [*open_gpus(FakeNvml())[0], *open_gpus(FakeNvml(count=3, slices=TWO_SLICES))[0][1:]]
    assert [gpu.source for gpu in visible_to(names, gpus)] == sources


def test_a_slice_has_its_own_memory_and_no_power_of_others() -> None:
    nvml = FakeNvml(slices=TWO_SLICES)
    (gpu,) = visible_to("MIG-0b1", open_gpus(nvml)[0])
    assert gpu.memory_used_bytes() == 3
    assert gpu.identity()["memory_bytes"] == 10
    first, second = reads(GpuProbe(gpu, instant), 2)
    assert first.values["memory_used_bytes"] == 3
    for name in ("power_w", "power_average_w", "energy_j", *LINKS):
        assert first.values[name] is None
        assert first.reasons[name] == "NVML counts it for the whole GPU, and other MIG slices share the GPU", name
    assert first.values["power_cap_s"] == 3.0, "the clock is the chip's"
    assert second.values["gpm_sm_share"] == pytest.approx(0.9)
    assert nvml.calls["nvmlGpmMigSampleGet"] == 2
    assert nvml.calls["nvmlDeviceGetTotalEnergyConsumption"] == 0


@pytest.mark.parametrize(
    ("slices", "name", "code", "severity"),
    [
        (TWO_SLICES, "MIG-0b1", FindingCode.ECC_UNCORRECTED_OF_CHIP, Severity.NOTE),
        (ONE_SLICE, "MIG-0b0", FindingCode.ECC_UNCORRECTED, Severity.INVALID),
        (None, "0", FindingCode.ECC_UNCORRECTED, Severity.INVALID),
    ],
)
def test_memory_errors_of_a_chip_void_no_trial_of_one_of_its_slices(
    slices: tuple[tuple[int, int], ...] | None, name: str, code: FindingCode, severity: Severity
) -> None:
    nvml = FakeNvml(slices=slices)
    gpu = probe(nvml, name)
    before = gpu.read(0)
    nvml.ecc[1] = 2
    (finding,) = machine_findings([*before, *gpu.finish(S)], Window(0, S))
    assert finding == Finding(code, severity, {"gpu": before[0].source, "errors": 2})


def test_the_only_slice_has_the_gpus_power_to_itself() -> None:
    (record,) = reads(probe(FakeNvml(slices=ONE_SLICE)))
    assert record.source == "gpu0.0"
    assert (record.values["memory_used_bytes"], record.values["energy_j"]) == (2, 5)


def test_errors_of_other_slices_are_left_out() -> None:
    nvml = FakeNvml(slices=TWO_SLICES)
    gpu = probe(nvml, "MIG-0b1")
    nvml.events = [xid(31, instance=1), xid(43, instance=2), xid(79)]
    assert [record.values["xid"] for record in gpu.read(0)[1:]] == [43, 79]


def test_the_sampler_reads_gpus_at_each_tick_and_once_more_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeNvml()
    gpu = probe(nvml)
    waits = iter([False, True])  # one tick, then an order
    ready = SimpleNamespace(select=lambda *_: ([0] if next(waits) else [], [], []))
    monkeypatch.setattr(sampler_process, "select", ready)
    stop = Sample(2, None)
    order = Sample(1, str(tmp_path / "telemetry.jsonl"))
    assert sampler_process._sample(order, iter([stop]), [], [gpu], None) is stop
    records = read_log(tmp_path / "telemetry.jsonl", TelemetryRecord).records
    assert [record.source for record in records] == ["cpu", "gpu0", "cpu", "gpu0", "sampler"]
    assert all("ecc_corrected_errors" in record.values for record in records if record.source == "gpu0")
