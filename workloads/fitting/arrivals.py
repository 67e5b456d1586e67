"""Choose an arrival process for a trace: fit each candidate, draw from it, and compare the draws with the trace."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from bakeoff.workloads.distributions import ks_distance
from bakeoff.workloads.fitting.estimates import drift_options, gamma_burstiness, moment_burstiness, weibull_burstiness
from bakeoff.workloads.fitting.replicas import WINDOWS_S, arrival_figures, replicas
from bakeoff.workloads.fitting.rounding import rounded
from bakeoff.workloads.fitting.silences import Split, splits
from bakeoff.workloads.fitting.starts import Arrivals
from bakeoff.workloads.presets import NaturalArrival
from bakeoff.workloads.rng import Seed

FEWEST_STARTS = 50
"""Fewer starts determine a rate, but not a process."""
TOLERANCE = 0.26
"""Relative. Two parts of one Azure 2023 trace differ by 2 % (gap CV) to 26 % (rate)."""
BUDGET = 400_000
"""Arrivals drawn from the chosen process for goodness of fit; at most half as many from each candidate."""
_STEADY, _SPLIT = 1 / 4, 1 / 12
"""Fractions of the budget: for candidates with little variation from draw to draw, and for comparing splits."""
_KS_SCALE = 0.03
_EVEN_CV = 0.01
_LEAST = 1e-6
_PENALTY = 0.15
"""Misfit per parameter, about what a redundant parameter gains by chance."""
_AS_POISSON = 0.03
_PARAMETERS = {"poisson": 0, "gamma": 1, "weibull": 1, "drift": 3, "onoff": 4}
_FIGURE_NAMES = {"gap_cv": "the gaps' coefficient of variation", "ks": "the distribution of the gaps"} | {
    f"dispersion_{window_s}s": f"the dispersion over {window_s} s" for window_s in WINDOWS_S
}


class Candidate(msgspec.Struct, frozen=True):
    """A fitted process and its distance from the trace.

    Attributes:
        arrival: the process, as a preset has it.
        method: how its parameters were estimated.
        gap_ks: Kolmogorov-Smirnov distance of its gaps from the trace's.
        figures: means over its draws, named as in :func:`~bakeoff.workloads.fitting.replicas.arrival_figures`.
        misfit: mean distance of gaps, gap CV and dispersions, each relative to its tolerance.
        worst: a sentence on the largest distance.
    """

    arrival: NaturalArrival
    method: str
    gap_ks: float
    figures: dict[str, float]
    misfit: float
    worst: str

    @property
    def score(self) -> float:
        """Misfit plus a penalty per parameter, and an extra penalty for gaps that are Poisson under another name."""
        process, burstiness = self.arrival.process, self.arrival.options.get("burstiness", 0.0)
        renamed = process in {"gamma", "weibull"} and abs(burstiness - 1) < _AS_POISSON
        return self.misfit + _PENALTY * (_PARAMETERS[process] + 2 * renamed)


class ArrivalFit(msgspec.Struct, frozen=True):
    """The arrival process of a trace.

    Attributes:
        chosen: the process, as a preset has it.
        reason: one sentence on the choice.
        candidates: all processes that were compared, best score first; empty if nothing was compared.
    """

    chosen: NaturalArrival
    reason: str
    candidates: tuple[Candidate, ...] = ()


def fit_arrivals(arrivals: Arrivals | None, seed: Seed, *, at_once: bool = False, budget: int = BUDGET) -> ArrivalFit:
    """Choose an arrival process.

    Args:
        arrivals: of the trace; None if it has no times or all sessions start at once.
        seed: of the draws.
        at_once: whether all sessions start at once.
        budget: see :data:`BUDGET`.
    """
    if at_once:
        return ArrivalFit(NaturalArrival("at-once"), "all sessions of the trace start at once")
    if arrivals is None:
        reason = "the trace has no start times: Poisson at 1 per second is used instead"
        return ArrivalFit(NaturalArrival("poisson"), reason)
    rate = rounded(arrivals.rate_per_s)
    if arrivals.count < FEWEST_STARTS:
        reason = f"{arrivals.count} starts determine only a rate: Poisson is used"
        return ArrivalFit(NaturalArrival("poisson", rate), reason)
    judge = _Judge(arrivals, seed.traffic, budget)
    if (arrivals.gap_cv or 0.0) < _EVEN_CV:
        return ArrivalFit(NaturalArrival("constant", rate), "its gaps are all equal")
    variants = _variants(arrivals, judge, rate)
    best = [min(candidates, key=lambda candidate: candidate.misfit) for candidates in variants if candidates]
    candidates = sorted(best, key=lambda candidate: candidate.score)
    return ArrivalFit(candidates[0].arrival, _reason(candidates), tuple(candidates))


class _Judge:
    """Compares processes with one trace."""

    def __init__(self, arrivals: Arrivals, seed: str, budget: int) -> None:
        self._arrivals = arrivals
        self._seed = f"{seed}/fit"
        self._budget = budget
        self._figures = arrival_figures(arrivals)
        self._scales = dict(self._tolerances())

    def candidate(self, fitted: NaturalArrival, method: str, share: float = 0.5) -> Candidate:
        """Compare a fitted process with the trace."""
        process = fitted.made()
        assert process is not None, "at-once is not a process"
        drawn = replicas(process, self._seed, self._arrivals.stretch_count, round(share * self._budget))
        gap_ks = ks_distance(self._arrivals.gaps_s, drawn.gaps_s)
        distances = {"ks": gap_ks / self._scales["ks"]}
        for name, scale in self._scales.items():
            if name in drawn.figures:
                distances[name] = abs(math.log(max(drawn.figures[name], _LEAST) / self._figures[name])) / scale
        worst = max(distances, key=distances.__getitem__)
        return Candidate(
            arrival=fitted,
            method=method,
            gap_ks=gap_ks,
            figures=drawn.figures,
            misfit=sum(distances.values()) / len(distances),
            worst=self._sentence(worst, gap_ks, drawn.figures),
        )

    def _tolerances(self) -> Iterator[tuple[str, float]]:
        """Distance of each figure that costs 1: the tolerance combined with the sampling noise."""
        chance = 1 / math.sqrt(self._arrivals.count)
        yield "ks", _KS_SCALE + 0.87 * chance
        if self._figures.get("gap_cv"):
            yield "gap_cv", math.hypot(math.log1p(TOLERANCE), chance)
        for window_s in WINDOWS_S:
            if self._figures.get(f"dispersion_{window_s}s"):
                noise = math.sqrt(2 / (self._arrivals.stretch_s / window_s - 1))
                yield f"dispersion_{window_s}s", math.hypot(math.log1p(TOLERANCE), noise)

    def _sentence(self, name: str, gap_ks: float, figures: Mapping[str, float]) -> str:
        if name == "ks":
            return f"{_FIGURE_NAMES[name]} has KS distance {gap_ks:.3f}"
        return f"{_FIGURE_NAMES[name]} is {figures[name]:.3g} instead of {self._figures[name]:.3g}"


def _variants(arrivals: Arrivals, judge: _Judge, rate: float) -> Iterator[list[Candidate]]:
    """Candidates for each process; some have two estimates of their parameters."""

    def made(process: str, options: Mapping[str, Any], method: str) -> Candidate:
        short = {name: rounded(value, 3) if isinstance(value, float) else value for name, value in options.items()}
        return judge.candidate(NaturalArrival(process, rate, short), method, 0.5 if process == "drift" else _STEADY)

    gaps_s = arrivals.gaps_s
    yield [made("poisson", {}, "the mean")]
    by_moments = made("gamma", {"burstiness": moment_burstiness(gaps_s)}, "moments")
    yield [by_moments, made("gamma", {"burstiness": gamma_burstiness(gaps_s)}, "likelihood")]
    by_moments = made("weibull", {"burstiness": moment_burstiness(gaps_s)}, "moments")
    yield [by_moments, made("weibull", {"burstiness": weibull_burstiness(gaps_s)}, "likelihood")]
    drift = drift_options(arrivals)
    yield [] if drift is None else [made("drift", drift, "dispersion at several scales")]
    split = _best_split(arrivals, judge, rate)
    yield [] if split is None else [judge.candidate(_on_off(split, rate), _method(split))]


def _best_split(arrivals: Arrivals, judge: _Judge, rate: float) -> Split | None:
    """The split whose process fits the trace best, in a few draws."""
    candidates = list(splits(arrivals.in_order_s, rate))
    scores = [judge.candidate(_on_off(split, rate), "", _SPLIT).misfit for split in candidates]
    return candidates[scores.index(min(scores))] if candidates else None


def _on_off(split: Split, rate: float) -> NaturalArrival:
    """The process as a preset file has it, with distributions as plain tables."""
    process = split.process
    on_s, off_s = (msgspec.json.decode(msgspec.json.encode(length)) for length in (process.on_s, process.off_s))
    options = {"on_s": on_s, "off_s": off_s, "spread": process.spread, "burstiness": process.burstiness}
    return NaturalArrival("onoff", rate, options)


def _method(split: Split) -> str:
    share = f"{100 * split.silent_share:.0f} % of the time"
    return f"gaps above {split.threshold_s:g} s: {split.silences} silences, {share}"


def _reason(candidates: list[Candidate]) -> str:
    """Why the first candidate was chosen."""
    first, *others = candidates
    rejected = "; ".join(f"{other.arrival.process}: {other.worst}" for other in others)
    simpler = " or fits as well with fewer parameters" if any(other.misfit < first.misfit for other in others) else ""
    nearest = f"{first.arrival.process} (from {first.method}) fits the trace best{simpler}"
    return f"{nearest}; largest misfit of the others: {rejected}"
