"""GPUs as an exporter's page shows them: those of other hosts, of other makers, or a second source beside NVML.

Three kinds of samples are known, and a page may mix them: those of NVIDIA's DCGM exporter
(https://docs.nvidia.com/datacenter/dcgm/latest/dcgm-api/dcgm-api-field-ids.html), of AMD's device metrics exporter
(https://instinct.docs.amd.com/projects/device-metrics-exporter), and ``bakeoff_…``, for whatever else measures power:
docs/experiment.md, "Other power sources".

A page has one sample of each field for each GPU, or for each slice of one (MIG, or AMD's partitions), with the same
labels. DCGM shows the power and energy of a GPU with each of its slices, AMD with the first alone, so slices get none.
An exporter reads its GPUs at an interval of its own, DCGM's every 30 s unless it is told otherwise (``-c``), and shows
the last reading meanwhile.
"""

import http.client
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from bakeoff.engines.endpoint import endpoint
from bakeoff.engines.metrics.prometheus import Sample, samples
from bakeoff.engines.secrets import masked
from bakeoff.harness.telemetry.loop import Ticker
from bakeoff.harness.telemetry.orders import ExporterPage
from bakeoff.harness.telemetry.page import Page, Refused
from bakeoff.results.records import FAILED_EXPORTER, SECOND_SOURCE, TelemetryRecord

_MIB = 1024**2
INTERVAL_NS = 500_000_000
_STOP_S = 3.0
_NO_SAMPLE = "no sample of DCGM's exporter, of AMD's, or by a bakeoff_ name"
_DCGM: dict[str, tuple[str, float]] = {
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1.0),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", 1e-3),
    "DCGM_FI_DEV_FB_USED": ("memory_used_bytes", _MIB),
    "DCGM_FI_DEV_GPU_UTIL": ("utilization_gpu_share", 0.01),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("utilization_memory_share", 0.01),
    "DCGM_FI_DEV_SM_CLOCK": ("clock_sm_mhz", 1.0),
    "DCGM_FI_DEV_MEM_CLOCK": ("clock_memory_mhz", 1.0),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", 1.0),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("ecc_corrected_errors", 1.0),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc_uncorrected_errors", 1.0),
    "DCGM_FI_PROF_SM_ACTIVE": ("gpm_sm_share", 1.0),
    "DCGM_FI_PROF_SM_OCCUPANCY": ("gpm_sm_occupancy_share", 1.0),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("gpm_tensor_share", 1.0),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("gpm_dram_share", 1.0),
}
_AMD: dict[str, tuple[str, float]] = {
    "gpu_power_usage": ("power_w", 1.0),
    "gpu_average_package_power": ("power_w", 1.0),
    "gpu_package_power": ("power_w", 1.0),
    "gpu_energy_consumed": ("energy_j", 1e-6),
    "gpu_used_vram": ("memory_used_bytes", _MIB),
    "gpu_gfx_activity": ("utilization_gpu_share", 0.01),
    "gpu_umc_activity": ("utilization_memory_share", 0.01),
    "gpu_edge_temperature": ("temperature_c", 1.0),
    "gpu_junction_temperature": ("temperature_c", 1.0),
    "gpu_ecc_correct_total": ("ecc_corrected_errors", 1.0),
    "gpu_ecc_uncorrect_total": ("ecc_uncorrected_errors", 1.0),
}
_OTHER: dict[str, tuple[str, float]] = {
    "bakeoff_power_watts": ("power_w", 1.0),
    "bakeoff_energy_joules": ("energy_j", 1.0),
    "bakeoff_memory_used_bytes": ("memory_used_bytes", 1.0),
    "bakeoff_utilization_ratio": ("utilization_gpu_share", 1.0),
    "bakeoff_temperature_celsius": ("temperature_c", 1.0),
}
_FIELDS = {**_DCGM, **_AMD, **{f"amd_{name}": field for name, field in _AMD.items()}, **_OTHER}
"""Our name and the factor to our unit, by field; of several with one name, the last of these that a page shows counts.

Shares of DCGM's profiling module are fractions, its others and AMD's percent. AMD's exporter may put ``amd_`` before
its names.
"""
_ORDER = {field: place for place, field in enumerate(_FIELDS)}
_CLOCKS = {"GPU_CLOCK_TYPE_SYSTEM": "clock_sm_mhz", "GPU_CLOCK_TYPE_MEMORY": "clock_memory_mhz"}
_CLOCK = ("gpu_clock", "amd_gpu_clock")
"""AMD's field of all clocks, in MHz, which their labels tell apart; one that a chip has several times counts once."""
_THROTTLED = ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS")
"""NVML's bit mask of reasons for reduced clocks, by its old and its new name."""
_XID = "DCGM_FI_DEV_XID_ERRORS"
_OF_CHIP = ("power_w", "energy_j")
_KNOWN = frozenset((*_FIELDS, *_CLOCK, *_THROTTLED, _XID))
_NAMES = _KNOWN | {f"{field}_total" for field in _KNOWN}  # as OpenMetrics names counters
_SHARED = "the exporter shows it for the whole GPU, and other slices share the GPU"


class Device(NamedTuple):
    """A GPU, or a slice of one, as the labels name it."""

    number: str
    instance: str
    uuid: str

    @property
    def label(self) -> str:
        """As NVML's sources are named: ``gpu0``, ``gpu0.3``; ``gpu psu-1`` for a name."""
        name = self.number if self.number.isdigit() else f" {self.number}"
        return f"gpu{name}.{self.instance}" if self.instance else f"gpu{name}"


class ExporterReader:
    """Reads successive pages of one exporter.

    Args:
        gpus: indices or UUIDs of the GPUs to read; empty for all.
    """

    def __init__(self, gpus: tuple[str, ...] = ()) -> None:
        self._gpus = frozenset(gpus)
        self._xids: dict[Device, float] = {}

    def read(self, body: bytes) -> dict[Device, dict[str, float | int | None]]:
        """The values of each GPU by our names; an XID error only where it is new since the last page.

        Raises:
            ValueError: the page does not show one of the GPUs, or none at all.
        """
        found: dict[Device, dict[str, float | int | None]] = {}
        fields: dict[tuple[Device, str], float] = {}
        for sample in samples(body.decode("utf-8", "replace"), _NAMES):
            device = _device(sample) if math.isfinite(sample.value) else None
            if device is not None and (not self._gpus or self._gpus & {device.number, device.uuid}):
                self._add(sample, device, found.setdefault(device, {}), fields)
        shown = {name for device in found for name in (device.number, device.uuid)}
        if missing := sorted(self._gpus - shown):
            raise ValueError(f"{_NO_SAMPLE} of GPU {', '.join(missing)}")
        if not found:
            raise ValueError(_NO_SAMPLE)
        for device, field in sorted(fields, key=lambda key: _ORDER[key[1]]):
            name, factor = _FIELDS[field]
            found[device][name] = fields[device, field] * factor
        slices = Counter(device.number for device in found)
        for device, values in found.items():
            if slices[device.number] > 1:
                values.update(dict.fromkeys(_OF_CHIP), shares_chip=1)
        return found

    def _add(
        self,
        sample: Sample,
        device: Device,
        values: dict[str, float | int | None],
        fields: dict[tuple[Device, str], float],
    ) -> None:
        """Add a sample to the values of its device, or to the fields whose order decides."""
        field = sample.name if sample.name in _KNOWN else sample.name.removesuffix("_total")
        if field in _FIELDS:
            fields[device, field] = sample.value
        elif field in _CLOCK:
            if name := _CLOCKS.get(sample.labels.get("clock_type", "")):
                values.setdefault(name, sample.value)
        elif field in _THROTTLED:
            values["throttle_reasons"] = int(sample.value)
        elif sample.value != self._xids.setdefault(device, sample.value):  # it shows the last error for ever
            self._xids[device] = sample.value
            values["xid"] = int(sample.value)


class ExporterProbe:
    """Reads an exporter's page twice a second in a thread of its own, so that a slow one delays no other probe.

    Args:
        page: the page.
        emit: takes records; called in the probe's thread.
        sampled: the sources of GPUs that NVML samples here, by UUID; the page's figures are a second source for them.
    """

    def __init__(self, page: ExporterPage, emit: Callable[[TelemetryRecord], None], sampled: Mapping[str, str]) -> None:
        address = endpoint(page.url)
        path = f"{address.path or '/metrics'}{f'?{address.query}' if address.query else ''}"
        self._place = address.authority if path == "/metrics" else f"{address.authority}{path}"
        self._page = Page(address.origin, path, page.access)
        self._reader = ExporterReader(page.gpus)
        self._emit = emit
        self._sampled = sampled
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="exporter-probe", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Read the page a last time; emit nothing from then on."""
        self._stopped.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        ticker, refused = Ticker(INTERVAL_NS, time.monotonic_ns()), False
        while not self._stopped.wait(ticker.wait_ns(time.monotonic_ns()) / 1e9):
            ticker.fire(time.monotonic_ns())
            if not refused:  # a page that is refused once is not read again
                refused = self._read()
        if not refused:
            self._read()
        self._page.close()

    def _read(self) -> bool:
        """Read the page once; whether later exchanges will fail as well."""
        try:
            before_ns, body, after_ns = self._page.get()
            for record in self._records((before_ns + after_ns) // 2, body):
                self._emit(record)
        except Refused as error:
            self._fail(str(error))
            return error.is_permanent
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._page.close()
            self._fail(f"{type(error).__name__}: {error} at {self._page.path}")
        return False

    def _records(self, t_ns: int, body: bytes) -> Iterator[TelemetryRecord]:
        for device, values in self._reader.read(body).items():
            own = self._sampled.get(device.uuid)
            source = f"{SECOND_SOURCE}{own}" if own else f"{device.label}@{self._place}"
            reasons = {name: _SHARED for name, value in values.items() if value is None}
            yield TelemetryRecord(t_ns, source, dict(values), reasons)

    def _fail(self, reason: str) -> None:
        record = TelemetryRecord(
            time.monotonic_ns(), f"{FAILED_EXPORTER}{self._place}", {"scrape_s": None}, {"scrape_s": masked(reason)}
        )
        self._emit(record)


def _device(sample: Sample) -> Device | None:
    labels = sample.labels
    if "gpu" in labels:
        return Device(labels["gpu"], labels.get("GPU_I_ID", ""), labels.get("UUID", ""))
    if "gpu_id" in labels:
        partition = labels.get("partition_id", "")
        uuid = labels.get("gpu_uuid") or labels.get("serial_number", "")
        return Device(labels["gpu_id"], "" if partition == "0" else partition, uuid)
    return None
