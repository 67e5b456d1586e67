"""Readings of NVIDIA GPUs through NVML (module ``pynvml`` of nvidia-ml-py).

What each counter means, and its trap: ``utilization_gpu_share`` is the share of time with any kernel running, not
occupancy; ``power_w`` is the instant reading where the driver has it, else the one-second average; ``energy_j`` counts
since the driver was loaded and steps about every 100 ms; GPM shares (SM, tensor, DRAM) exist from Hopper on and need
two samples over 100 ms apart, so they are read at every second tick. Throttle reasons are NVML's bit mask, of the
instant; beside it stand the driver's counters of the time spent so, ``power_cap_s`` to ``power_brake_s``, which miss
nothing between two ticks.

A machine without NVML is not an error: :func:`open_gpus` then gives a reason, which is logged once. On a machine of
several GPUs those count that the engine may use (:func:`visible_to`): a neighbour's watts are not its own.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pynvml

from results.records import TelemetryRecord

Values = dict[str, float | int | str | None]
_GPM_EVERY = 2
_GPM_METRICS = {
    "gpm_sm_share": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "gpm_sm_occupancy_share": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "gpm_tensor_share": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "gpm_dram_share": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}
_HELD_BACK_NS = {
    "power_cap_s": pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP,
    "heat_driver_s": pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
    "heat_hardware_s": pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
    "power_brake_s": pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
}
"""Counters of nanoseconds since the driver was loaded; older drivers have only the first."""


def open_gpus(nvml: Any = pynvml) -> tuple[list["GpuProbe"], str | None]:  # noqa: ANN401  (a module, or a fake)
    """Every GPU of this machine, or none and the reason.

    Args:
        nvml: the NVML binding; tests pass a fake.
    """
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        return [GpuProbe(nvml, index) for index in range(count)], None if count else "NVML sees no GPU"
    except pynvml.NVMLError as error:
        return [], f"NVML is not available: {error}"


def visible_to(names: str | None, gpus: Sequence["GpuProbe"]) -> list["GpuProbe"]:
    """Those that a process with this ``CUDA_VISIBLE_DEVICES`` may use, all of them where it is not set.

    As CUDA reads it: indices, or how UUIDs begin, up to the first that is none. Indices are NVML's, which are CUDA's
    where all GPUs are alike, or under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. NVML counts no slice of a GPU (MIG) apart, so
    whoever uses one is told of all.
    """
    if names is None or names.startswith("MIG-"):
        return list(gpus)
    called = ([gpu for gpu in gpus if gpu.is_called(name.strip())][:1] for name in names.split(","))
    return [gpu for one in itertools.takewhile(bool, called) for gpu in one]


class GpuProbe:
    """One GPU."""

    def __init__(self, nvml: Any, index: int) -> None:  # noqa: ANN401
        self._nvml = nvml
        self._index = index
        self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self._source = f"gpu{index}"
        self._ticks = 0
        self._gpm: tuple[Any, Any] | None = None
        self._gpm_reason = self._open_gpm()

    def identity(self) -> dict[str, str | int]:
        """Name, UUID, memory and driver, for the record of the environment."""
        return {
            "name": _text(self._nvml.nvmlDeviceGetName(self._handle)),
            "uuid": self._uuid(),
            "memory_bytes": int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).total),
            "driver": _text(self._nvml.nvmlSystemGetDriverVersion()),
        }

    def is_called(self, name: str) -> bool:
        """Whether this is how ``CUDA_VISIBLE_DEVICES`` names it."""
        return name == str(self._index) or (name.startswith("GPU-") and self._uuid().startswith(name))

    def _uuid(self) -> str:
        return _text(self._nvml.nvmlDeviceGetUUID(self._handle))

    def memory_used_bytes(self) -> int:
        """Memory in use on it, whoever uses it."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def read(self, t_ns: int) -> list[TelemetryRecord]:
        """One record; a counter that fails is null with NVML's reason."""
        values: Values = {}
        reasons: dict[str, str] = {}
        self._collect(self._memory, ("memory_used_bytes",), values, reasons)
        self._collect(self._utilization, ("utilization_gpu_share", "utilization_memory_share"), values, reasons)
        self._collect(self._power, ("power_w",), values, reasons)
        self._collect(self._energy, ("energy_j",), values, reasons)
        self._collect(self._clocks, ("clock_sm_mhz", "clock_memory_mhz"), values, reasons)
        self._collect(self._state, ("temperature_c", "throttle_reasons"), values, reasons)
        self._ticks += 1
        if self._gpm is None:
            values.update(dict.fromkeys(_GPM_METRICS))
            reasons.update(dict.fromkeys(_GPM_METRICS, self._gpm_reason or "GPM is not supported"))
        elif self._ticks % _GPM_EVERY == 0:
            self._collect(self._read_gpm, _GPM_METRICS, values, reasons)
        return [TelemetryRecord(t_ns, self._source, values, reasons)]

    def _collect(
        self, read: Callable[[], Values], names: Iterable[str], values: Values, reasons: dict[str, str]
    ) -> None:
        try:
            values.update(read())
        except pynvml.NVMLError as error:
            values.update(dict.fromkeys(names))
            reasons.update(dict.fromkeys(names, str(error)))

    def _memory(self) -> Values:
        return {"memory_used_bytes": self.memory_used_bytes()}

    def _utilization(self) -> Values:
        rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
        return {"utilization_gpu_share": rates.gpu / 100, "utilization_memory_share": rates.memory / 100}

    def _power(self) -> Values:
        """Instant and average power, and the counters of lowered clocks; each field carries its own return code."""
        asked = [pynvml.NVML_FI_DEV_POWER_INSTANT, pynvml.NVML_FI_DEV_POWER_AVERAGE, *_HELD_BACK_NS.values()]
        fields = self._nvml.nvmlDeviceGetFieldValues(self._handle, asked)
        good = [field.value if field.nvmlReturn == pynvml.NVML_SUCCESS else None for field in fields]
        instant, average = (None if value is None else value.uiVal / 1000 for value in good[:2])
        if instant is None:
            instant = self._nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000
        held_back = zip(_HELD_BACK_NS, good[2:], strict=True)
        return {
            "power_w": instant,
            "power_average_w": average,
            **{name: value.ullVal / 1e9 for name, value in held_back if value is not None},
        }

    def _energy(self) -> Values:
        return {"energy_j": self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1000}

    def _clocks(self) -> Values:
        clock = self._nvml.nvmlDeviceGetClockInfo
        return {
            "clock_sm_mhz": clock(self._handle, pynvml.NVML_CLOCK_SM),
            "clock_memory_mhz": clock(self._handle, pynvml.NVML_CLOCK_MEM),
        }

    def _state(self) -> Values:
        return {
            "temperature_c": self._nvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU),
            "throttle_reasons": self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle),
        }

    def _open_gpm(self) -> str | None:
        """Prepare two sample buffers; returns the reason when the GPU has no GPM."""
        try:
            if not self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                return "GPM needs Hopper or newer"
            older, newer = self._nvml.nvmlGpmSampleAlloc(), self._nvml.nvmlGpmSampleAlloc()
            self._nvml.nvmlGpmSampleGet(self._handle, older)
        except pynvml.NVMLError as error:
            return f"GPM: {error}"
        self._gpm = (older, newer)
        return None

    def _read_gpm(self) -> Values:
        """Shares since the last GPM reading."""
        assert self._gpm is not None
        older, newer = self._gpm
        self._nvml.nvmlGpmSampleGet(self._handle, newer)
        request: Any = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_GPM_METRICS)
        request.sample1, request.sample2 = older, newer
        for slot, metric in enumerate(_GPM_METRICS.values()):
            request.metrics[slot].metricId = metric
        self._nvml.nvmlGpmMetricsGet(request)
        self._gpm = (newer, older)
        return {
            name: request.metrics[slot].value / 100 if request.metrics[slot].nvmlReturn == pynvml.NVML_SUCCESS else None
            for slot, name in enumerate(_GPM_METRICS)
        }


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
