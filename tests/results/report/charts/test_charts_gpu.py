"""GPUs below the timeline: sums, worst cases, and when and why clocks were held back."""

import re

import pytest

from bakeoff import results
from bakeoff.results.records import TelemetryRecord
from bakeoff.results.report import render_html
from bakeoff.results.report.charts.scales import Axis
from bakeoff.results.report.charts.throttling import REASONS, Throttling, draw_throttling, throttling_of
from bakeoff.results.report.charts.tracks import draw_track, tracks_of
from tests.results.builders import FAST, LOADS, Sheet, build_run
from tests.results.gpu_samples import CAP, HEAT, IDLE
from tests.results.report.charts.test_charts_paths import corners

X = Axis(0, 100, 0, 1000)


def sample(t_ns: int, gpu: int = 0, **values: float) -> TelemetryRecord:
    return TelemetryRecord(t_ns, f"gpu{gpu}", values)


def masks(*pairs: tuple[int, int], gpu: int = 0) -> list[TelemetryRecord]:
    return [sample(t, gpu, throttle_reasons=mask) for t, mask in pairs]


def test_power_and_memory_add_up_and_the_worst_clock_and_heat_are_shown() -> None:
    records = [
        sample(t, gpu, power_w=300 + 10 * gpu, memory_used_bytes=5, clock_sm_mhz=1_980 - 100 * gpu,
               clock_memory_mhz=2_619, temperature_c=50 + gpu, utilization_gpu_share=0.5 * gpu)
        for t in (0, 10) for gpu in (0, 1)
    ]  # fmt: skip
    tracks = {track.title: [value for _, value in track.points] for track in tracks_of(records, 0, 100)}
    assert tracks == {
        "GPU power, W": [610, 610], "GPU memory": [10, 10], "GPU clock, MHz": [1_880, 1_880], "GPU, °C": [51, 51],
        "GPU memory, MHz": [2_619, 2_619], "GPU busy": [0.25, 0.25],
    }  # fmt: skip


def test_traffic_is_the_sum_of_both_directions_and_all_gpus_per_second() -> None:
    """Each of two GPUs sends 3 and receives 4 bytes in 10 ns; one counter is reset at the end."""
    records = [
        sample(t, gpu, pcie_tx_bytes=0.3 * t, pcie_rx_bytes=0.4 * t, nvlink_tx_bytes=7, gpm_dram_share=0.2 + 0.4 * gpu)
        for t in (0, 10, 20) for gpu in (0, 1)
    ]  # fmt: skip
    records.append(sample(30, 0, pcie_tx_bytes=0.0))
    tracks = {track.title: [value for _, value in track.points] for track in tracks_of(records, 0, 100)}
    assert tracks == {
        "PCIe, per s": pytest.approx([1.4e9, 1.4e9, 0]), "NVLink, per s": [0, 0],
        "GPU DRAM": pytest.approx([0.4, 0.4, 0.4]),
    }  # fmt: skip


def test_a_counter_without_a_reading_keeps_its_rate() -> None:
    """Two GPUs send 1 and 3 bytes/ns; the second lacks the reading at 20 ns."""
    records = [
        sample(t, gpu, pcie_tx_bytes=[1e12 + t, 5e12 + 3 * t][gpu]) for t in (0, 10, 20, 30) for gpu in (0, 1)
        if (t, gpu) != (20, 1)
    ]  # fmt: skip
    (track,) = tracks_of(records, 0, 100)
    assert track.points == [(10, 4e9), (20, 4e9), (30, 4e9)]


def test_the_lowest_clock_survives_thinning() -> None:
    records = [sample(t, clock_sm_mhz=1_200.0 if t == 777 else 1_980.0) for t in range(1_000)]
    (track,) = tracks_of(records, 0, 1_000)
    drawn = draw_track(track, Axis(0, 1_000, 0, 1_000), 0, "e0", 60)
    assert "min 1,200" in drawn
    (data,) = re.findall(r'<path d="([^"]+)"', drawn)
    depths = [y for _, y in corners(data)]
    assert max(depths) == pytest.approx(34 * (1 - 1_200 / 1_980), abs=0.1)
    assert len(depths) <= 60


def test_reasons_last_until_the_next_sample() -> None:
    throttling = throttling_of(
        [*masks((0, IDLE), (10, CAP), (20, CAP | HEAT), (30, 0)), *masks((30, IDLE), gpu=1)], 0, 40
    )
    assert throttling == Throttling(
        [
            ("GPU heat, driver", True, [(20, 30)], "25 %"),
            ("GPU power cap", False, [(10, 20), (20, 30)], "50 %"),
        ]
    )


def test_any_gpu_counts_and_the_last_sample_holds_to_the_end() -> None:
    throttling = throttling_of([*masks((0, 0), (10, 0)), *masks((0, 0), (10, HEAT), gpu=1)], 0, 40)
    assert throttling is not None
    assert throttling.rows[0][2] == [(10, 40)]


def test_a_gpu_without_throttle_reasons_is_not_shown_as_never_throttled() -> None:
    assert throttling_of([sample(0, power_w=300)], 0, 40) is None
    quiet = throttling_of(masks((0, IDLE), (10, 0)), 0, 40)
    assert quiet == Throttling([])
    assert ">never</text>" in draw_throttling(quiet, X, 0)


def test_neighbours_are_one_stroke_and_hindrance_is_told_apart() -> None:
    row = ("GPU power cap", False, [(0, 10), (10, 20), (50, 60)], "50 %")
    drawn = draw_throttling(Throttling([row, ("GPU heat, driver", True, [(0, 1)], "1 %")]), X, 0)
    assert re.findall(r'<path d="([^"]+)" class="(\w+)"', drawn) == [
        ("M0 5H200M500 5H600", "held"),
        ("M0 20H10", "hindered"),
    ]
    assert "throttled 50 %" in drawn


def test_the_bits_equal_those_of_nvml() -> None:
    pynvml = pytest.importorskip("pynvml")
    bits = {title: bit for bit, title, _ in REASONS}
    assert bits["GPU power cap"] == pynvml.nvmlClocksThrottleReasonSwPowerCap
    assert bits["GPU heat, driver"] == pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    assert bits["GPU heat, hardware"] == pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    assert bits["GPU power brake"] == pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
    assert bits["GPU slowdown"] == pynvml.nvmlClocksThrottleReasonHwSlowdown
    assert bits["GPU sync boost"] == pynvml.nvmlClocksThrottleReasonSyncBoost
    assert bits["GPU clocks as set"] == pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting
    assert bits["GPU display clocks"] == pynvml.nvmlClocksThrottleReasonDisplayClockSetting
    assert pynvml.nvmlClocksThrottleReasonGpuIdle not in bits.values()


@pytest.mark.slow
def test_a_page_with_gpus_and_one_without(tmp_path, demo: results.Run) -> None:
    sheet = Sheet(engines={"only": FAST}, loads=LOADS[2:3], repeats=2, gpus=2, invalid=())
    page = render_html(results.load(build_run(tmp_path, sheet)))
    for title in (
        "GPU memory",
        "GPU busy",
        "GPU power, W",
        "GPU clock, MHz",
        "GPU, °C",
        "GPU power cap",
        "GPU SMs busy",
        "PCIe, per s",
    ):
        assert page.count(f">{title}</text>") == 2, title
    assert "No GPU:" not in page
    assert "No GPU: NVML is not installed here." in render_html(demo)
