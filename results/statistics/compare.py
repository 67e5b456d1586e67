"""A against B, one number a trial: measured together, measured at different times, or counted.

Zeros have no ratio, and a percentile that lies among failures, infinity, is worse than any number. Where a trial of B
has such a value on the bad side and no trial of A has, B is worse whatever the noise; else an exact rank test tells.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from results.metrics.catalogue import Better, Metric
from results.statistics.between_runs import LEAST_RUNS, NoiseFloor, between_runs, run_means
from results.statistics.comparison import (
    ALPHA,
    Comparison,
    Criteria,
    Judgement,
    default_band,
    judged,
    of_effect,
    scale_of,
)
from results.statistics.interval import Interval
from results.statistics.multiplicity import holm
from results.statistics.permutation import division_test, permutation_test, rank_test
from results.statistics.two_sample import LEAST_PAIRS, Scale, contrast


def compare_runs(
    metric: Metric,
    level: str,
    a: Mapping[int, float],
    b: Mapping[int, float],
    *,
    interleaved: bool,
    only_pairs: bool = False,
    alpha: float = ALPHA,
    band: float | None = None,
    error: float = 0.0,
    least_error: float = 0.0,
) -> Comparison:
    """Compare one metric of two sides that were measured together.

    Args:
        metric: says which way is better.
        level: label of the load level.
        a: repeat → value.
        b: the same for the candidate.
        interleaved: whether equal repeats were measured one beside the other.
        only_pairs: whether nothing but pairs may speak; see :func:`~results.statistics.two_sample.contrast`.
        alpha: as in :class:`Criteria`.
        band: likewise; None is the metric's own default.
        error: likewise.
        least_error: likewise.
    """
    scale = scale_of(metric)
    if scale is Scale.RATIO and (extreme := _of_extremes(metric, level, a.values(), b.values(), alpha)):
        return extreme
    found = contrast(a, b, interleaved=interleaved, only_pairs=only_pairs, scale=scale, least_error=least_error)
    if found is None:
        why = f"needs 2 runs of each side, there are {len(a)} and {len(b)}"
        if only_pairs and min(len(a), len(b)) >= 2:
            why = f"needs {LEAST_PAIRS} repeats of which both sides were measured in one session"
        effect = _centre(scale, list(a.values()), list(b.values()))
        return of_effect(metric, level, effect, Judgement.UNCLEAR, why)
    criteria = Criteria(alpha, default_band(metric) if band is None else band, error, least_error)
    if metric.name == "failures":  # most are 0, so ranks tell whether more fail
        of_a, of_b = list(a.values()), list(b.values())
        ranks = rank_test(of_a, of_b) if found.difference >= 0 else rank_test(of_b, of_a)
        one = judged(metric, level, found, ranks, criteria, p_value=ranks.p_value)
        if any((*of_a, *of_b)):
            return one
        return msgspec.structs.replace(one, judgement=Judgement.SAME, why="no request failed")
    centre = sum(a.values()) / len(a)
    return judged(metric, level, found, permutation_test(a, b, found), criteria, centre=centre)


def compare_sessions(
    metric: Metric,
    level: str,
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    *,
    floor: NoiseFloor | None = None,
    alpha: float = ALPHA,
    band: float | None = None,
    error: float = 0.0,
    least_error: float = 0.0,
) -> Comparison:
    """Compare one metric of two sides that were measured at different times.

    Args:
        metric: says which way is better.
        level: label of the load level.
        a: of each run of the baseline its trials' values.
        b: the same for the candidate.
        floor: of the machine's noise, for a baseline of fewer than three runs.
        alpha: as in :class:`Criteria`.
        band: likewise; None is the metric's own default.
        error: likewise.
        least_error: likewise.
    """
    scale = scale_of(metric)
    of_a, of_b = ([value for values in side for value in values] for side in (a, b))
    if not of_a or not of_b:
        why = f"needs 2 runs of each side, there are {len(of_a)} and {len(of_b)}"
        return of_effect(metric, level, None, Judgement.UNCLEAR, why)
    if scale is Scale.RATIO and (extreme := _of_extremes(metric, level, of_a, of_b, alpha)):
        return extreme
    found = between_runs(a, b, scale=scale, floor=floor, least_error=least_error)
    if found is None:
        missing = LEAST_RUNS - len(a)
        runs = "1 more run" if missing == 1 else f"{missing} more runs"
        why = f"the noise between runs is not known; {runs} of the baseline, or bakeoff floor, would settle it"
        return of_effect(metric, level, _centre(scale, of_a, of_b), Judgement.UNCLEAR, why)
    divisions = division_test(run_means(a, scale), run_means(b, scale))
    criteria = Criteria(alpha, default_band(metric) if band is None else band, error, least_error)
    return judged(metric, level, found, divisions, criteria, centre=sum(of_a) / len(of_a))


def guardrails(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The same, with words that hold for all of them at once (Holm); the level is that of each."""
    known = {index: one.evidence for index, one in enumerate(comparisons) if one.evidence is not None}
    adjusted = holm({str(index): evidence.p_value for index, evidence in known.items()})
    guarded: list[Comparison] = []
    for index, one in enumerate(comparisons):
        is_clear = one.judgement in {Judgement.BETTER, Judgement.WORSE}
        if is_clear and index in known and adjusted[str(index)] > known[index].alpha:
            why = f"among {len(known)} metrics one such interval is chance (Holm: p {adjusted[str(index)]:.3f})"
            one = msgspec.structs.replace(one, judgement=Judgement.UNCLEAR, why=why)  # noqa: PLW2901
        guarded.append(one)
    return guarded


def _of_extremes(metric: Metric, level: str, a: Iterable[float], b: Iterable[float], alpha: float) -> Comparison | None:
    """The word where a trial has a value that has no log: 0, less, or infinity; None where all have one."""
    of_a, of_b = list(a), list(b)
    is_higher_better = metric.better is Better.HIGHER

    def count(side: Sequence[float], *, bad: bool) -> int:
        return sum(value == math.inf or (value <= 0 and (is_higher_better or not bad)) for value in side)

    if not any(count(side, bad=False) for side in (of_a, of_b)):
        return None
    bad_a, bad_b = count(of_a, bad=True), count(of_b, bad=True)
    what = "among failures" if math.inf in (*of_a, *of_b) else "0 of it"
    in_a, in_b = (f"{count(side, bad=False)} of {len(side)}" for side in (of_a, of_b))
    why = f"{what} in {in_a} runs of A and in {in_b} of B"
    if bool(bad_a) != bool(bad_b):
        return Comparison(metric.name, level, None, Judgement.WORSE if bad_b else Judgement.BETTER, why)
    if min(len(of_a), len(of_b)) >= 2:
        for judgement, p_value in (
            (Judgement.BETTER if is_higher_better else Judgement.WORSE, rank_test(of_a, of_b).p_value),
            (Judgement.WORSE if is_higher_better else Judgement.BETTER, rank_test(of_b, of_a).p_value),
        ):
            if p_value <= alpha / 2:
                return Comparison(metric.name, level, None, judgement, f"{why}; ranks differ (p {p_value:.2g})")
    return Comparison(metric.name, level, None, Judgement.UNCLEAR, f"{why}; ranks do not tell")


def _centre(scale: Scale, a: Sequence[float], b: Sequence[float]) -> Interval | None:
    if not a or not b:
        return None
    of_a, of_b = (sum(side) / len(side) for side in (a, b))
    effect = of_b / of_a if scale is Scale.RATIO else of_b - of_a
    return Interval(effect, None, None, min(len(a), len(b)), "the noise from run to run is not known")
