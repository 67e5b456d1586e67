"""Errors that a GPU reports as they happen: XID errors, and events of its memory's error correction (ECC)."""

from typing import NamedTuple

import pynvml

from bakeoff.harness.host.gpu import Gpu
from bakeoff.harness.telemetry.nvml_fields import code_of

_ECC = pynvml.nvmlEventTypeSingleBitEccError | pynvml.nvmlEventTypeDoubleBitEccError
_WATCHED = pynvml.nvmlEventTypeXidCriticalError | _ECC
_ANY_INSTANCE = 0xFFFFFFFF
_MOST_AT_ONCE = 16
"""Bounds the time of one tick while a GPU reports errors without end; the rest waits in the driver's queue."""


class Reported(NamedTuple):
    """Events since the last call: numbers of XID errors, and whether the ECC counters changed."""

    xids: list[int]
    ecc: bool


class GpuEvents:
    """Watches one GPU.

    Args:
        gpu: the GPU; of a MIG slice, XID errors of other slices are left out.

    Raises:
        pynvml.NVMLError: the GPU or the driver reports no XID errors.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        supported = gpu.nvml.nvmlDeviceGetSupportedEventTypes(gpu.handle) & _WATCHED
        if not supported & pynvml.nvmlEventTypeXidCriticalError:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._events = gpu.nvml.nvmlEventSetCreate()
        try:
            gpu.nvml.nvmlDeviceRegisterEvents(gpu.handle, supported, self._events)
        except pynvml.NVMLError:
            self.close()
            raise

    def take(self) -> Reported:
        """Take the events since the last call, without waiting.

        Raises:
            pynvml.NVMLError: NVML cannot tell, for example because the GPU is lost.
        """
        xids: list[int] = []
        ecc = False
        for _ in range(_MOST_AT_ONCE):
            try:
                event = self._gpu.nvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError as error:
                if code_of(error) != pynvml.NVML_ERROR_TIMEOUT:
                    raise
                break
            if event.eventType & _ECC:
                ecc = True
            elif self._gpu.instance is None or event.gpuInstanceId in {self._gpu.instance, _ANY_INSTANCE}:
                xids.append(int(event.eventData))
        return Reported(xids, ecc)

    def close(self) -> None:
        """Stop watching."""
        self._gpu.nvml.nvmlEventSetFree(self._events)
