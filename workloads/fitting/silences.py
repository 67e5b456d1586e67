"""Find bursts and silences in a sequence of gaps."""

from collections.abc import Iterator
from itertools import pairwise

import msgspec
import numpy as np

from bakeoff.workloads.arrivals import OnOff
from bakeoff.workloads.fitting.estimates import gamma_burstiness, moment_burstiness
from bakeoff.workloads.fitting.rounding import rounded, table
from bakeoff.workloads.fitting.samples import Floats

_FEWEST_SILENCES = 12
_FEWEST_PER_BURST = 20
"""Arrivals per burst on average, at least; thresholds that give fewer are skipped."""
_FEWEST_FOR_DENSITY = 10
_SHORTEST_GAP_S = 1e-9
_CLEAR_DROP = 3.0
_MOST_SPREAD = 3.0
_SHORTEST_CYCLE_S = 0.2
_LEAST_CONTRAST, _LEAST_SHARE = 10.0, 0.1
"""Silences are at least ten times as long as the gaps within bursts and take at least a tenth of the time."""


class Split(msgspec.Struct, frozen=True):
    """A trace cut at its long gaps.

    Attributes:
        threshold_s: gaps above it are silences.
        silences: number of silences.
        silent_share: fraction of the time that they take.
        process: fitted to the bursts, silences and gaps within bursts.
    """

    threshold_s: float
    silences: int
    silent_share: float
    process: OnOff


def splits(gaps_s: Floats, rate_per_s: float) -> Iterator[Split]:
    """Candidate splits, each with two estimates of the burstiness within bursts.

    If sorted gaps drop by more than a factor of three from one to the next, the threshold is there. Otherwise the
    thresholds that give 12, 24, 48… silences are candidates, and the caller picks the one that fits the trace best.
    """
    longest_first = np.sort(gaps_s)[::-1]
    most = len(gaps_s) // _FEWEST_PER_BURST
    if most < _FEWEST_SILENCES:
        return
    tail = np.maximum(longest_first[_FEWEST_SILENCES - 1 : most + 1], _SHORTEST_GAP_S)
    drops = tail[:-1] / tail[1:]
    counts = [_FEWEST_SILENCES * 2**k for k in range(int(np.log2(most / _FEWEST_SILENCES)) + 1)]
    if drops.max() > _CLEAR_DROP:
        counts = [_FEWEST_SILENCES + int(drops.argmax())]
    for silences in counts:
        if longest_first[silences] > 0:
            yield from _split(gaps_s, float(longest_first[silences]), rate_per_s)


def _split(gaps_s: Floats, threshold_s: float, rate_per_s: float) -> Iterator[Split]:
    cuts = np.flatnonzero(gaps_s > threshold_s)
    inside_s = gaps_s[gaps_s <= threshold_s]
    if len(cuts) < _FEWEST_SILENCES // 2 or inside_s.max() <= 0:
        return
    edge_s = float(inside_s.mean())  # half a gap before a burst's first arrival and half a gap after its last
    bursts = [gaps_s[a + 1 : b] for a, b in pairwise(cuts.tolist())]  # the first and last bursts are incomplete
    counts = np.array([len(burst) + 1 for burst in bursts])
    lengths_s = np.array([float(burst.sum()) for burst in bursts]) + edge_s
    silences_s = np.maximum(gaps_s[cuts] - edge_s, threshold_s / 10)
    scaled = [burst / burst.mean() for burst in bursts if len(burst) >= _FEWEST_PER_BURST and burst.max() > 0]
    inside = np.concatenate(scaled) if scaled else inside_s / edge_s
    share = float(silences_s.sum() / gaps_s.sum())
    if (
        lengths_s.mean() + silences_s.mean() < _SHORTEST_CYCLE_S
        or share < _LEAST_SHARE
        or silences_s.mean() < _LEAST_CONTRAST * edge_s
    ):
        return
    for burstiness in (moment_burstiness(inside), gamma_burstiness(inside)):
        process = OnOff(
            rate_per_s,
            on_s=table(lengths_s),
            off_s=table(silences_s),
            spread=rounded(_spread(counts, lengths_s, burstiness), 3),
            burstiness=rounded(burstiness, 3),
        )
        yield Split(rounded(threshold_s, 3), len(cuts), share, process)


def _spread(counts: Floats, lengths_s: Floats, burstiness: float) -> float:
    """Standard deviation of the logarithm of the bursts' rates, minus the sampling noise of their counts."""
    dense = counts >= _FEWEST_FOR_DENSITY
    if dense.sum() < 2:
        return 0.0
    logs = np.log(counts[dense] / lengths_s[dense])
    noise = float((1 / (burstiness * counts[dense])).mean())
    return float(min(np.sqrt(max(logs.var(ddof=1) - noise, 0.0)), _MOST_SPREAD))
