"""AMD's GPUs of this machine, through the package ``amdsmi``, which comes with ROCm.

Written from the interface of amdsmi 7.0 (https://rocm.docs.amd.com/projects/amdsmi), whose values are power in watts,
an energy counter with its resolution in microjoules, memory in bytes, shares in percent and clocks in megahertz. What a
chip does not have is the text ``N/A``, or an error.
"""

import importlib
from collections.abc import Callable
from typing import Any

_FINAL = frozenset({2, 3})
"""amdsmi's codes for what is not supported, and not yet implemented."""

READER = "amdsmi"
"""Marks GPUs that are read through it in the environment of a run."""


class AmdRefused(Exception):
    """amdsmi does not give a value.

    Attributes:
        is_final: whether it never will.
    """

    def __init__(self, reason: str, *, is_final: bool = True) -> None:
        super().__init__(reason)
        self.is_final = is_final


def open_amd_gpus(load: Callable[[], Any] | None = None) -> tuple[list["AmdGpu"], str | None]:
    """Every AMD GPU of this machine, or none and the reason.

    Args:
        load: returns the module; tests pass a fake. Default: import it.
    """
    try:
        smi = load() if load is not None else importlib.import_module("amdsmi")
    except (ImportError, KeyError, OSError, AttributeError) as error:  # KeyError: without the library of the driver
        return [], f"amdsmi is not available: {error}"
    try:
        smi.amdsmi_init()
        handles = smi.amdsmi_get_processor_handles()
        gpus = [AmdGpu(smi, index, handle) for index, handle in enumerate(handles)]
    except smi.AmdSmiException as error:
        return [], f"amdsmi is not available: {_line(error)}"
    return gpus, None if gpus else "amdsmi sees no GPU"


class AmdGpu:
    """One GPU, or one partition of it, which ROCm shows as a device of its own.

    Args:
        smi: the module ``amdsmi``.
        index: among all of the machine, as amdsmi counts them.
        handle: amdsmi's.

    Attributes:
        source: name of its telemetry.
        instance: None, as it is no MIG slice.
    """

    instance: int | None = None

    def __init__(self, smi: Any, index: int, handle: Any) -> None:  # noqa: ANN401  (a module, or a fake)
        self._smi = smi
        self._handle = handle
        self._index = index
        self.source: str = f"gpu{index}"

    @property
    def uuid(self) -> str:
        """The name that amdsmi gives it; empty if it has none."""
        return str(self._known(lambda: self.ask("amdsmi_get_gpu_device_uuid")) or "")

    def identity(self) -> dict[str, str | int | None]:
        """Name, UUID, memory and driver version; None for what is unknown."""
        return {
            "name": self._known(lambda: self.ask("amdsmi_get_gpu_asic_info").get("market_name")),
            "uuid": self.uuid or None,
            "memory_bytes": self._known(lambda: int(self.ask("amdsmi_get_gpu_memory_total", self._vram))),
            "driver": self._known(lambda: self.ask("amdsmi_get_gpu_driver_info").get("driver_version")),
            "reader": READER,
        }

    def memory_used_bytes(self) -> int:
        """Memory in use by all processes.

        Raises:
            AmdRefused: amdsmi does not know.
        """
        return int(self.ask("amdsmi_get_gpu_memory_usage", self._vram))

    def power_w(self) -> float:
        """Power of the package: the reading of now if the chip has one, else its average.

        Raises:
            AmdRefused: it has neither.
        """
        info = self.ask("amdsmi_get_power_info")
        powers_w = [info.get(name) for name in ("current_socket_power", "socket_power", "average_socket_power")]
        known_w = [power_w for power_w in powers_w if isinstance(power_w, int | float)]
        return number_of(next(filter(None, known_w), next(iter(known_w), None)), "power")

    def energy_j(self) -> float:
        """Energy since the driver was loaded.

        Raises:
            AmdRefused: the chip has no counter.
        """
        info = self.ask("amdsmi_get_energy_count")
        count = info.get("energy_accumulator", info.get("power"))  # as amdsmi 6.0 calls it
        return number_of(count, "energy") * number_of(info.get("counter_resolution"), "energy") * 1e-6

    def shares(self) -> tuple[float, float]:
        """Shares of the time with graphics or compute at work, and with memory traffic.

        Raises:
            AmdRefused: the chip does not count them.
        """
        info = self.ask("amdsmi_get_gpu_activity")
        compute, memory = (number_of(info.get(name), "activity") for name in ("gfx_activity", "umc_activity"))
        return compute / 100, memory / 100

    def clocks_mhz(self) -> tuple[float, float]:
        """Clocks of the compute units and of the memory.

        Raises:
            AmdRefused: amdsmi does not know them.
        """
        kinds = self._smi.AmdSmiClkType
        infos = [self.ask("amdsmi_get_clock_info", kind) for kind in (kinds.GFX, kinds.MEM)]
        compute, memory = (number_of(info.get("clk", info.get("cur_clk")), "clock") for info in infos)
        return compute, memory

    def temperature_c(self) -> float:
        """Temperature of the hottest place.

        Raises:
            AmdRefused: amdsmi does not know it.
        """
        place, metric = self._smi.AmdSmiTemperatureType.HOTSPOT, self._smi.AmdSmiTemperatureMetric.CURRENT
        return number_of(self.ask("amdsmi_get_temp_metric", place, metric), "temperature")

    def memory_errors(self) -> tuple[int, int]:
        """Corrected and uncorrected errors since the driver was loaded.

        Raises:
            AmdRefused: the chip does not count them.
        """
        info = self.ask("amdsmi_get_gpu_total_ecc_count")
        corrected, uncorrected = (
            number_of(info.get(name), "count of errors") for name in ("correctable_count", "uncorrectable_count")
        )
        return int(corrected), int(uncorrected)

    def first_device(self) -> "AmdGpu":
        """Itself."""
        return self

    def called(self, name: str) -> "AmdGpu | None":
        """Itself, if ``name`` from ``CUDA_VISIBLE_DEVICES`` is its index or UUID."""
        if name.startswith("GPU-"):
            wanted = name.removeprefix("GPU-").replace("-", "")
            return self if wanted and self.uuid.replace("-", "").startswith(wanted) else None
        return self if name == str(self._hip_index) else None

    def ask(self, function: str, *arguments: object) -> Any:  # noqa: ANN401  (whatever amdsmi returns)
        """The result of one of amdsmi's functions of this GPU.

        Raises:
            AmdRefused: it fails.
        """
        try:
            return getattr(self._smi, function)(self._handle, *arguments)
        except (self._smi.AmdSmiException, AttributeError) as error:  # AttributeError: an older amdsmi
            code = getattr(error, "err_code", None)
            raise AmdRefused(_line(error), is_final=code is None or code in _FINAL) from error

    @property
    def _vram(self) -> Any:  # noqa: ANN401
        return self._smi.AmdSmiMemoryType.VRAM

    @property
    def _hip_index(self) -> int:
        """As HIP counts it, whose order may be another one than amdsmi's."""
        try:
            known = self.ask("amdsmi_get_gpu_enumeration_info").get("hip_id")
        except AmdRefused:
            return self._index
        return known if isinstance(known, int) else self._index

    def _known(self, read: Callable[[], str | int | None]) -> str | int | None:
        try:
            return read()
        except AmdRefused:
            return None


def number_of(value: Any, what: str) -> float:  # noqa: ANN401  (a number, or amdsmi's text)
    """A value as a number.

    Raises:
        AmdRefused: it is none, such as ``N/A``.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AmdRefused(f"amdsmi has no {what} of this GPU")
    return float(value)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
