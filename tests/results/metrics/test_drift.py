"""Trends through long windows: leaks and drifts are found, noise and what fills up are not."""

import numpy as np
import pytest

from bakeoff.results.metrics.drift import latency_drift, memory_growth
from bakeoff.results.records import Outcome, Phase, RequestRecord, TelemetryRecord, Window
from bakeoff.results.requests import Requests

NS, MIB = 1_000_000_000, 1 << 20
HOUR = Window(0, 3600 * NS)


def memory(sizes_mib: np.ndarray, source: str = "engine", name: str = "rss_bytes") -> list[TelemetryRecord]:
    """One reading each second."""
    return [TelemetryRecord(t * NS, source, {name: float(size) * MIB}) for t, size in enumerate(sizes_mib)]


def noise(seed: int, count: int = 3600) -> np.ndarray:
    """Of allocations that come and go."""
    return np.random.default_rng(seed).normal(0.0, 30.0, count)


def test_a_leak_is_named_with_its_size():
    sizes = 4000 + np.arange(3600) * 0.05 + noise(1)
    (growth,) = memory_growth(memory(sizes), HOUR)
    assert growth.source == "engine"
    assert growth.grown_bytes / MIB == pytest.approx(
        0.05 * 3600 * 11 / 12, rel=0.1
    )  # between the middles of two blocks
    (of_gpu,) = memory_growth(memory(sizes, "gpu1", "memory_used_bytes"), HOUR)
    assert of_gpu.source == "gpu1"


def test_what_fills_up_or_only_varies_is_no_leak():
    filling = 4000 + np.minimum(np.arange(3600) * 1.0, 900) + noise(2)
    assert memory_growth(memory(filling), HOUR) == []
    assert (
        sum(bool(memory_growth(memory(4000 + 20 * noise(seed, 600)), Window(0, 600 * NS))) for seed in range(300)) <= 2
    )
    assert memory_growth(memory(4000 + np.arange(3600) * 0.05), Window(0, 200 * NS)) == []  # too short to tell


def requests(ttfts_s: np.ndarray) -> Requests:
    """One each second, of three tokens 20 ms apart."""
    return Requests([
        RequestRecord(
            index=t, phase=Phase.MEASURED, session=f"s{t}", turn=0, planned_ns=t * NS, sent_ns=t * NS,
            ended_ns=t * NS + round(ttft * NS) + 50_000_000, outcome=Outcome.OK, chunk_tokens=[1, 1, 1],
            chunk_ns=[t * NS + round(ttft * NS) + k * 20_000_000 for k in range(3)], output_tokens=3,
        )
        for t, ttft in enumerate(ttfts_s)
    ])  # fmt: skip


def test_a_drift_of_one_latency_is_named_with_its_size_and_direction():
    rng = np.random.default_rng(3)
    draws = rng.lognormal(-1.0, 0.5, 3600)
    (drift,) = latency_drift(requests(draws * np.linspace(1.0, 1.5, 3600)), HOUR)
    assert drift.latency == "ttft"
    assert drift.share == pytest.approx(0.4, abs=0.15)
    (falling,) = latency_drift(requests(draws * np.linspace(1.5, 1.0, 3600)), HOUR)
    assert falling.share < 0


@pytest.mark.slow
def test_equal_windows_are_seldom_said_to_drift():
    rng = np.random.default_rng(4)
    found = [latency_drift(requests(rng.lognormal(-1.0, 0.8, 300)), Window(0, 300 * NS)) for _ in range(100)]
    assert sum(map(bool, found)) <= 1
