"""Findings about the machine that a trial ran on: foreign load, heat, power limits. Pure functions over its log."""

from collections.abc import Iterator, Sequence

from results.findings import Finding, FindingCode, invalid, warning
from results.metrics.machine import foreign_cpu_share, held_back
from results.records import TelemetryRecord, Window

SOME_FOREIGN_SHARE = 0.05
"""Of all cores; above it a reader is warned."""
MAX_FOREIGN_SHARE = 0.2
"""Default of ``trial.max_foreign_share``. An engine that keeps all cores busy loses about this share of its speed, more
than most differences that are looked for; and one core that is kept busy exceeds it on up to four cores."""
_MOST = 0.5
"""Share of the window for which a GPU may be at its power limit without a warning."""


def machine_findings(
    telemetry: Sequence[TelemetryRecord], window: Window, max_foreign_share: float = MAX_FOREIGN_SHARE
) -> list[Finding]:
    """What was wrong with the machine inside the window, INVALID first.

    Parameters of the findings: ``foreign_share`` and ``max_foreign_share`` of all cores, and ``foreign_cores``, the
    same as a number of cores; ``gpu``, ``held_s``, ``capped_share`` of the window.

    Args:
        telemetry: the trial's samples.
        window: its measured window.
        max_foreign_share: above it the trial is INVALID.
    """
    invalid_first = [*_throttled(telemetry, window), *_foreign_load(telemetry, window, max_foreign_share)]
    return [*invalid_first, *_power_capped(telemetry, window)]


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
        if gpu.power_capped_share > _MOST:
            yield warning(FindingCode.POWER_CAPPED, gpu=gpu.gpu, capped_share=gpu.power_capped_share)
