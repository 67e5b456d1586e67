"""Findings about the machine: lost samples; foreign CPU load; errors, throttling and power limits of GPUs."""

from collections import Counter
from collections.abc import Iterator, Sequence

from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, invalid, note, warning
from bakeoff.results.metrics.energy import second_sources
from bakeoff.results.metrics.machine import foreign_cpu_share, gpu_errors, held_back
from bakeoff.results.records import FAILED_EXPORTER, TelemetryRecord, Window

SOME_FOREIGN_SHARE = 0.05
"""Share of all CPU time above which foreign load is a warning."""
MAX_FOREIGN_SHARE = 0.2
"""Default of ``trial.max_foreign_share``. An engine that keeps all cores busy slows down by about this share, more than
most differences under test. On machines with up to four cores, one busy core exceeds it."""
_SOME_LIMITED_SHARE = 0.01
"""Share of the window for which a GPU may be at its power limit, or slowed by hardware, without a note."""
_MAX_LIMITED_SHARE = 0.5
"""The same without a warning."""
_MAX_ENERGY_DIFFERENCE = 0.03
"""Between two sources of a GPU's energy."""
_MIN_SAMPLED_SHARE = 0.9
"""Share of the window's ticks at which the host must have been sampled."""

_XIDS_OF_PROGRAMS = {13, 31, 43}
"""Illegal instructions and addresses of a program, and its end for them (NVIDIA, "XID errors")."""
_XID_CLEAN_UP = 45
"""The driver ended a program's work, because of another error or because the program was killed."""
_XID_REPAIR_RECORDED = 63
"""Faulty memory was found, and its replacement at the next reset was recorded; 64 says that this failed."""


def sampler_lost(telemetry: Sequence[TelemetryRecord], window: Window, interval_ns: int) -> Iterator[Finding]:
    """Too few samples of the host in the window: the checks of the machine would judge without evidence.

    Args:
        telemetry: the trial's samples.
        window: its measured window.
        interval_ns: time between two ticks of the sampler.
    """
    ticks = (window.end_ns - window.start_ns) // interval_ns
    sampled = sum(record.source == "host" and window.holds(record.t_ns) for record in telemetry)
    if sampled + 1 < _MIN_SAMPLED_SHARE * ticks:  # one tick may fall just outside
        yield invalid(FindingCode.SAMPLER_LOST, sampled_share=sampled / ticks)


def machine_findings(
    telemetry: Sequence[TelemetryRecord], window: Window, max_foreign_share: float = MAX_FOREIGN_SHARE
) -> list[Finding]:
    """Disturbances by the machine inside the window, and errors of GPUs anywhere in the trial; INVALID first.

    Parameters of the findings: ``foreign_share`` and ``max_foreign_share`` of all CPU time; ``foreign_cores``, the same
    in cores; ``gpu``; ``held_s``, seconds of throttling; ``capped_share`` of the window, and by what ``power_basis`` it
    is known; ``slowed_share`` of the samples; ``nvml_j`` and ``exporter_j``, joules in the window; ``exporter``,
    and the first ``reason`` of its ``failures``; ``xid``, the number of an error; ``errors``, a count.

    Args:
        telemetry: the trial's samples.
        window: its measured window.
        max_foreign_share: a larger share makes the trial INVALID.
    """
    return [
        *_gpu_errors(telemetry),
        *_throttled(telemetry, window),
        *_foreign_load(telemetry, window, max_foreign_share),
        *_gpu_warnings(telemetry),
        *_power_capped(telemetry, window),
        *_slowed(telemetry, window),
        *_energy_disagrees(telemetry, window),
        *_unread_exporters(telemetry),
        *_gpu_notes(telemetry),
    ]


def _gpu_errors(telemetry: Sequence[TelemetryRecord]) -> Iterator[Finding]:
    for gpu in gpu_errors(telemetry):
        of_programs = [xid for xid in gpu.xids if xid in _XIDS_OF_PROGRAMS]
        of_gpu = [xid for xid in gpu.xids if xid not in {*of_programs, _XID_CLEAN_UP, _XID_REPAIR_RECORDED}]
        for xid in of_gpu:
            yield invalid(FindingCode.XID, gpu=gpu.gpu, xid=xid)
        for xid in of_programs:
            if of_gpu or gpu.uncorrected:  # a fault of the GPU makes programs fail
                yield invalid(FindingCode.XID, gpu=gpu.gpu, xid=xid)
            else:
                yield invalid(FindingCode.PROGRAM_XID, gpu=gpu.gpu, xid=xid)
        if gpu.uncorrected and not gpu.shares_chip:
            yield invalid(FindingCode.ECC_UNCORRECTED, gpu=gpu.gpu, errors=gpu.uncorrected)


def _gpu_warnings(telemetry: Sequence[TelemetryRecord]) -> Iterator[Finding]:
    for gpu in gpu_errors(telemetry):
        if _XID_CLEAN_UP in gpu.xids:
            yield warning(FindingCode.XID, gpu=gpu.gpu, xid=_XID_CLEAN_UP)


def _gpu_notes(telemetry: Sequence[TelemetryRecord]) -> Iterator[Finding]:
    for gpu in gpu_errors(telemetry):
        if gpu.uncorrected and gpu.shares_chip:
            yield note(FindingCode.ECC_UNCORRECTED_OF_CHIP, gpu=gpu.gpu, errors=gpu.uncorrected)
        if gpu.corrected:
            yield note(FindingCode.ECC_CORRECTED, gpu=gpu.gpu, errors=gpu.corrected)
        if gpu.repair_pending or _XID_REPAIR_RECORDED in gpu.xids:
            yield note(FindingCode.MEMORY_REPAIR_PENDING, gpu=gpu.gpu)


def _foreign_load(telemetry: Sequence[TelemetryRecord], window: Window, limit: float) -> Iterator[Finding]:
    share = foreign_cpu_share(telemetry, window).value
    cores = next((record.values["cores"] for record in telemetry if record.source == "cpu"), None)
    if share is None or not isinstance(cores, int):
        return
    if share > limit:
        yield invalid(
            FindingCode.FOREIGN_LOAD, foreign_share=share, foreign_cores=share * cores, max_foreign_share=limit
        )
    elif share > SOME_FOREIGN_SHARE:
        yield warning(
            FindingCode.SOME_FOREIGN_LOAD, foreign_share=share, foreign_cores=share * cores, max_foreign_share=limit
        )


def _throttled(telemetry: Sequence[TelemetryRecord], window: Window) -> Iterator[Finding]:
    for gpu in held_back(telemetry, window):
        if gpu.heat_or_brake_s > 0:
            yield invalid(FindingCode.THROTTLED, gpu=gpu.gpu, held_s=gpu.heat_or_brake_s)


def _power_capped(telemetry: Sequence[TelemetryRecord], window: Window) -> Iterator[Finding]:
    for gpu in held_back(telemetry, window):
        share, basis = gpu.power_capped_share, gpu.power_basis.value
        if share > _MAX_LIMITED_SHARE:
            yield warning(FindingCode.POWER_CAPPED, gpu=gpu.gpu, capped_share=share, power_basis=basis)
        elif share >= _SOME_LIMITED_SHARE:
            yield note(FindingCode.POWER_CAPPED, gpu=gpu.gpu, capped_share=share, power_basis=basis)


def _unread_exporters(telemetry: Sequence[TelemetryRecord]) -> Iterator[Finding]:
    failed = [record for record in telemetry if record.source.startswith(FAILED_EXPORTER)]
    for source, failures in Counter(record.source for record in failed).items():
        reason = next(record.reasons["scrape_s"] for record in failed if record.source == source)
        exporter = source.removeprefix(FAILED_EXPORTER)
        yield warning(FindingCode.EXPORTER_UNREAD, exporter=exporter, failures=failures, reason=reason)


def _energy_disagrees(telemetry: Sequence[TelemetryRecord], window: Window) -> Iterator[Finding]:
    for gpu in second_sources(telemetry, window):
        if abs(gpu.exporter_j - gpu.nvml_j) > _MAX_ENERGY_DIFFERENCE * gpu.nvml_j:
            yield warning(
                FindingCode.ENERGY_SOURCES_DISAGREE, gpu=gpu.gpu, nvml_j=round(gpu.nvml_j),
                exporter_j=round(gpu.exporter_j),
            )  # fmt: skip


def _slowed(telemetry: Sequence[TelemetryRecord], window: Window) -> Iterator[Finding]:
    for gpu in held_back(telemetry, window):
        if gpu.slowed_share > _MAX_LIMITED_SHARE:
            yield warning(FindingCode.HARDWARE_SLOWDOWN, gpu=gpu.gpu, slowed_share=gpu.slowed_share)
        elif gpu.slowed_share >= _SOME_LIMITED_SHARE:
            yield note(FindingCode.HARDWARE_SLOWDOWN, gpu=gpu.gpu, slowed_share=gpu.slowed_share)
