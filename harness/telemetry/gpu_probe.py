"""Readings of one GPU or MIG slice during one trial.

Caveats per counter: ``utilization_gpu_share`` is the fraction of time with any kernel running, not occupancy.
``power_w`` is the instantaneous reading if the driver has it, else the one-second average. ``energy_j`` counts since
the driver was loaded, in steps of about 100 ms. Throttle reasons are NVML's bit mask at the instant; the driver's
counters of throttled time also cover the time between ticks.

Not everything is read at every tick: GPM needs more than 100 ms between samples, and values that change slowly are read
once a second. Some drivers take milliseconds of a core for a reading (driver 580 in a virtual machine: 4 ms for the
energy counter of an H200); the longer a reading takes, the less often it is made. NVML counts power, energy and traffic
for the whole chip, so a MIG slice that shares its chip has none of them; clocks, temperature and throttling are the
chip's and apply to each slice. Memory errors are the chip's too: ``shares_chip`` of 1 beside them means that they may
be another slice's.
"""

import contextlib
import time
from collections.abc import Callable, Mapping

import pynvml

from bakeoff.harness.host.gpu import Gpu
from bakeoff.harness.telemetry.gpm import METRICS as GPM_METRICS
from bakeoff.harness.telemetry.gpm import Gpm
from bakeoff.harness.telemetry.gpu_events import GpuEvents
from bakeoff.harness.telemetry.groups import SLOWLY, Group, GroupReader
from bakeoff.harness.telemetry.nvml_fields import (
    HELD_BACK,
    LINKS,
    POLICIES,
    POWER,
    POWER_AVERAGE,
    REFUSED,
    Field,
    FieldReader,
    Readings,
    code_of,
)
from bakeoff.results.records import TelemetryRecord

_GPM_EVERY = 2
"""Ticks between readings: 200 ms."""
_ENERGY_MAX_EVERY = 4
"""Ticks. The counter's error at the edges of a window grows with the time between readings."""
_SHARED = "NVML counts it for the whole GPU, and other MIG slices share the GPU"
_OF_CHIP = ("power_w", "power_average_w", "energy_j", *LINKS)
_ECC = ("ecc_corrected_errors", "ecc_uncorrected_errors")


class GpuProbe:
    """Reads one GPU until it is closed.

    A value that NVML does not support is null once, in the first record, with NVML's reason.

    Args:
        gpu: to read.
        clock: seconds, never going back.

    Attributes:
        gpu: the GPU.
    """

    def __init__(self, gpu: Gpu, clock: Callable[[], float] = time.perf_counter) -> None:
        self.gpu = gpu
        self._nvml = gpu.nvml
        self._handle = gpu.handle
        self._unread: dict[str, str] = {}
        self._gpm: Gpm | None = None
        self._reader = GroupReader(self._open(), pynvml.NVMLError, lambda error: code_of(error) in REFUSED, clock)
        self._events = self._watch()

    @property
    def groups(self) -> dict[str, Group]:
        """The groups that are still read, by name."""
        return self._reader.groups

    @groups.setter
    def groups(self, chosen: dict[str, Group]) -> None:
        self._reader.groups = chosen

    def read(self, t_ns: int) -> list[TelemetryRecord]:
        """The values that are due, and an additional record for each XID error since the last tick."""
        readings = Readings()
        for name, reason in self._unread.items():
            readings.mark_absent(name, reason)
        self._unread = {}
        errors = self._take_errors(t_ns, readings)
        self._reader.read_due(readings)
        return [readings.record(t_ns, self.gpu.source), *errors]

    def finish(self, t_ns: int) -> list[TelemetryRecord]:
        """The last readings: every group is due now but GPM, which needs more time."""
        self.groups = {name: group for name, group in self.groups.items() if name != "gpm"}
        self._reader.make_due()
        return self.read(t_ns)

    def close(self) -> None:
        """Free its NVML resources."""
        self._free(self._gpm)
        self._free(self._events)

    def _free(self, held: Gpm | GpuEvents | None) -> None:
        with contextlib.suppress(pynvml.NVMLError):
            if held:
                held.close()

    def _open(self) -> dict[str, Group]:
        shares_chip = self._shares_chip = self.gpu.shares_chip()
        groups = {
            "memory": Group(("memory_used_bytes",), self._memory),
            "utilization": Group(("utilization_gpu_share", "utilization_memory_share"), self._utilization),
            "clocks": Group(("clock_sm_mhz", "clock_memory_mhz"), self._clocks),
            "state": Group(("temperature_c", "throttle_reasons"), self._state),
            "held_back": self._fields(HELD_BACK),
            "policies": self._fields(POLICIES, SLOWLY),
            "ecc": Group(_ECC, self._ecc, SLOWLY),
            "repair": Group(("memory_repair_pending",), self._repair, SLOWLY),
        }
        if shares_chip:
            self._unread.update(dict.fromkeys(_OF_CHIP, _SHARED))
        else:
            self._power_fields = FieldReader(self._nvml, self._handle, POWER)
            groups |= {
                "power": Group(("power_w",), self._power),
                "power_average": self._fields(POWER_AVERAGE, SLOWLY),
                "energy": Group(("energy_j",), self._energy, max_every=_ENERGY_MAX_EVERY),
                "links": self._fields(LINKS),
            }
        try:
            self._gpm = Gpm(self.gpu)
            groups["gpm"] = Group(tuple(GPM_METRICS), self._gpm.read, _GPM_EVERY, first=1)
        except pynvml.NVMLError as error:
            self._unread.update(dict.fromkeys(GPM_METRICS, f"GPM, which needs Hopper or newer: {error}"))
        return groups

    def _watch(self) -> GpuEvents | None:
        try:
            return GpuEvents(self.gpu)
        except pynvml.NVMLError as error:
            self._unread["xid"] = str(error)
            return None

    def _fields(self, fields: Mapping[str, Field], every: int = 1) -> Group:
        return Group(tuple(fields), FieldReader(self._nvml, self._handle, fields).read, every)

    def _take_errors(self, t_ns: int, readings: Readings) -> list[TelemetryRecord]:
        if self._events is None:
            return []
        try:
            reported = self._events.take()
        except pynvml.NVMLError as error:
            readings.mark_absent("xid", str(error))
            self._free(self._events)
            self._events = None
            return []
        if reported.ecc and "ecc" in self.groups:
            self._reader.read("ecc", readings)
        return [TelemetryRecord(t_ns, self.gpu.source, {"xid": xid}) for xid in reported.xids]

    def _memory(self, into: Readings) -> None:
        into.values["memory_used_bytes"] = self.gpu.memory_used_bytes()

    def _utilization(self, into: Readings) -> None:
        rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
        into.values["utilization_gpu_share"] = rates.gpu / 100
        into.values["utilization_memory_share"] = rates.memory / 100

    def _power(self, into: Readings) -> None:
        self._power_fields.read(into)
        if into.values.get("power_w") is None:
            into.values["power_w"] = self._nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000
            into.reasons.pop("power_w", None)

    def _energy(self, into: Readings) -> None:
        into.values["energy_j"] = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1000

    def _clocks(self, into: Readings) -> None:
        clock = self._nvml.nvmlDeviceGetClockInfo
        into.values["clock_sm_mhz"] = clock(self._handle, pynvml.NVML_CLOCK_SM)
        into.values["clock_memory_mhz"] = clock(self._handle, pynvml.NVML_CLOCK_MEM)

    def _state(self, into: Readings) -> None:
        into.values["temperature_c"] = self._nvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU)
        into.values["throttle_reasons"] = self._reasons()

    def _reasons(self) -> int:
        try:
            return self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        except pynvml.NVMLError as error:
            if code_of(error) != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            return self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)  # drivers before R535

    def _ecc(self, into: Readings) -> None:
        """Errors since the driver was loaded."""
        kinds = (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
        for name, kind in zip(_ECC, kinds, strict=True):
            into.values[name] = self._nvml.nvmlDeviceGetTotalEccErrors(self._handle, kind, pynvml.NVML_VOLATILE_ECC)
        if self._shares_chip:
            into.values["shares_chip"] = 1

    def _repair(self, into: Readings) -> None:
        """1 if faulty memory is replaced at the next reset: rows from Ampere on, pages before."""
        try:
            pending = self._nvml.nvmlDeviceGetRemappedRows(self._handle)[2]
        except pynvml.NVMLError:
            pending = self._nvml.nvmlDeviceGetRetiredPagesPendingStatus(self._handle)
        into.values["memory_repair_pending"] = int(bool(pending))
