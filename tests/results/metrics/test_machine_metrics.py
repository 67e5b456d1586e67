"""Foreign load and throttled GPUs, worked by hand."""

import pytest

from bakeoff.results.metrics.machine import (
    HEAT_OR_BRAKE,
    POWER_CAP,
    SLOWDOWN,
    GpuErrors,
    HeldBack,
    PowerBasis,
    foreign_cpu_share,
    gpu_errors,
    held_back,
)
from bakeoff.results.metrics.series import rates
from bakeoff.results.records import TelemetryRecord, Window

S = 1_000_000_000
WINDOW = Window(10 * S, 20 * S)


def cpu(t_s: float, unused_s: float, own_s: float | None, cores: int = 4) -> TelemetryRecord:
    return TelemetryRecord(round(t_s * S), "cpu", {"cores": cores, "unused_s": unused_s, "own_s": own_s})


def gpu(t_s: float, source: str = "gpu0", **values: float) -> TelemetryRecord:
    return TelemetryRecord(round(t_s * S), source, {**values})


def test_what_is_neither_unused_nor_our_own_is_foreign() -> None:
    """4 cores for 10 s are 40 s; 20 s idle and 14 s of our own leave 6 s to others: 15 %."""
    records = [cpu(10, 100.0, 7.0), cpu(20, 120.0, 21.0)]
    assert foreign_cpu_share(records, WINDOW).value == pytest.approx(0.15)


def test_edges_lie_between_samples() -> None:
    """Every second 2.0 s idle and 1.5 s of our own, cut at half seconds: of 4 s half a second is foreign."""
    records = [cpu(t + 0.5, 2.0 * t, 1.5 * t) for t in range(30)]
    assert foreign_cpu_share(records, WINDOW).value == pytest.approx(0.125)


def test_load_outside_the_window_does_not_count() -> None:
    busy = [cpu(t, 0.0, 0.0) for t in range(10)]  # all four cores are foreign
    quiet = [cpu(t, 4.0 * (t - 10), 0.0) for t in range(10, 25)]
    assert foreign_cpu_share([*busy, *quiet], WINDOW).value == 0.0


def test_counters_that_overlap_give_no_negative_load() -> None:
    """The kernel samples user time but not idle time, so the sum may exceed the elapsed time."""
    assert foreign_cpu_share([cpu(10, 0, 0), cpu(20, 30.0, 10.5)], WINDOW).value == 0.0


def test_load_that_is_not_known_is_absent_with_the_reason() -> None:
    assert foreign_cpu_share([], WINDOW).reason == "own_s was not sampled"
    assert foreign_cpu_share([cpu(11, 0, 0), cpu(20, 1, 1)], WINDOW).reason == "the samples do not cover the window"
    assert foreign_cpu_share([cpu(10, 0, 0), cpu(20, 1, 1)], Window(S, S)).reason == "the window is empty"
    hidden = [
        TelemetryRecord(t * S, "cpu", {"cores": 4, "unused_s": 0.0, "own_s": None}, {"own_s": "in a container"})
        for t in (10, 20)
    ]
    assert foreign_cpu_share(hidden, WINDOW).reason == "in a container"


def test_counted_time_sees_what_the_mask_misses() -> None:
    """0.3 s of heat between two samples with clear masks; what happened before the window does not count."""
    counted = [(5, 0.0), (10, 1.0), (15, 1.0), (20, 1.3), (25, 9.0)]
    records = [gpu(t, throttle_reasons=0, heat_hardware_s=held_s) for t, held_s in counted]
    (limited,) = held_back(records, WINDOW)
    assert limited.heat_or_brake_s == pytest.approx(0.3)


@pytest.mark.parametrize("bit", [0x20, 0x40, 0x80])
def test_the_mask_alone_is_believed_too(bit: int) -> None:
    """One of five samples of a window of 10 s."""
    assert bit & HEAT_OR_BRAKE
    records = [gpu(t, throttle_reasons=bit if t == 12 else 0) for t in (2, 10, 12, 14, 16, 18, 22)]
    assert held_back(records, WINDOW) == [HeldBack("gpu0", 2.0, 0.0, PowerBasis.SAMPLED)]


@pytest.mark.parametrize(
    ("values", "share", "basis", "slowed_share"),
    [
        ({"throttle_reasons": POWER_CAP}, 1.0, PowerBasis.SAMPLED, 0.0),
        ({"throttle_reasons": SLOWDOWN}, 0.0, PowerBasis.SAMPLED, 1.0),
        ({"throttle_reasons": SLOWDOWN, "power_cap_s": 5.0}, 0.0, PowerBasis.COUNTED, 1.0),
        ({"throttle_reasons": 0x10 | 0x01}, 0.0, PowerBasis.SAMPLED, 0.0),
        (
            {"throttle_reasons": POWER_CAP, "power_cap_s": 5.0},
            0.0,
            PowerBasis.COUNTED,
            0.0,
        ),  # the counter does not advance, and is more reliable
    ],
)
def test_the_power_limit_and_slowdowns_by_hardware_are_shares_of_the_window(
    values: dict[str, float], share: float, basis: PowerBasis, slowed_share: float
) -> None:
    assert held_back([gpu(t, **values) for t in range(9, 22)], WINDOW) == [
        HeldBack("gpu0", 0.0, share, basis, slowed_share)
    ]


def test_the_counter_of_the_power_limit_counts_to_the_instant() -> None:
    records = [gpu(t, throttle_reasons=0, power_cap_s=0.7 * t) for t in range(9, 22)]
    (limited,) = held_back(records, WINDOW)
    assert limited.power_capped_share == pytest.approx(0.7)


@pytest.mark.parametrize(("newer", "held_s"), [(False, 2.0), (True, 1.0)])
def test_an_older_driver_counts_all_heat_in_one(newer: bool, held_s: float) -> None:
    """The policy counter grows by 0.2 s per second; a newer driver counts heat itself, 0.1 s, and only that counts."""
    newer_values = {"heat_driver_s": 0.1} if newer else {}
    records = [
        gpu(t, heat_limit_s=0.2 * t, **{name: value * t for name, value in newer_values.items()}) for t in range(9, 22)
    ]
    (limited,) = held_back(records, WINDOW)
    assert limited.heat_or_brake_s == pytest.approx(held_s)


def test_each_gpu_is_looked_at_by_itself() -> None:
    capped = [gpu(t, "gpu1", throttle_reasons=POWER_CAP) for t in range(9, 22)]
    hot = [gpu(t, "gpu0", throttle_reasons=0x40) for t in range(9, 22)]
    assert held_back(capped + hot, WINDOW) == [
        HeldBack("gpu0", 10.0, 0.0, PowerBasis.SAMPLED), HeldBack("gpu1", 0.0, 1.0, PowerBasis.SAMPLED),
    ]  # fmt: skip
    assert held_back([], WINDOW) == []


def test_a_counter_grows_by_the_second_and_never_shrinks() -> None:
    """2 in half a second are 4 per second; a reset is 0, and two readings at one instant have no rate."""
    assert rates([(0, 1.0), (S // 2, 3.0), (S // 2, 5.0), (2 * S, 0.5), (3 * S, 0.75)]) == [
        (0, S // 2, 4.0), (S // 2, 2 * S, 0.0), (2 * S, 3 * S, 0.25),
    ]  # fmt: skip


def test_errors_of_a_gpu_count_over_the_whole_trial() -> None:
    """The window is 10 to 20 s; 3 of 5 corrected errors came before the trial, an XID error before the window."""
    records = [
        gpu(1, ecc_corrected_errors=3, ecc_uncorrected_errors=0, memory_repair_pending=0),
        *[gpu(4, xid=xid) for xid in (79, 31, 79)],
        gpu(25, ecc_corrected_errors=5, ecc_uncorrected_errors=1, memory_repair_pending=1),
        gpu(1, "gpu1", ecc_corrected_errors=3),
        gpu(25, "gpu1", ecc_corrected_errors=0),  # the driver was reloaded
        gpu(25, "gpu2", power_w=3),
    ]
    assert gpu_errors(records) == [
        GpuErrors("gpu0", [31, 79], uncorrected=1, corrected=2, repair_pending=True),
        GpuErrors("gpu1", [], 0, 0, repair_pending=False),
        GpuErrors("gpu2", [], 0, 0, repair_pending=False),
    ]
