"""Goodness of fit: traffic drawn from a preset compared with the trace that the preset was fitted to."""

import math
from collections.abc import Iterator, Mapping

import msgspec

from bakeoff.workloads.distributions import ks_distance
from bakeoff.workloads.fitting.arrivals import BUDGET
from bakeoff.workloads.fitting.arrivals import TOLERANCE as ARRIVAL_TOLERANCE
from bakeoff.workloads.fitting.observed import Observed
from bakeoff.workloads.fitting.redrawn import redrawn
from bakeoff.workloads.fitting.replicas import Replicas, arrival_figures, replicas
from bakeoff.workloads.fitting.samples import Floats
from bakeoff.workloads.presets import Preset
from bakeoff.workloads.rng import Seed

LENGTH_TOLERANCE = 0.18
"""Relative. Mean lengths of two parts of one Azure 2023 trace differ by 3 to 18 %, so a fit cannot do better."""
KS_TOLERANCE = 0.05
_SINGLE = ("input", "output")
"""Distances for traces without sessions."""
_DRAWS_APART = 3.0
_CHANCE = 1.63
"""Times √(1/n + 1/m): distance that two samples of one distribution exceed with probability 1 %."""


class Distance(msgspec.Struct, frozen=True):
    """Kolmogorov-Smirnov distance between trace and preset for one distribution.

    Attributes:
        name: ``input``, ``output``, ``first_input``, ``append``, ``think_s``, ``turns`` or ``gaps_s``.
        ks: Kolmogorov-Smirnov distance, 0 to 1.
        limit: 0.05 plus the distance expected by chance for samples of these sizes.
    """

    name: str
    ks: float
    limit: float

    @property
    def is_within(self) -> bool:
        """Whether the distance is within its limit."""
        return self.ks <= self.limit


class Figure(msgspec.Struct, frozen=True):
    """One figure of the trace beside that of the preset.

    Attributes:
        name: as in :class:`~bakeoff.workloads.profile.WorkloadProfile`.
        trace: value in the trace.
        preset: mean over the draws of the preset.
        spread: standard deviation from draw to draw; 0 for a single draw.
        tolerance: largest relative difference that is acceptable, as two parts of one trace can differ by as much.
    """

    name: str
    trace: float
    preset: float
    spread: float
    tolerance: float

    @property
    def difference(self) -> float:
        """Difference relative to the trace; infinity if only the trace's figure is 0."""
        if self.trace == 0:
            return 0.0 if self.preset == 0 else math.inf
        return self.preset / self.trace - 1

    @property
    def is_within(self) -> bool:
        """Whether the difference is within its tolerance."""
        return abs(self.difference) <= self.tolerance

    @property
    def could_be_chance(self) -> bool:
        """Whether single draws of the preset differ from their mean by as much; the trace is a single draw, too."""
        return abs(self.preset - self.trace) <= _DRAWS_APART * self.spread


class Goodness(msgspec.Struct, frozen=True):
    """All distances and figures."""

    distances: tuple[Distance, ...]
    figures: tuple[Figure, ...]

    @property
    def complaints(self) -> tuple[str, ...]:
        """One sentence for each distance and figure that is off by more than chance; empty for a good fit."""
        far = [distance for distance in self.distances if not distance.is_within]
        off = [figure for figure in self.figures if not (figure.is_within or figure.could_be_chance)]
        distances = (f"KS of {distance.name} is {distance.ks:.3f} (at most {distance.limit:.3f})" for distance in far)
        return (*distances, *map(_complaint, off))


def goodness(observed: Observed, preset: Preset, seed: Seed, budget: int = BUDGET) -> Goodness:
    """Draw traffic from a preset and compare it with a trace.

    Args:
        observed: the trace.
        preset: the preset. Sessions are drawn by :func:`~bakeoff.workloads.fitting.redrawn.redrawn`; arrivals are drawn
            repeatedly, each time as many as the trace has, at most 50,000.
        seed: of the draws.
        budget: total arrivals of all draws.
    """
    drawn, bound = redrawn(observed, preset, seed)
    arrivals = _arrivals(observed, preset, seed, budget)
    trace_samples, preset_samples = observed.lengths.samples(), drawn.samples()
    names = _SINGLE if not observed.lengths.later_count else tuple(trace_samples)
    distances = [_distance(name, trace_samples[name], preset_samples[name]) for name in names if name in preset_samples]
    if observed.arrivals is not None and arrivals is not None and preset.arrival.process != "constant":
        distances.append(_distance("gaps_s", observed.arrivals.gaps_s, arrivals.gaps_s))
    return Goodness(tuple(distances), tuple(_figures(observed, arrivals, drawn.means(), bound)))


def trace_figures(observed: Observed) -> dict[str, tuple[float, float]]:
    """The figures of a trace, each with its tolerance."""
    arrival = {} if observed.arrivals is None else arrival_figures(observed.arrivals)
    prefixes = {} if observed.prefixes is None else {"prefix_bound": observed.prefixes.bound}
    lengths = observed.lengths.means() | prefixes
    if not observed.lengths.later_count:
        del lengths["turns_mean"]
    return {name: (value, ARRIVAL_TOLERANCE) for name, value in arrival.items()} | {
        name: (value, LENGTH_TOLERANCE) for name, value in lengths.items()
    }


def _figures(
    observed: Observed, arrivals: Replicas | None, means: Mapping[str, float], bound: float | None
) -> Iterator[Figure]:
    drawn = dict(means) | ({} if bound is None else {"prefix_bound": bound}) | (arrivals.figures if arrivals else {})
    spread = arrivals.spread if arrivals else {}
    for name, (value, tolerance) in trace_figures(observed).items():
        if name in drawn:
            yield Figure(name, value, drawn[name], spread.get(name, 0.0), tolerance)


def _arrivals(observed: Observed, preset: Preset, seed: Seed, budget: int) -> Replicas | None:
    process = preset.arrival.made()
    if process is None or observed.arrivals is None:
        return None
    return replicas(process, f"{seed.traffic}/goodness", observed.arrivals.stretch_count, budget)


def _distance(name: str, trace: Floats, preset: Floats) -> Distance:
    limit = KS_TOLERANCE + _CHANCE * math.sqrt(1 / len(trace) + 1 / len(preset))
    return Distance(name, ks_distance(trace, preset), min(limit, 1.0))


def _complaint(figure: Figure) -> str:
    off = f"{100 * figure.difference:+.0f} %, tolerance {100 * figure.tolerance:.0f} %"
    return f"{figure.name} is {figure.preset:.4g}, in the trace {figure.trace:.4g} ({off})"
