"""AMD's GPUs of this machine, through the package ``amdsmi``, which comes with ROCm.

Written from the interface of amdsmi 7.0 (https://rocm.docs.amd.com/projects/amdsmi), whose values are power in watts,
an energy counter with its resolution in microjoules, memory in bytes, shares in percent and clocks in megahertz. What a
chip does not have is the text ``N/A``, or an error.
"""

import importlib
from collections.abc import Callable
from typing import Any


class AmdRefused(Exception):
    """amdsmi does not give a value."""


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
        self.source = f"gpu{index}"

    @property
    def uuid(self) -> str:
        """Amdsmi's name of it."""
        return str(self.ask("amdsmi_get_gpu_device_uuid"))

    def identity(self) -> dict[str, str | int | None]:
        """Name, UUID, memory and driver version; None for what is unknown."""
        return {
            "name": self._known(lambda: str(self.ask("amdsmi_get_gpu_asic_info")["market_name"])),
            "uuid": self._known(lambda: self.uuid),
            "memory_bytes": self._known(lambda: int(self.ask("amdsmi_get_gpu_memory_total", self._vram))),
            "driver": self._known(lambda: str(self.ask("amdsmi_get_gpu_driver_info")["driver_version"])),
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
        names = ("current_socket_power", "socket_power", "average_socket_power")
        return number_of(next((info[name] for name in names if _is_positive(info.get(name))), None), "power")

    def energy_j(self) -> float:
        """Energy since the driver was loaded.

        Raises:
            AmdRefused: the chip has no counter.
        """
        info = self.ask("amdsmi_get_energy_count")
        count = info.get("energy_accumulator", info.get("power"))  # as amdsmi 6.0 calls it
        return number_of(count, "energy") * number_of(info["counter_resolution"], "energy") * 1e-6

    def shares(self) -> tuple[float, float]:
        """Shares of the time with graphics or compute at work, and with memory traffic.

        Raises:
            AmdRefused: the chip does not count them.
        """
        info = self.ask("amdsmi_get_gpu_activity")
        return (number_of(info["gfx_activity"], "activity") / 100, number_of(info["umc_activity"], "activity") / 100)

    def clocks_mhz(self) -> tuple[float, float]:
        """Clocks of the compute units and of the memory.

        Raises:
            AmdRefused: amdsmi does not know them.
        """
        kinds = self._smi.AmdSmiClkType
        compute, memory = (self.ask("amdsmi_get_clock_info", kind)["clk"] for kind in (kinds.GFX, kinds.MEM))
        return number_of(compute, "clock"), number_of(memory, "clock")

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
        return int(info["correctable_count"]), int(info["uncorrectable_count"])

    def first_device(self) -> "AmdGpu":
        """Itself."""
        return self

    def called(self, name: str) -> "AmdGpu | None":
        """Itself, if ``name`` from ``CUDA_VISIBLE_DEVICES`` is its index or UUID."""
        if name.startswith("GPU-"):
            wanted = name.removeprefix("GPU-").replace("-", "")
            return self if self.uuid.replace("-", "").startswith(wanted) else None
        return self if name == str(self._hip_index) else None

    def ask(self, function: str, *arguments: object) -> Any:  # noqa: ANN401  (whatever amdsmi returns)
        """The result of one of amdsmi's functions of this GPU.

        Raises:
            AmdRefused: it fails.
        """
        try:
            return getattr(self._smi, function)(self._handle, *arguments)
        except (self._smi.AmdSmiException, AttributeError) as error:  # AttributeError: an older amdsmi
            raise AmdRefused(_line(error)) from error

    @property
    def _vram(self) -> Any:  # noqa: ANN401
        return self._smi.AmdSmiMemoryType.VRAM

    @property
    def _hip_index(self) -> int:
        """As HIP counts it, whose order may be another one than amdsmi's."""
        try:
            known = self.ask("amdsmi_get_gpu_enumeration_info")["hip_id"]
        except AmdRefused:
            return self._index
        return known if isinstance(known, int) else self._index

    def _known(self, read: Callable[[], str | int]) -> str | int | None:
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


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
