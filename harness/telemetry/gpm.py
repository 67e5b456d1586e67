"""NVML's GPU performance monitoring (GPM): shares of the chip in use and bytes per second; Hopper and newer.

A reading covers the time between two samples, which must lie more than 100 ms apart.
"""

from typing import Any

import pynvml

from harness.telemetry.gpu import Gpu
from harness.telemetry.nvml_fields import Readings

_PERCENT, _MIB = 0.01, 1024.0**2
SHARES = {
    "gpm_sm_share": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "gpm_sm_occupancy_share": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "gpm_tensor_share": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "gpm_dram_share": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}
TRAFFIC = {
    "gpm_pcie_tx_bytes_per_s": pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
    "gpm_pcie_rx_bytes_per_s": pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
    "gpm_nvlink_tx_bytes_per_s": pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
    "gpm_nvlink_rx_bytes_per_s": pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC,
}
NAMES = (*SHARES, *TRAFFIC)


class Gpm:
    """Readings of one GPU, or of the GPU instance of a MIG slice.

    Args:
        gpu: the GPU.
        with_traffic: whether to read the traffic of its links.

    Raises:
        pynvml.NVMLError: the GPU or the driver has no GPM, or this user may not use it.
    """

    def __init__(self, gpu: Gpu, *, with_traffic: bool) -> None:
        self._gpu = gpu
        self._refused: set[str] = set()
        self._factors = dict.fromkeys(SHARES, _PERCENT) | dict.fromkeys(TRAFFIC if with_traffic else (), _MIB)
        if not gpu.nvml.nvmlGpmQueryDeviceSupport(gpu.handle).isSupportedDevice:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self._samples = [gpu.nvml.nvmlGpmSampleAlloc(), gpu.nvml.nvmlGpmSampleAlloc()]
        self._sample()
        self._request: Any = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(self._factors)
        numbers = SHARES | TRAFFIC
        for slot, name in enumerate(self._factors):
            self._request.metrics[slot].metricId = numbers[name]

    def read(self, into: Readings) -> None:
        """Add the metrics over the time since the reading before; one that is refused is absent once, with the reason.

        Raises:
            pynvml.NVMLError: NVML refuses a call.
        """
        self._samples.reverse()
        self._sample()
        self._request.sample1, self._request.sample2 = self._samples[1], self._samples[0]
        self._gpu.nvml.nvmlGpmMetricsGet(self._request)
        for slot, (name, factor) in enumerate(self._factors.items()):
            metric = self._request.metrics[slot]
            if metric.nvmlReturn == pynvml.NVML_SUCCESS:
                into.values[name] = metric.value * factor
            elif name not in self._refused:
                self._refused.add(name)
                into.lack(name, str(pynvml.NVMLError(metric.nvmlReturn)))

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
