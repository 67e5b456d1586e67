"""GPUs of this machine: which exist and which are used. NVIDIA's and their MIG slices through NVML (``pynvml``).

A machine without NVML is asked for AMD's GPUs, and if it has none, either, that is not an error: :func:`open_gpus` then
returns a reason, which is logged once. Only GPUs that the engine may use are read (:func:`visible_to`), by
:class:`bakeoff.harness.telemetry.gpu_probe.GpuProbe` or :class:`bakeoff.harness.telemetry.amd_probe.AmdProbe`.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pynvml

from bakeoff.harness.host.amd import AmdGpu, AmdRefused, open_amd_gpus


def open_gpus(
    nvml: Any = pynvml,  # noqa: ANN401  (a module, or a fake)
    amd: Callable[[], tuple[Sequence[AmdGpu], str | None]] = open_amd_gpus,
) -> tuple[Sequence["Gpu | AmdGpu"], str | None]:
    """Every GPU of this machine, or no GPU and the reason.

    Args:
        nvml: the NVML binding; tests pass a fake.
        amd: opens AMD's GPUs, where there are no others.
    """
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        gpus, reason = [Gpu(nvml, index) for index in range(count)], None if count else "NVML sees no GPU"
    except pynvml.NVMLError as error:
        gpus, reason = list[Gpu](), f"NVML is not available: {error}"
    if gpus:
        return gpus, None
    others, _ = amd()
    return others, None if others else reason


def visible_to(names: str | None, gpus: Sequence["Gpu | AmdGpu"]) -> list["Gpu | AmdGpu"]:
    """GPUs and MIG slices that a process with this ``CUDA_VISIBLE_DEVICES`` may use; all if it is not set.

    Read as CUDA does: indices, prefixes of UUIDs or names of MIG slices, up to the first invalid one. Indices are
    NVML's; they equal CUDA's if all GPUs are of one model, or under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``. A process that
    may use a MIG slice sees the first one and nothing else: no other slice and no whole GPU. Of a GPU in MIG mode that
    is named as a whole, CUDA uses the first slice (NVIDIA MIG user guide, "CUDA Device Enumeration").
    """
    devices = _named(names.split(","), gpus) if names is not None else [gpu.first_device() for gpu in gpus]
    usable = [device for device in devices if device]
    return [device for device in usable if device.instance is not None][:1] or usable


def _named(names: Iterable[str], gpus: Sequence["Gpu | AmdGpu"]) -> Iterator["Gpu | AmdGpu"]:
    for name in names:
        device = next((device for gpu in gpus if (device := gpu.called(name.strip()))), None)
        if device is None:
            return
        yield device


def used_bytes(gpus: Sequence["Gpu | AmdGpu"]) -> list[int]:
    """Memory in use on each GPU; empty if one has no memory of its own, but the host's."""
    try:
        return [gpu.memory_used_bytes() for gpu in gpus]
    except (pynvml.NVMLError, AmdRefused):
        return []


class Gpu:
    """One GPU, or one MIG slice of it.

    Args:
        nvml: the NVML binding.
        index: NVML's index of the GPU.
        slice_index: NVML's index of the MIG device on it; None for the whole GPU.

    Attributes:
        nvml: the NVML binding.
        handle: NVML's handle of the whole GPU, with the counters of the chip.
        source: name of its telemetry: ``gpu0``, or ``gpu0.1`` for a slice.
        instance: id of the slice's GPU instance; None for the whole GPU.

    Raises:
        pynvml.NVMLError: NVML refuses the handle.
    """

    def __init__(self, nvml: Any, index: int, slice_index: int | None = None) -> None:  # noqa: ANN401
        self.nvml = nvml
        self.handle: Any = nvml.nvmlDeviceGetHandleByIndex(index)
        self.source: str = f"gpu{index}" if slice_index is None else f"gpu{index}.{slice_index}"
        self._index = index
        self._own = self.handle  # of the slice, if this is one
        self.instance: int | None = None
        if slice_index is not None:
            self._own = nvml.nvmlDeviceGetMigDeviceHandleByIndex(self.handle, slice_index)
            self.instance = int(nvml.nvmlDeviceGetGpuInstanceId(self._own))

    def identity(self) -> dict[str, str | int | None]:
        """Name, UUID, memory and driver version; the memory is None if the GPU uses the host's."""
        memory_bytes = None
        with contextlib.suppress(pynvml.NVMLError):
            memory_bytes = int(self._memory().total)
        return {
            "name": _text(self.nvml.nvmlDeviceGetName(self._own)),
            "uuid": self.uuid,
            "memory_bytes": memory_bytes,
            "driver": _text(self.nvml.nvmlSystemGetDriverVersion()),
        }

    def memory_used_bytes(self) -> int:
        """Memory in use by all processes.

        Raises:
            pynvml.NVMLError: NVML does not know, for example because the GPU uses the host's memory.
        """
        return int(self._memory().used)

    def _memory(self) -> Any:  # noqa: ANN401  (pynvml has no types)
        memory = self.nvml.nvmlDeviceGetMemoryInfo(self._own)
        if not memory.total:  # of a GPU in the host's memory, where the driver does not refuse the query
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return memory

    def shares_chip(self) -> bool:
        """Whether this is one of several MIG slices, so that others may use the GPU's power and links."""
        return self.instance is not None and len(self._slices() or ()) > 1

    def first_device(self) -> "Gpu | None":
        """The device that CUDA uses if the whole GPU is named; None if it is in MIG mode and has no slice."""
        slices = self._slices()
        return self if slices is None else next(iter(slices), None)

    def called(self, name: str) -> "Gpu | None":
        """The GPU or slice that ``name`` from ``CUDA_VISIBLE_DEVICES`` refers to; None if it is not of this GPU."""
        if name.startswith("MIG-"):
            return next((device for device in self._slices() or () if device.is_slice_called(name)), None)
        if name == str(self._index) or (name.startswith("GPU-") and self.uuid.startswith(name)):
            return self.first_device()
        return None

    def is_slice_called(self, name: str) -> bool:
        """Whether ``name`` is this slice's UUID, or ``MIG-<UUID of the GPU>/<GPU instance>/<compute instance>``.

        Drivers before R470 use the second form.
        """
        if self.uuid.startswith(name):
            return True
        gpu, _, instances = name.removeprefix("MIG-").partition("/")
        own = f"{self.instance}/{self.nvml.nvmlDeviceGetComputeInstanceId(self._own)}"
        return instances == own and _text(self.nvml.nvmlDeviceGetUUID(self.handle)) == gpu

    def _slices(self) -> "list[Gpu] | None":
        """Its MIG slices; None if it is not in MIG mode."""
        try:
            if self.nvml.nvmlDeviceGetMigMode(self.handle)[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
                return None
            most = self.nvml.nvmlDeviceGetMaxMigDeviceCount(self.handle)
        except pynvml.NVMLError:  # a GPU or a driver without MIG
            return None
        slices: list[Gpu] = []
        for index in range(most):
            try:
                slices.append(Gpu(self.nvml, self._index, index))
            except pynvml.NVMLError:  # no slice of this index
                continue
        return slices

    @property
    def uuid(self) -> str:
        """NVML's name of it."""
        return _text(self.nvml.nvmlDeviceGetUUID(self._own))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
