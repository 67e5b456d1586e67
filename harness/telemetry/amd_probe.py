"""Readings of one AMD GPU during one trial, by the names of NVML's where they mean the same.

``power_w`` is the package's, ``temperature_c`` that of its hottest place. Reasons for reduced clocks and XID errors are
NVIDIA's and absent.
"""

import time
from collections.abc import Callable

from bakeoff.harness.host.amd import AmdGpu, AmdRefused
from bakeoff.harness.telemetry.groups import SLOWLY, Group, GroupReader
from bakeoff.harness.telemetry.nvml_fields import Readings
from bakeoff.results.records import TelemetryRecord

_ENERGY_MAX_EVERY = 4
"""Ticks, as for NVML's counter."""


def _is_final(error: Exception) -> bool:
    return isinstance(error, AmdRefused) and error.is_final


class AmdProbe:
    """Reads one GPU. A value that amdsmi does not give is null once, with the reason.

    Args:
        gpu: to read.
        clock: seconds, never going back.
    """

    def __init__(self, gpu: AmdGpu, clock: Callable[[], float] = time.perf_counter) -> None:
        self.gpu = gpu
        groups = {
            "power": Group(("power_w",), self._power),
            "energy": Group(("energy_j",), self._energy, max_every=_ENERGY_MAX_EVERY),
            "memory": Group(("memory_used_bytes",), self._memory),
            "utilization": Group(("utilization_gpu_share", "utilization_memory_share"), self._utilization),
            "clocks": Group(("clock_sm_mhz", "clock_memory_mhz"), self._clocks),
            "temperature": Group(("temperature_c",), self._temperature, SLOWLY),
            "ecc": Group(("ecc_corrected_errors", "ecc_uncorrected_errors"), self._ecc, SLOWLY),
        }
        self._reader = GroupReader(groups, AmdRefused, _is_final, clock)

    def read(self, t_ns: int) -> list[TelemetryRecord]:
        """The values that are due."""
        readings = Readings()
        self._reader.read_due(readings)
        return [readings.record(t_ns, self.gpu.source)]

    def finish(self, t_ns: int) -> list[TelemetryRecord]:
        """The last readings, of everything."""
        self._reader.make_due()
        return self.read(t_ns)

    def close(self) -> None:
        """Do nothing: amdsmi holds no resources of a GPU."""

    def _power(self, into: Readings) -> None:
        into.values["power_w"] = self.gpu.power_w()

    def _energy(self, into: Readings) -> None:
        into.values["energy_j"] = self.gpu.energy_j()

    def _memory(self, into: Readings) -> None:
        into.values["memory_used_bytes"] = self.gpu.memory_used_bytes()

    def _utilization(self, into: Readings) -> None:
        into.values["utilization_gpu_share"], into.values["utilization_memory_share"] = self.gpu.shares()

    def _clocks(self, into: Readings) -> None:
        into.values["clock_sm_mhz"], into.values["clock_memory_mhz"] = self.gpu.clocks_mhz()

    def _temperature(self, into: Readings) -> None:
        into.values["temperature_c"] = self.gpu.temperature_c()

    def _ecc(self, into: Readings) -> None:
        into.values["ecc_corrected_errors"], into.values["ecc_uncorrected_errors"] = self.gpu.memory_errors()
