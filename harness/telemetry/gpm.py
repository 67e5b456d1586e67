"""NVML's GPU performance monitoring (GPM): shares of the chip in use; Hopper and newer.

A reading covers the time between two samples, which must lie more than 100 ms apart.
"""

from typing import Any

import pynvml

from bakeoff.harness.host.gpu import Gpu
from bakeoff.harness.telemetry.nvml_fields import Readings

METRICS = {
    "gpm_sm_share": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "gpm_sm_occupancy_share": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "gpm_tensor_share": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "gpm_dram_share": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}
"""Percentages, by our name. The traffic of PCIe and NVLink is not read here, as counters give it without a gap."""


class Gpm:
    """Readings of one GPU, or of the GPU instance of a MIG slice.

    Args:
        gpu: the GPU.

    Raises:
        pynvml.NVMLError: the GPU or the driver has no GPM, or this user may not use it.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._refused: set[str] = set()
        if not gpu.nvml.nvmlGpmQueryDeviceSupport(gpu.handle).isSupportedDevice:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._samples = [gpu.nvml.nvmlGpmSampleAlloc()]
        try:
            self._samples.append(gpu.nvml.nvmlGpmSampleAlloc())
            self._sample()
        except pynvml.NVMLError:
            self.close()
            raise
        self._request: Any = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(METRICS)
        for slot, number in enumerate(METRICS.values()):
            self._request.metrics[slot].metricId = number

    def read(self, into: Readings) -> None:
        """Add the metrics over the time since the last reading; a refused one is absent once, with the reason.

        Raises:
            pynvml.NVMLError: NVML refuses a call.
        """
        self._samples.reverse()
        self._sample()
        self._request.sample1, self._request.sample2 = self._samples[1], self._samples[0]
        self._gpu.nvml.nvmlGpmMetricsGet(self._request)
        for slot, name in enumerate(METRICS):
            metric = self._request.metrics[slot]
            if metric.nvmlReturn == pynvml.NVML_SUCCESS:
                into.values[name] = metric.value / 100
            elif name not in self._refused:
                self._refused.add(name)
                into.mark_absent(name, str(pynvml.NVMLError(metric.nvmlReturn)))

    def close(self) -> None:
        """Free its samples."""
        for sample in self._samples:
            self._gpu.nvml.nvmlGpmSampleFree(sample)

    def _sample(self) -> None:
        """Store the counters of this instant in the first sample."""
        gpu = self._gpu
        if gpu.instance is None:
            gpu.nvml.nvmlGpmSampleGet(gpu.handle, self._samples[0])
        else:
            gpu.nvml.nvmlGpmMigSampleGet(gpu.handle, gpu.instance, self._samples[0])
