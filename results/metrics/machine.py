"""What of the machine a trial did not have: cores that foreign processes used, and GPUs that were held back."""

from collections.abc import Sequence

import msgspec

from results.metrics.series import moved
from results.metrics.values import Value, absent
from results.records import TelemetryRecord, Window

POWER_CAP, SLOWDOWN = 0x04, 0x08
HEAT_OR_BRAKE = 0x20 | 0x40 | 0x80
"""Bits of NVML's clock event reasons (nvml.h): the power limit; any slowdown by hardware; heat, as driver or hardware
see it, and the power brake."""
_HEAT_OR_BRAKE_S = ("heat_driver_s", "heat_hardware_s", "power_brake_s")


class HeldBack(msgspec.Struct, frozen=True):
    """How long one GPU did not run at the clocks that it could have.

    Attributes:
        gpu: source of its samples.
        heat_or_brake_s: seconds inside the window, or the share of samples of which the mask says so times its length,
            whichever is larger; 0 where neither says so.
        power_capped_share: of the window at the power limit, or slowed down by hardware.
    """

    gpu: str
    heat_or_brake_s: float
    power_capped_share: float


def foreign_cpu_share(telemetry: Sequence[TelemetryRecord], window: Window) -> Value:
    """Share of the time of all cores, over the window, that neither engine nor harness used: 1 − (unused + own) / all.

    Both counters are cumulative, so the share holds for the window as a whole however short a foreign process lived.
    """
    records = [record for record in telemetry if record.source == "cpu"]
    cores = next((cores for record in records if isinstance(cores := record.values.get("cores"), int)), None)
    if window.length_s <= 0:
        return absent("the window is empty")
    unused, own = moved(records, "unused_s", window), moved(records, "own_s", window)
    if unused.value is None or own.value is None:
        return own if own.value is None else unused
    if not cores:
        return absent("no number of cores")
    return Value(max(0.0, 1 - (unused.value + own.value) / (cores * window.length_s)))


def held_back(telemetry: Sequence[TelemetryRecord], window: Window) -> list[HeldBack]:
    """Each GPU that was sampled inside the window.

    Where the driver has counters of the time, they see what happens between two samples of the mask.
    """
    gpus = sorted({record.source for record in telemetry if record.source.startswith("gpu")})
    return [_held_back(gpu, [record for record in telemetry if record.source == gpu], window) for gpu in gpus]


def _held_back(gpu: str, records: Sequence[TelemetryRecord], window: Window) -> HeldBack:
    def masked_share(bits: int) -> float:
        return sum(bool(mask & bits) for mask in masks) / len(masks) if masks else 0.0

    sampled = [record.values.get("throttle_reasons") for record in records if window.holds(record.t_ns)]
    masks = [mask for mask in sampled if isinstance(mask, int)]
    counted_s = sum(moved(records, name, window).value or 0.0 for name in _HEAT_OR_BRAKE_S)
    capped_s = moved(records, "power_cap_s", window).value
    capped = masked_share(POWER_CAP) if capped_s is None else capped_s / window.length_s
    return HeldBack(
        gpu=gpu,
        heat_or_brake_s=max(counted_s, masked_share(HEAT_OR_BRAKE) * window.length_s),
        power_capped_share=min(1.0, max(capped, masked_share(SLOWDOWN))),
    )
