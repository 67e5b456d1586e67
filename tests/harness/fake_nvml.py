"""A fake NVML that answers as recorded from GPUs of 700 W; each test states what its GPU lacks."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pynvml

S = 1_000_000_000
ULL, UINT = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
MEMBER = {ULL: "ullVal", UINT: "uiVal"}
POWER_CAP = pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP
DRIVER_HEAT = pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN
HARDWARE_HEAT = pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN
BRAKE = pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
RELIABILITY = pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY
PCIE_TX, PCIE_RX = pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES
NVLINK_TX = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
NVLINK_RX = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
FIELDS = {
    pynvml.NVML_FI_DEV_POWER_INSTANT: (UINT, 700_000),
    pynvml.NVML_FI_DEV_POWER_AVERAGE: (UINT, 690_000),
    POWER_CAP: (ULL, 3 * S),
    DRIVER_HEAT: (ULL, S // 4),
    HARDWARE_HEAT: (ULL, 0),
    BRAKE: (ULL, 0),
    **dict.fromkeys(range(pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL, RELIABILITY), (ULL, 0)),
    RELIABILITY: (ULL, 2 * S),
    pynvml.NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS: (ULL, 5 * S),
    pynvml.NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS: (ULL, 0),
    PCIE_TX: (UINT, 100),
    PCIE_RX: (UINT, 200),
    NVLINK_TX: (ULL, 3),
    NVLINK_RX: (ULL, 4),
}
"""Type and value by field; a field that is missing is not supported."""


class FakeNvml:
    """Calls named in ``broken`` fail as a driver without permission does, those in ``missing`` as an older driver.

    Attributes:
        fields: as :data:`FIELDS`.
        policies: nanoseconds by performance policy, of drivers without the fields.
        slices: GPU instance and compute instance of each MIG slice of each GPU; None: not in MIG mode.
        pending: whether remapped rows wait for a reset.
        ecc: corrected and uncorrected errors.
        events: to be reported.
        calls: how often each function was called.
        failing: functions that fail for now, with NVML's code.
        failing_fields: fields that fail for now, with NVML's code.
        refused_metrics: of GPM.
    """

    def __init__(
        self,
        *,
        count: int = 1,
        gpm: bool = True,
        broken: frozenset[str] = frozenset(),
        missing: frozenset[str] = frozenset(),
        slices: tuple[tuple[int, int], ...] | None = None,
    ) -> None:
        self._count, self._gpm, self._broken, self._missing = count, gpm, broken, missing
        self.fields = dict(FIELDS)
        self.policies: dict[int, int] = {}
        self.slices = slices
        self.ecc = [7, 0]
        self.pending = 0
        self.total = 80
        self.events: list[Any] = []
        self.calls: Counter[str] = Counter()
        self.failing: dict[str, int] = {}
        self.failing_fields: dict[int, int] = {}
        self.refused_metrics: set[int] = set()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            self.calls[name] += 1
            if name in self.failing:
                raise pynvml.NVMLError(self.failing[name])
            if name in self._broken:
                raise pynvml.NVMLError_NoPermission
            if name in self._missing:
                raise pynvml.NVMLError_FunctionNotFound
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return self._count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return index

    def nvmlDeviceGetName(self, handle: Any) -> bytes:
        return b"NVIDIA Fake"

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return f"GPU-{handle}a{handle}" if isinstance(handle, int) else f"MIG-{handle[0]}b{handle[1]}"

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580"

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        if isinstance(handle, int):
            return SimpleNamespace(used=min(7, self.total), total=self.total)
        return SimpleNamespace(used=2 + handle[1], total=10)

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [int(self.slices is not None)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> tuple[int, int]:
        if index >= len(self.slices or ()):
            raise pynvml.NVMLError_NotFound
        return handle, index

    def nvmlDeviceGetGpuInstanceId(self, handle: tuple[int, int]) -> int:
        return (self.slices or ())[handle[1]][0]

    def nvmlDeviceGetComputeInstanceId(self, handle: tuple[int, int]) -> int:
        return (self.slices or ())[handle[1]][1]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=50, memory=25)

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[tuple[int, int]]) -> list[Any]:
        return [self._field(*field) for field in fields]

    def _field(self, number: int, scope: int) -> Any:
        assert scope == (0xFFFFFFFF if number in {NVLINK_TX, NVLINK_RX} else 0), "of NVLink: the sum of all links"
        refusal = self.failing_fields.get(number, 0 if number in self.fields else pynvml.NVML_ERROR_NOT_SUPPORTED)
        if refusal:
            return SimpleNamespace(nvmlReturn=refusal, value=None)
        kind, value = self.fields[number]
        return SimpleNamespace(
            nvmlReturn=0, valueType=kind, value=SimpleNamespace(**{MEMBER.get(kind, "unknown"): value})
        )

    def nvmlDeviceGetViolationStatus(self, handle: int, policy: int) -> Any:
        if policy not in self.policies:
            raise pynvml.NVMLError_NotSupported
        return SimpleNamespace(referenceTime=1, violationTime=self.policies[policy])

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 650_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return 5_000

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return 1980

    def nvmlDeviceGetTemperature(self, handle: int, kind: int) -> int:
        return 40

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return 4

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 8

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        assert counter == pynvml.NVML_VOLATILE_ECC
        return self.ecc[kind]

    def nvmlDeviceGetRemappedRows(self, handle: int) -> tuple[int, int, int, int]:
        return 1, 0, self.pending, 0

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: int) -> int:
        return 1

    def nvmlDeviceGetSupportedEventTypes(self, handle: int) -> int:
        return pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: str) -> None:
        assert kinds == self.nvmlDeviceGetSupportedEventTypes(handle)

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Any:
        assert timeout_ms == 0, "a tick never waits"
        if not self.events:
            raise pynvml.NVMLError_Timeout
        return self.events.pop(0)

    def nvmlEventSetFree(self, events: str) -> None: ...

    def nvmlGpmQueryDeviceSupport(self, handle: int) -> Any:
        return SimpleNamespace(isSupportedDevice=self._gpm)

    def nvmlGpmSampleAlloc(self) -> Any:
        return pynvml.c_nvmlGpmSample_t()

    def nvmlGpmSampleGet(self, handle: int, sample: Any) -> None: ...

    def nvmlGpmMigSampleGet(self, handle: int, instance: int, sample: Any) -> None: ...

    def nvmlGpmMetricsGet(self, request: Any) -> None:
        for metric in request.metrics[: request.numMetrics]:
            metric.value = 90.0
            metric.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if metric.metricId in self.refused_metrics else 0

    def nvmlGpmSampleFree(self, sample: Any) -> None: ...


def xid(number: int, instance: int = 0xFFFFFFFF) -> Any:
    """An XID event, by default of no MIG slice."""
    kind = pynvml.nvmlEventTypeXidCriticalError
    return SimpleNamespace(eventType=kind, eventData=number, gpuInstanceId=instance, computeInstanceId=0xFFFFFFFF)


def double_bit_error() -> Any:
    """An ECC event."""
    return SimpleNamespace(eventType=pynvml.nvmlEventTypeDoubleBitEccError, eventData=0, gpuInstanceId=0xFFFFFFFF)
