"""Readings of NVIDIA GPUs through NVML (module ``pynvml`` of nvidia-ml-py).

Caveats per counter: ``utilization_gpu_share`` is the fraction of time with any kernel running, not occupancy.
``power_w`` is the instantaneous reading if the driver has it, else the one-second average. ``energy_j`` counts since
the driver was loaded, in steps of about 100 ms. GPM shares (SM, tensor, DRAM) exist from Hopper on and need two samples
more than 100 ms apart, so they are read at every second tick. Throttle reasons are NVML's bit mask at the instant; the
driver's counters of throttled time, ``power_cap_s`` to ``power_brake_s``, also cover the time between ticks.

A machine without NVML is not an error: :func:`open_gpus` then returns a reason, which is logged once. Only GPUs that
the engine may use are read (:func:`visible_to`).
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
_THROTTLED_NS = {
    "power_cap_s": pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP,
    "heat_driver_s": pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
    "heat_hardware_s": pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
    "power_brake_s": pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
}
"""NVML counters of throttled nanoseconds since the driver was loaded; older drivers have only the first."""


def open_gpus(nvml: Any = pynvml) -> tuple[list["GpuProbe"], str | None]:  # noqa: ANN401  (a module, or a fake)
    """Every GPU of this machine, or no GPU and the reason.

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
    """GPUs that a process with this ``CUDA_VISIBLE_DEVICES`` may use; all if it is not set.

    Read as CUDA does: indices or prefixes of UUIDs, up to the first invalid one. Indices are NVML's; they equal CUDA's
    if all GPUs are of one model, or under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. NVML has no counters per MIG slice, so for
    those all GPUs are returned.
    """
    if names is None or names.startswith("MIG-"):
        return list(gpus)
    matches = ([gpu for gpu in gpus if gpu.is_called(name.strip())][:1] for name in names.split(","))
    return [gpu for match in itertools.takewhile(bool, matches) for gpu in match]


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
        """Name, UUID, memory and driver version."""
        return {
            "name": _text(self._nvml.nvmlDeviceGetName(self._handle)),
            "uuid": self._uuid(),
            "memory_bytes": int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).total),
            "driver": _text(self._nvml.nvmlSystemGetDriverVersion()),
        }

    def is_called(self, name: str) -> bool:
        """Whether ``name``, from ``CUDA_VISIBLE_DEVICES``, means this GPU."""
        return name == str(self._index) or (name.startswith("GPU-") and self._uuid().startswith(name))

    def _uuid(self) -> str:
        return _text(self._nvml.nvmlDeviceGetUUID(self._handle))

    def memory_used_bytes(self) -> int:
        """Memory in use by all processes."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def read(self, t_ns: int) -> list[TelemetryRecord]:
        """One record; a counter that cannot be read is null with NVML's reason."""
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
        """Instant and average power, and throttled time; each field has its own return code."""
        field_ids = [pynvml.NVML_FI_DEV_POWER_INSTANT, pynvml.NVML_FI_DEV_POWER_AVERAGE, *_THROTTLED_NS.values()]
        fields = self._nvml.nvmlDeviceGetFieldValues(self._handle, field_ids)
        fetched = [field.value if field.nvmlReturn == pynvml.NVML_SUCCESS else None for field in fields]
        instant, average = (None if value is None else value.uiVal / 1000 for value in fetched[:2])
        if instant is None:
            instant = self._nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000
        throttled = zip(_THROTTLED_NS, fetched[2:], strict=True)
        return {
            "power_w": instant,
            "power_average_w": average,
            **{name: value.ullVal / 1e9 for name, value in throttled if value is not None},
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
        """Prepare two sample buffers; returns the reason if the GPU has no GPM."""
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
