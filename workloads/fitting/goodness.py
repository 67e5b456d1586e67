"""How near traffic drawn from a preset comes to the trace that the preset was made from."""

import math
from collections.abc import Iterator, Mapping

import msgspec

from workloads.distributions import ks_distance
from workloads.fitting.arrivals import BUDGET
from workloads.fitting.arrivals import TOLERANCE as ARRIVAL_TOLERANCE
from workloads.fitting.observed import Observed
from workloads.fitting.redrawn import redrawn
from workloads.fitting.replicas import Replicas, arrival_figures, replicas
from workloads.fitting.samples import Floats
from workloads.presets import Preset
from workloads.rng import Seed

LENGTH_TOLERANCE = 0.18
"""Two parts of one trace of Azure 2023 differ by 3 to 18 % in their mean lengths; nothing less can be asked for."""
KS_TOLERANCE = 0.05
_SINGLE = ("input", "output")
"""What there is of requests on their own."""
_DRAWS_APART = 3.0
_CHANCE = 1.63
"""Times √(1/n + 1/m): what two samples of one distribution differ by once in a hundred times."""


class Distance(msgspec.Struct, frozen=True):
    """How far one distribution is off.

    Attributes:
        name: ``input``, ``output``, ``first_input``, ``append``, ``think_s``, ``turns`` or ``gaps_s``.
        ks: Kolmogorov-Smirnov distance, 0 to 1.
        limit: 0.05, and what samples of these sizes differ by by chance.
    """

    name: str
    ks: float
    limit: float

    @property
    def is_within(self) -> bool:
        """Whether the distance is within its limit."""
        return self.ks <= self.limit


class Figure(msgspec.Struct, frozen=True):
    """One figure of the trace and of the preset.

    Attributes:
        name: as in :class:`~workloads.profile.WorkloadProfile`.
        trace: its value there.
        preset: the same of traffic drawn from the preset, the mean where it was drawn several times.
        spread: standard deviation from draw to draw where it was, else 0.
        tolerance: largest relative difference that two parts of one trace could show as well.
    """

    name: str
    trace: float
    preset: float
    spread: float
    tolerance: float

    @property
    def difference(self) -> float:
        """Relative to the trace; infinity where only the trace's is 0."""
        if self.trace == 0:
            return 0.0 if self.preset == 0 else math.inf
        return self.preset / self.trace - 1

    @property
    def is_within(self) -> bool:
        """Whether the difference is within its tolerance."""
        return abs(self.difference) <= self.tolerance

    @property
    def could_be_chance(self) -> bool:
        """Whether single draws of the preset are off by as much: the trace is no more than one draw either."""
        return abs(self.preset - self.trace) <= _DRAWS_APART * self.spread


class Goodness(msgspec.Struct, frozen=True):
    """All distances and figures."""

    distances: tuple[Distance, ...]
    figures: tuple[Figure, ...]

    @property
    def complaints(self) -> tuple[str, ...]:
        """What is off by more than chance, in words; nothing where the fit is good."""
        far = [one for one in self.distances if not one.is_within]
        off = [one for one in self.figures if not (one.is_within or one.could_be_chance)]
        return (*(f"KS of {one.name} is {one.ks:.3f} (at most {one.limit:.3f})" for one in far), *map(_complaint, off))


def goodness(observed: Observed, preset: Preset, seed: Seed, budget: int = BUDGET) -> Goodness:
    """Draw traffic from a preset and compare it with a trace.

    Args:
        observed: the trace.
        preset: what to draw: sessions as :func:`~workloads.fitting.redrawn.redrawn` does, and as many arrivals as the
            trace has (50,000 of a longer one) again and again.
        seed: of the draws.
        budget: arrivals of all draws together.
    """
    drawn, bound = redrawn(observed, preset, seed)
    arrivals = _arrivals(observed, preset, seed, budget)
    seen, made = observed.lengths.samples(), drawn.samples()
    names = _SINGLE if not observed.lengths.later_count else tuple(seen)
    distances = [_distance(name, seen[name], made[name]) for name in names if name in made]
    if observed.arrivals is not None and arrivals is not None and preset.arrival.process != "constant":
        distances.append(_distance("gaps_s", observed.arrivals.gaps_s, arrivals.gaps_s))
    return Goodness(tuple(distances), tuple(_figures(observed, arrivals, drawn.means(), bound)))


def trace_figures(observed: Observed) -> dict[str, tuple[float, float]]:
    """The figures of a trace with their tolerances."""
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
    made = dict(means) | ({} if bound is None else {"prefix_bound": bound}) | (arrivals.figures if arrivals else {})
    spread = arrivals.spread if arrivals else {}
    for name, (value, tolerance) in trace_figures(observed).items():
        if name in made:
            yield Figure(name, value, made[name], spread.get(name, 0.0), tolerance)


def _arrivals(observed: Observed, preset: Preset, seed: Seed, budget: int) -> Replicas | None:
    process = preset.arrival.made()
    if process is None or observed.arrivals is None:
        return None
    return replicas(process, f"{seed.traffic}/goodness", observed.arrivals.stretch_count, budget)


def _distance(name: str, trace: Floats, preset: Floats) -> Distance:
    limit = KS_TOLERANCE + _CHANCE * math.sqrt(1 / len(trace) + 1 / len(preset))
    return Distance(name, ks_distance(trace, preset), min(limit, 1.0))


def _complaint(figure: Figure) -> str:
    off = f"{figure.difference:+.0%}, within {figure.tolerance:.0%} would do"
    return f"{figure.name} is {figure.preset:.4g} and {figure.trace:.4g} in the trace ({off})"
