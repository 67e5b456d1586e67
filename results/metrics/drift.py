"""Whether a value rises or falls through a long window: memory that leaks, latency that drifts.

The window is cut into :data:`BLOCKS` blocks of equal length, and each block is represented by the median of its values.
A trend is tested by Mann's and Kendall's sign statistic (Mann, "Nonparametric Tests Against Trend", Econometrica 13,
1945), which needs no shape of the trend or the noise, and estimated by the median slope of all pairs of blocks (Sen,
"Estimates of the Regression Coefficient Based on Kendall's Tau", JASA 63, 1968). Blocks must be so long that neighbours
are independent, hence :data:`MIN_WINDOW_S`.
"""

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from bakeoff.results.columns import Ints
from bakeoff.results.metrics import latency
from bakeoff.results.metrics.series import series
from bakeoff.results.records import TelemetryRecord, Window
from bakeoff.results.requests import Floats, Requests
from bakeoff.results.units import NS_PER_S

BLOCKS = 12
MIN_WINDOW_S = 300.0
_MIN_VALUES = 5
"""Values of each block."""
_DEVIATIONS = 3.3
"""Of the sign statistic: of windows without a trend, one in a thousand has a larger one."""
_MIN_GROWTH, _MIN_GROWTH_BYTES = 0.01, 16 << 20
"""Smallest growth of memory that is reported: below it, allocators round and caches of code fill."""
_MIN_DRIFT = 0.03
"""Smallest change of a latency that is reported."""


class Growth(msgspec.Struct, frozen=True):
    """Memory that grew through a window, and went on growing in its second half.

    Attributes:
        source: telemetry source: ``engine``, or a GPU.
        grown_bytes: over the window.
        share: of the memory in the first block.
    """

    source: str
    grown_bytes: float
    share: float


class Drift(msgspec.Struct, frozen=True):
    """A latency that changed through a window; ``share`` is the change over the window, of its median."""

    latency: str
    share: float


def memory_growth(telemetry: Sequence[TelemetryRecord], window: Window) -> list[Growth]:
    """The processes and GPUs of the engine whose memory grew; none in a short window."""
    found: list[Growth] = []
    if window.length_s < MIN_WINDOW_S:
        return found
    middle_ns = (window.start_ns + window.end_ns) // 2
    for source, name in _memories(telemetry):
        readings = series([record for record in telemetry if record.source == source], name)
        if readings is None:
            continue
        times, values = readings
        whole = _blocks(times, values, window)
        later = _blocks(times, values, Window(middle_ns, window.end_ns))
        if whole is None or later is None or _deviations(later) < _DEVIATIONS:
            continue
        grown = float(whole[-1] - whole[0])
        if grown >= max(_MIN_GROWTH * whole[0], _MIN_GROWTH_BYTES):
            found.append(Growth(source, grown, grown / whole[0]))
    return found


def latency_drift(planned: Requests, window: Window) -> list[Drift]:
    """The latencies that rose or fell through a window; none in a short one.

    Args:
        planned: requests planned in the window.
        window: of the trial.
    """
    found: list[Drift] = []
    if window.length_s < MIN_WINDOW_S:
        return found
    times = planned.ints("planned_ns")
    for name, values in (("ttft", latency.ttft_s(planned)), ("tpot", latency.tpot_s(planned))):
        known = np.isfinite(values)
        blocks = _blocks(times[known], values[known], window)
        if blocks is None or abs(_deviations(blocks)) < _DEVIATIONS:
            continue
        share = _slope(blocks) * len(blocks) / float(np.median(blocks))
        if abs(share) >= _MIN_DRIFT:
            found.append(Drift(name, share))
    return found


def _memories(telemetry: Sequence[TelemetryRecord]) -> list[tuple[str, str]]:
    sources = dict.fromkeys(record.source for record in telemetry)
    gpus = [(source, "memory_used_bytes") for source in sources if source.startswith("gpu")]
    return [*([("engine", "rss_bytes")] if "engine" in sources else []), *gpus]


def _blocks(times_ns: Ints, values: Floats, window: Window) -> Floats | None:
    """Medians of the blocks; None if a block has few values."""
    if not len(times_ns):
        return None
    numbers = (times_ns - window.start_ns) * BLOCKS // round(window.length_s * NS_PER_S)
    parts = [values[numbers == number] for number in range(BLOCKS)]
    if min(map(len, parts)) < _MIN_VALUES:
        return None
    return np.array([np.median(part) for part in parts])


def _deviations(blocks: Floats) -> float:
    """The sign statistic in standard deviations; 0 where all pairs are equal."""
    signs = sum(int(np.sign(later - earlier)) for earlier, later in itertools.combinations(blocks, 2))
    n = len(blocks)
    return (signs - np.sign(signs)) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)


def _slope(blocks: Floats) -> float:
    """Median change from one block to the next, over all pairs."""
    pairs = itertools.combinations(enumerate(blocks), 2)
    return float(np.median([(later - earlier) / (j - i) for (i, earlier), (j, later) in pairs]))
