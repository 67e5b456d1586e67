"""Energy and memory against fake counters."""

import numpy as np
import pytest

from bakeoff.results.metrics.energy import energy, per_unit
from bakeoff.results.metrics.memory import peak_gpu_bytes, peak_host_bytes
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.records import TelemetryRecord, Window

S = 1_000_000_000
WINDOW = Window(60 * S, 90 * S)


def gpu(t_s: float, source: str = "gpu0", **values: float | None) -> TelemetryRecord:
    return TelemetryRecord(round(t_s * S), source, dict(values))


def samples(
    watts: float = 700.0, *, idle_watts: float = 100.0, read_watts: float | None = None, source: str = "gpu0"
) -> list[TelemetryRecord]:
    """A counter that steps every 100 ms, read every 70 ms from 40 s to 100 s; the load is on from 60 s."""
    records = []
    for t in np.arange(40.0, 100.0, 0.07):
        stepped = np.floor(t * 10) / 10
        joules = idle_watts * min(stepped, 60.0) + watts * max(0.0, stepped - 60.0)
        power = read_watts if read_watts is not None else (watts if t >= 60 else idle_watts)
        records.append(gpu(float(t), source, energy_j=float(joules), power_w=power))
    return records


def test_700_watts_over_30_seconds() -> None:
    """700 W × 30 s = 21,000 J; the 100 ms steps may cost 0.5 % (105 J)."""
    total = energy(samples(), WINDOW).total_j.value
    assert total == pytest.approx(21_000, rel=0.005)


def test_idle_draw_is_taken_away() -> None:
    """Idle 100 W: 21,000 − 100 × 30 = 18,000 J."""
    window_energy = energy(samples(), WINDOW, idle=Window(45 * S, 59 * S))
    assert window_energy.above_idle_j.value == pytest.approx(18_000, rel=0.01)


def test_two_gpus_add_up() -> None:
    two_gpus = samples(300.0) + samples(400.0, source="gpu1")
    assert energy(two_gpus, WINDOW).total_j.value == pytest.approx(21_000, rel=0.005)


def test_a_gpu_whose_power_is_shared_leaves_the_sum_without_a_number() -> None:
    shared = [TelemetryRecord(50 * S, "gpu1.0", {"energy_j": None}, {"energy_j": "other slices share it"})]
    assert energy(samples() + shared, WINDOW).total_j.reason == "gpu1.0: other slices share it"


def test_a_short_window_is_refused() -> None:
    """In 0.05 s the counter may not advance at all."""
    window_energy = energy(samples(), Window(60 * S, 60 * S + S // 20))
    assert window_energy.total_j.reason == "energy needs a window of 15 s, this one has 0.1 s"
    assert window_energy.above_idle_j.reason == window_energy.total_j.reason


def test_counter_and_power_that_disagree_are_both_doubted() -> None:
    """Integrated 600 W against a counter of 700 W: 14 % apart."""
    reason = energy(samples(read_watts=600.0), WINDOW).total_j.reason
    assert reason == "gpu0: unreliable: the counter shows 20953 J, integrated power 18000 J"


@pytest.mark.parametrize("with_power", [True, False])
def test_a_counter_that_stands_still_gives_no_energy(with_power: bool) -> None:
    power = {"power_w": 700.0} if with_power else {}
    stuck = [gpu(t, energy_j=5.0, **power) for t in range(50, 100)]
    reason = energy(stuck, WINDOW).total_j.reason
    assert reason is not None
    assert "did not change" in reason


@pytest.mark.parametrize(("stuck_s", "believed"), [(2.0, True), (2.1, False)])
def test_a_counter_may_stand_still_for_two_seconds(stuck_s: float, believed: bool) -> None:
    """Stuck from 70 s on, then catching up: over the whole window the sums are correct."""
    seconds = np.arange(500, 1000) / 10
    joules = [700 * (70.0 if 70 <= t <= 70 + stuck_s else t) for t in seconds]
    records = [gpu(float(t), energy_j=float(j)) for t, j in zip(seconds, joules, strict=True)]
    total = energy(records, WINDOW).total_j
    assert (total.value == pytest.approx(21_000)) if believed else total.value is None
    assert total.reason == (None if believed else "gpu0: the energy counter did not change for 2.1 s or was reset")


def test_a_counter_without_power_readings_is_believed() -> None:
    records = [gpu(t, energy_j=700.0 * t) for t in range(50, 100)]
    assert energy(records, WINDOW).total_j.value == pytest.approx(21_000)


def test_two_samples_at_the_edges_are_enough() -> None:
    """0 J at 60 s and 1 J at 90 s: the samples cover the window exactly, and 1 J counts as an increase."""
    records = [gpu(60, energy_j=0.0), gpu(90, energy_j=1.0)]
    assert energy(records, WINDOW).total_j.value == pytest.approx(1.0)
    assert energy(records[:1], WINDOW).total_j.reason == "gpu0: energy_j was not sampled"
    assert (
        energy([records[0], gpu(89, energy_j=1.0)], WINDOW).total_j.reason
        == "gpu0: the samples do not cover the window"
    )


@pytest.mark.parametrize(("watts", "believed"), [(35.0, True), (35.1, False), (31.7, True), (31.6, False)])
def test_power_may_be_five_percent_off(watts: float, believed: bool) -> None:
    """1,000 J against 35 W × 30 s = 1,050 J, just 5 % apart; 31.7 W are 4.9 % too little, 31.6 W 5.2 %."""
    records = [gpu(t, energy_j=1000 * (t - 60) / 30, power_w=watts) for t in range(50, 100)]
    assert (energy(records, WINDOW).total_j.value is not None) is believed


def test_power_is_integrated_between_its_samples() -> None:
    """Power rises evenly from 0 W at 50 s to 100 W at 100 s: 20 W at 60 s, 80 W at 90 s, so 50 W × 30 s = 1,500 J."""
    ends = [gpu(50, power_w=0.0), gpu(100, power_w=100.0)]
    counter = [gpu(t, energy_j=(t - 50) ** 2) for t in range(51, 100)]  # the integral of 2 (t − 50) W
    assert energy([*counter, *ends], WINDOW).total_j.value == pytest.approx(40**2 - 10**2)
    off = [gpu(t, energy_j=1.06 * (t - 50) ** 2) for t in range(51, 100)]
    reason = "gpu0: unreliable: the counter shows 1590 J, integrated power 1500 J"
    assert energy([*off, *ends], WINDOW).total_j.reason == reason


def test_samples_must_cover_the_window() -> None:
    late = [record for record in samples() if record.t_ns > 61 * S]
    assert energy(late, WINDOW).total_j.reason == "gpu0: the samples do not cover the window"


def test_idle_baseline_is_absent_with_its_reason() -> None:
    assert energy(samples(), WINDOW).above_idle_j.reason == "no idle baseline was measured"
    short = energy(samples(), WINDOW, idle=Window(45 * S, 46 * S))
    assert short.total_j.value is not None
    assert short.above_idle_j.reason == "no idle baseline: energy needs a window of 4 s, this one has 1.0 s"


def test_no_gpu_and_no_counter() -> None:
    assert energy([], WINDOW).total_j.reason == "no GPU was sampled"
    blind = [gpu(t, power_w=700.0) for t in range(50, 100)]
    assert energy(blind, WINDOW).total_j.reason == "gpu0: energy_j was not sampled"
    records = [
        TelemetryRecord(t * S, "gpu0", {"energy_j": None}, {"energy_j": "not supported"}) for t in range(50, 100)
    ]
    assert energy(records, WINDOW).total_j.reason == "gpu0: not supported"


def test_energy_per_token() -> None:
    """21,000 J over 3,000 tokens: 7 J each; without tokens there is no value."""
    assert per_unit(Value(21_000.0), 3_000, "output token").value == pytest.approx(7.0)
    assert per_unit(Value(21_000.0), 1, "request").value == pytest.approx(21_000)
    assert per_unit(Value(21_000.0), 0, "output token").reason == "no output token in the window"
    assert per_unit(absent("why"), 10, "output token").reason == "why"


def test_peak_host_memory_is_the_largest_sample_of_the_engine() -> None:
    records = [
        TelemetryRecord(1, "engine", {"rss_bytes": 100}),
        TelemetryRecord(2, "engine", {"rss_bytes": 300}),
        TelemetryRecord(3, "engine", {"rss_bytes": None}, {"rss_bytes": "gone"}),
        TelemetryRecord(4, "client", {"rss_bytes": 900}),
    ]
    assert peak_host_bytes(records).value == 300.0
    assert peak_host_bytes(records[2:]).reason == "the engine's process was not sampled"


def test_what_several_processes_share_counts_once() -> None:
    """Three of 100 each, of which 60 are common to all: 300 − 2 × 60, at the peak and at the reading after the load."""
    samples = [TelemetryRecord(t, "engine", {"rss_bytes": rss, "processes": 3}) for t, rss in ((1, 300), (2, 340))]
    after = TelemetryRecord(3, "memory", {"pss_bytes": 180, "rss_bytes": 300})
    assert peak_host_bytes([*samples, after]).value == 340 - 120


def test_without_that_reading_one_process_has_a_number_and_several_have_none() -> None:
    denied = TelemetryRecord(3, "memory", {"pss_bytes": None, "rss_bytes": None}, {"pss_bytes": "not permitted"})
    several = TelemetryRecord(1, "engine", {"rss_bytes": 300, "processes": 3})
    assert peak_host_bytes([TelemetryRecord(1, "engine", {"rss_bytes": 300, "processes": 1}), denied]).value == 300
    reason = "the memory shared between the engine's processes is unknown: not permitted"
    assert peak_host_bytes([several, denied]).reason == reason
    assert peak_host_bytes([several]).reason == reason.replace("not permitted", "it was not read")


def test_peak_gpu_memory_is_the_largest_instant_over_all_gpus() -> None:
    """At 1 s: 10 + 50 = 60; at 2 s: 40 + 30 = 70, although no single GPU peaks then."""
    records = [
        gpu(1, "gpu0", memory_used_bytes=10),
        gpu(1, "gpu1", memory_used_bytes=50),
        gpu(2, "gpu0", memory_used_bytes=40),
        gpu(2, "gpu1", memory_used_bytes=30),
    ]
    assert peak_gpu_bytes(records).value == 70.0
    assert peak_gpu_bytes([]).reason == "no GPU was sampled"
    driverless = TelemetryRecord(1, "sampler", {}, {"nvml": "no driver"})
    assert peak_gpu_bytes([driverless]).reason == "no driver"
    without = TelemetryRecord(1, "gpu0", {"memory_used_bytes": None}, {"memory_used_bytes": "Not Supported"})
    assert peak_gpu_bytes([without]).reason == "Not Supported"
