"""AMD's GPUs through a fake of amdsmi, with the names, units and absences of its 7.0 interface."""

from enum import IntEnum
from typing import Any

import pytest

from bakeoff.harness.conduct.run import _notes_on_gpus
from bakeoff.harness.host.amd import AmdGpu, AmdRefused, open_amd_gpus
from bakeoff.harness.host.gpu import open_gpus, used_bytes, visible_to
from bakeoff.harness.telemetry.amd_probe import AmdProbe
from tests.harness.fake_nvml import FakeNvml

GIB = 1024**3


class FakeAmdSmi:
    """The module; functions named in ``refused`` fail, as those do that a chip does not support."""

    class AmdSmiException(Exception):
        """As amdsmi's, with its code."""

        def __init__(self, message: str, err_code: int) -> None:
            super().__init__(message)
            self.err_code = err_code

    class AmdSmiMemoryType(IntEnum):
        VRAM = 0

    class AmdSmiClkType(IntEnum):
        GFX = 1
        MEM = 5

    class AmdSmiTemperatureType(IntEnum):
        HOTSPOT = 1

    class AmdSmiTemperatureMetric(IntEnum):
        CURRENT = 0

    def __init__(self, count: int = 1, refused: frozenset[str] = frozenset(), **answers: Any) -> None:
        self.count = count
        self.refused = refused
        self.busy = set[str]()
        self.calls: list[str] = []
        self.answers: dict[str, Any] = {
            "amdsmi_get_gpu_device_uuid": "5cff74a1-0000-1000-80a1-000000000000",
            "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X"},
            "amdsmi_get_gpu_driver_info": {"driver_version": "6.12.12"},
            "amdsmi_get_gpu_memory_total": 192 * GIB,
            "amdsmi_get_gpu_memory_usage": 100 * GIB,
            "amdsmi_get_power_info": {"current_socket_power": 748, "average_socket_power": "N/A"},
            "amdsmi_get_energy_count": {"energy_accumulator": 2_000_000, "counter_resolution": 15.3},
            "amdsmi_get_gpu_activity": {"gfx_activity": 90, "umc_activity": 40, "mm_activity": "N/A"},
            "amdsmi_get_clock_info": {"clk": 2100, "max_clk": 2100},
            "amdsmi_get_temp_metric": 65,
            "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 3, "uncorrectable_count": 0},
            **answers,
        }

    def amdsmi_init(self) -> None:
        self._call("amdsmi_init")

    def amdsmi_get_processor_handles(self) -> list[object]:
        return [object() for _ in range(self.count)]

    def __getattr__(self, name: str) -> Any:
        if name not in self.answers:
            raise AttributeError(name)
        return lambda *_: self._call(name)

    def _call(self, name: str) -> Any:
        self.calls.append(name)
        if name in self.refused:
            raise self.AmdSmiException("Error code:\n\t2 | AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported", 2)
        if name in self.busy:
            raise self.AmdSmiException("Error code:\n\t30 | AMDSMI_STATUS_BUSY - Device busy", 30)
        return self.answers.get(name)


def gpus_of(smi: FakeAmdSmi) -> list[AmdGpu]:
    gpus, reason = open_amd_gpus(lambda: smi)
    assert reason is None
    return gpus


def test_its_values_have_our_units():
    (gpu,) = gpus_of(FakeAmdSmi())
    (record,) = AmdProbe(gpu).read(7)
    assert (record.t_ns, record.source, record.reasons) == (7, "gpu0", {})
    assert record.values == {
        "power_w": 748, "energy_j": pytest.approx(30.6), "memory_used_bytes": 100 * GIB, "utilization_gpu_share": 0.9,
        "utilization_memory_share": 0.4, "clock_sm_mhz": 2100, "clock_memory_mhz": 2100, "temperature_c": 65,
        "ecc_corrected_errors": 3, "ecc_uncorrected_errors": 0,
    }  # fmt: skip
    assert gpu.identity() == {
        "name": "AMD Instinct MI300X", "uuid": "5cff74a1-0000-1000-80a1-000000000000", "memory_bytes": 192 * GIB,
        "driver": "6.12.12",
        "reader": "amdsmi",
    }  # fmt: skip
    assert used_bytes([gpu]) == [100 * GIB]


@pytest.mark.parametrize(
    ("power", "expected"),
    [
        ({"current_socket_power": "N/A", "average_socket_power": 90}, 90),
        ({"current_socket_power": 0, "socket_power": 88, "average_socket_power": "N/A"}, 88),
        ({"current_socket_power": 0, "average_socket_power": "N/A"}, 0),
        ({"current_socket_power": "N/A", "average_socket_power": "N/A"}, None),
    ],
)
def test_the_power_of_now_comes_before_the_average(power: dict[str, Any], expected: float | None):
    (record,) = AmdProbe(gpus_of(FakeAmdSmi(amdsmi_get_power_info=power))[0]).read(0)
    assert record.values["power_w"] == expected
    assert record.reasons.get("power_w") == (None if expected is not None else "amdsmi has no power of this GPU")


def test_what_a_chip_refuses_is_null_once_with_the_reason_and_not_asked_for_again():
    smi = FakeAmdSmi(refused=frozenset({"amdsmi_get_energy_count"}))
    probe = AmdProbe(gpus_of(smi)[0])
    first, second = (probe.read(tick)[0] for tick in (0, 1))
    assert first.values["energy_j"] is None
    assert first.reasons["energy_j"] == "Error code: 2 | AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported"
    assert "energy_j" not in second.values
    assert smi.calls.count("amdsmi_get_energy_count") == 1
    assert probe.finish(9)[0].values["memory_used_bytes"] == 100 * GIB


def test_what_fails_once_is_read_again():
    smi = FakeAmdSmi()
    probe = AmdProbe(gpus_of(smi)[0])
    smi.busy = {"amdsmi_get_power_info"}
    (busy,) = probe.read(0)
    smi.busy = set()
    assert busy.values["power_w"] is None
    assert probe.finish(1)[0].values["power_w"] == 748


@pytest.mark.parametrize(
    ("function", "answer", "value"),
    [
        ("amdsmi_get_clock_info", {"cur_clk": 1500}, ("clock_sm_mhz", 1500)),
        ("amdsmi_get_clock_info", {}, ("clock_sm_mhz", None)),
        ("amdsmi_get_gpu_total_ecc_count", {"correctable_count": "N/A", "uncorrectable_count": 0},
         ("ecc_corrected_errors", None)),
        ("amdsmi_get_gpu_activity", {"gfx_activity": "N/A"}, ("utilization_gpu_share", None)),
        ("amdsmi_get_energy_count", {"power": 1_000_000, "counter_resolution": 1.0}, ("energy_j", 1.0)),
    ],
)  # fmt: skip
def test_answers_of_other_versions_end_no_sampling(function: str, answer: dict[str, Any], value: tuple[str, Any]):
    (record,) = AmdProbe(gpus_of(FakeAmdSmi(**{function: answer}))[0]).read(0)
    assert record.values[value[0]] == value[1]
    assert record.values["temperature_c"] == 65


def test_a_gpu_without_a_uuid_is_called_by_its_index_alone():
    gpus = gpus_of(FakeAmdSmi(refused=frozenset({"amdsmi_get_gpu_device_uuid"})))
    assert visible_to("GPU-5cff74a1", gpus) == []
    assert [gpu.source for gpu in visible_to("0", gpus)] == ["gpu0"]


def test_an_older_amdsmi_without_a_function_lacks_its_value_alone():
    smi = FakeAmdSmi()
    del smi.answers["amdsmi_get_gpu_total_ecc_count"]
    (record,) = AmdProbe(gpus_of(smi)[0]).read(0)
    assert record.values["ecc_corrected_errors"] is None
    assert record.values["power_w"] == 748


def test_they_are_found_where_nvidia_has_none_and_named_as_cuda_names_gpus():
    smi = FakeAmdSmi(count=3)
    gpus, reason = open_gpus(FakeNvml(count=0), lambda: open_amd_gpus(lambda: smi))
    assert reason is None
    assert [gpu.source for gpu in visible_to(None, gpus)] == ["gpu0", "gpu1", "gpu2"]
    assert [gpu.source for gpu in visible_to("2,0", gpus)] == ["gpu2", "gpu0"]
    assert [gpu.source for gpu in visible_to("GPU-5cff74a1", gpus)] == ["gpu0"]
    assert visible_to("7", gpus) == []
    nvidia, _ = open_gpus(FakeNvml(count=1), lambda: open_amd_gpus(lambda: smi))
    assert len(nvidia) == 1


def test_a_run_says_that_they_are_experimental():
    (gpu,) = gpus_of(FakeAmdSmi())
    (note,) = _notes_on_gpus({"gpus": [gpu.identity()]})
    assert note.startswith("AMD's GPUs are read through amdsmi, which is experimental")
    assert _notes_on_gpus({"gpus": [{"name": "NVIDIA H200"}]}) == _notes_on_gpus({"gpus": None}) == []


def test_it_is_named_as_hip_counts_which_is_not_amdsmis_order():
    smi = FakeAmdSmi(amdsmi_get_gpu_enumeration_info={"drm_card": 1, "hip_id": 5})
    assert [gpu.source for gpu in visible_to("5", gpus_of(smi))] == ["gpu0"]
    assert visible_to("0", gpus_of(smi)) == []


def missing() -> Any:
    raise KeyError("libamd_smi.so")


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (missing, "amdsmi is not available: 'libamd_smi.so'"),
        (lambda: FakeAmdSmi(refused=frozenset({"amdsmi_init"})), "amdsmi is not available: Error code: 2 | AMDSMI_"),
        (lambda: FakeAmdSmi(count=0), "amdsmi sees no GPU"),
    ],
)
def test_a_machine_without_them_says_why(load: Any, reason: str):
    gpus, found = open_amd_gpus(load)
    assert gpus == []
    assert found is not None
    assert found.startswith(reason)


def test_a_machine_without_any_gpu_says_what_nvml_says():
    assert open_gpus(FakeNvml(count=0), lambda: ([], "amdsmi sees no GPU")) == ([], "NVML sees no GPU")


def test_memory_that_is_refused_is_unknown():
    (gpu,) = gpus_of(FakeAmdSmi(refused=frozenset({"amdsmi_get_gpu_memory_usage"})))
    assert used_bytes([gpu]) == []
    with pytest.raises(AmdRefused):
        gpu.memory_used_bytes()
