"""Which arrival process a trace's starts look most like: each is fitted, drawn, and compared with the trace."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from workloads.distributions import ks_distance
from workloads.fitting.estimates import drift_options, gamma_burstiness, moment_burstiness, weibull_burstiness
from workloads.fitting.replicas import WINDOWS_S, arrival_figures, replicas
from workloads.fitting.rounding import rounded
from workloads.fitting.silences import Split, splits
from workloads.fitting.starts import Arrivals
from workloads.presets import NaturalArrival
from workloads.rng import Seed

FEWEST_STARTS = 50
"""Fewer starts tell a rate, but no process."""
TOLERANCE = 0.26
"""Two parts of one trace of Azure 2023 differ by 2 % in the variation of their gaps to 26 % in their rate."""
BUDGET = 400_000
"""Arrivals that are drawn of the chosen process to say how good it is; of each candidate it is a half."""
_STEADY, _SPLIT = 1 / 4, 1 / 12
"""Of that, for candidates whose figures hardly differ from draw to draw, and for a first look at splits."""
_KS_SCALE = 0.03
_EVEN_CV = 0.01
_LEAST = 1e-6
_PENALTY = 0.15
"""For each parameter, in units of misfit: what a process that says nothing new could win by chance."""
_AS_POISSON = 0.03
_PARAMETERS = {"poisson": 0, "gamma": 1, "weibull": 1, "drift": 3, "onoff": 4}
_WORDS = {"gap_cv": "the gaps' coefficient of variation", "ks": "the distribution of the gaps"} | {
    f"dispersion_{window_s}s": f"the dispersion over {window_s} s" for window_s in WINDOWS_S
}


class Candidate(msgspec.Struct, frozen=True):
    """A process as it was fitted, and how near it comes to the trace.

    Attributes:
        arrival: ready for a preset.
        method: how its parameters were found.
        gap_ks: Kolmogorov-Smirnov distance of its gaps from the trace's.
        figures: means over its draws, by the names of :func:`~workloads.fitting.replicas.arrival_figures`.
        misfit: mean of the distances of gaps, variation and dispersions, each in units of what is tolerable.
        worst: which of them is farthest off, in words.
    """

    arrival: NaturalArrival
    method: str
    gap_ks: float
    figures: dict[str, float]
    misfit: float
    worst: str

    @property
    def score(self) -> float:
        """Misfit, and a little for each parameter; more for gaps that are Poisson's under another name."""
        process, burstiness = self.arrival.process, self.arrival.options.get("burstiness", 0.0)
        renamed = process in {"gamma", "weibull"} and abs(burstiness - 1) < _AS_POISSON
        return self.misfit + _PENALTY * (_PARAMETERS[process] + 2 * renamed)


class ArrivalFit(msgspec.Struct, frozen=True):
    """What the trace's starts were taken for.

    Attributes:
        chosen: for the preset.
        reason: why, in a sentence.
        candidates: all that were compared, the chosen one first and the others by their score; none where there was
            nothing to compare.
    """

    chosen: NaturalArrival
    reason: str
    candidates: tuple[Candidate, ...] = ()


def fit_arrivals(arrivals: Arrivals | None, seed: Seed, *, at_once: bool = False, budget: int = BUDGET) -> ArrivalFit:
    """Choose an arrival process.

    Args:
        arrivals: of the trace; None where it has no clock or all come at once.
        seed: of the draws that processes are judged by.
        at_once: whether all come at once.
        budget: see :data:`BUDGET`.
    """
    if at_once:
        return ArrivalFit(NaturalArrival("at-once"), "all sessions of the trace start at once")
    if arrivals is None:
        reason = "the trace does not say how sessions follow one another: Poisson at 1 per second stands in"
        return ArrivalFit(NaturalArrival("poisson"), reason)
    rate = rounded(arrivals.rate_per_s)
    if arrivals.count < FEWEST_STARTS:
        reason = f"{arrivals.count} starts tell a rate and no more: Poisson stands in"
        return ArrivalFit(NaturalArrival("poisson", rate), reason)
    judge = _Judge(arrivals, seed.traffic, budget)
    if (arrivals.gap_cv or 0.0) < _EVEN_CV:
        return ArrivalFit(NaturalArrival("constant", rate), "its gaps are all alike")
    best = [min(found, key=lambda one: one.misfit) for found in _tried(arrivals, judge, rate) if found]
    candidates = sorted(best, key=lambda one: one.score)
    return ArrivalFit(candidates[0].arrival, _reason(candidates), tuple(candidates))


class _Judge:
    """Compares processes with one trace."""

    def __init__(self, arrivals: Arrivals, seed: str, budget: int) -> None:
        self._arrivals = arrivals
        self._seed = f"{seed}/fit"
        self._budget = budget
        self._figures = arrival_figures(arrivals)
        self._scales = dict(self._tolerable())

    def judged(self, fitted: NaturalArrival, method: str, share: float = 0.5) -> Candidate:
        """A candidate of a fitted process."""
        process = fitted.made()
        assert process is not None, "only processes are judged"
        drawn = replicas(process, self._seed, self._arrivals.stretch_count, round(share * self._budget))
        gap_ks = ks_distance(self._arrivals.gaps_s, drawn.gaps_s)
        off = {"ks": gap_ks / self._scales["ks"]}
        for name, scale in self._scales.items():
            if name in drawn.figures:
                off[name] = abs(math.log(max(drawn.figures[name], _LEAST) / self._figures[name])) / scale
        worst = max(off, key=off.__getitem__)
        return Candidate(
            arrival=fitted,
            method=method,
            gap_ks=gap_ks,
            figures=drawn.figures,
            misfit=sum(off.values()) / len(off),
            worst=self._in_words(worst, gap_ks, drawn.figures),
        )

    def _tolerable(self) -> Iterator[tuple[str, float]]:
        """How far off each figure may be to cost 1: the tolerance, and what a sample of this size leaves open."""
        chance = 1 / math.sqrt(self._arrivals.count)
        yield "ks", _KS_SCALE + 0.87 * chance
        if self._figures.get("gap_cv"):
            yield "gap_cv", math.hypot(math.log1p(TOLERANCE), chance)
        for window_s in WINDOWS_S:
            if self._figures.get(f"dispersion_{window_s}s"):
                open_ = math.sqrt(2 / (self._arrivals.stretch_s / window_s - 1))
                yield f"dispersion_{window_s}s", math.hypot(math.log1p(TOLERANCE), open_)

    def _in_words(self, name: str, gap_ks: float, figures: Mapping[str, float]) -> str:
        if name == "ks":
            return f"{_WORDS[name]} is {gap_ks:.3f} off"
        return f"{_WORDS[name]} is {figures[name]:.3g} instead of {self._figures[name]:.3g}"


def _tried(arrivals: Arrivals, judge: _Judge, rate: float) -> Iterator[list[Candidate]]:
    """Candidates of each process, some with parameters that were found in two ways."""

    def made(process: str, options: Mapping[str, Any], method: str) -> Candidate:
        short = {name: rounded(value, 3) if isinstance(value, float) else value for name, value in options.items()}
        return judge.judged(NaturalArrival(process, rate, short), method, 0.5 if process == "drift" else _STEADY)

    gaps_s = arrivals.gaps_s
    yield [made("poisson", {}, "the mean")]
    by_moments = made("gamma", {"burstiness": moment_burstiness(gaps_s)}, "moments")
    yield [by_moments, made("gamma", {"burstiness": gamma_burstiness(gaps_s)}, "likelihood")]
    by_moments = made("weibull", {"burstiness": moment_burstiness(gaps_s)}, "moments")
    yield [by_moments, made("weibull", {"burstiness": weibull_burstiness(gaps_s)}, "likelihood")]
    drift = drift_options(arrivals)
    yield [] if drift is None else [made("drift", drift, "dispersion at several scales")]
    split = _best_split(arrivals, judge, rate)
    yield [] if split is None else [judge.judged(_on_off(split, rate), _method(split))]


def _best_split(arrivals: Arrivals, judge: _Judge, rate: float) -> Split | None:
    """The split whose process looks most like the trace, in a few draws."""
    found = list(splits(arrivals.in_order_s, rate))
    scores = [judge.judged(_on_off(split, rate), "", _SPLIT).misfit for split in found]
    return found[scores.index(min(scores))] if found else None


def _on_off(split: Split, rate: float) -> NaturalArrival:
    """As a file would have it: its distributions as tables, its lists as lists."""
    process = split.process
    on_s, off_s = (msgspec.json.decode(msgspec.json.encode(length)) for length in (process.on_s, process.off_s))
    options = {"on_s": on_s, "off_s": off_s, "spread": process.spread, "burstiness": process.burstiness}
    return NaturalArrival("onoff", rate, options)


def _method(split: Split) -> str:
    share = f"{split.silent_share:.0%} of the time"
    return f"gaps above {split.threshold_s:g} s: {split.silences} silences, {share}"


def _reason(candidates: list[Candidate]) -> str:
    """Why the first one."""
    first, *others = candidates
    rejected = "; ".join(f"{other.arrival.process}: {other.worst}" for other in others)
    simpler = " or is as near with fewer parameters" if any(other.misfit < first.misfit for other in others) else ""
    nearest = f"{first.arrival.process} (from {first.method}) comes nearest to the trace{simpler}"
    return f"{nearest}; where the others are farthest off: {rejected}"
