"""Compare one metric of two sides, one number per trial: measured together, at different times, or counted.

Zeros have no ratio. If more is better and a trial of B has a 0 but no trial of A, B is worse whatever the noise, unless
the metric counts few requests; else an exact rank test decides. A percentile that lies among failures is infinite:
worse than any number. At a failure share of 1 % every p99 may or may not be, so ranks decide, or an exact test of how
many trials have such a percentile. Of different runs the medians are ranked, because trials of one run share its day.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bakeoff.results.metric import Better, Metric
from bakeoff.results.statistics.between_runs import NoiseFloor, between_runs, run_means
from bakeoff.results.statistics.comparison import (
    ALPHA,
    Comparison,
    Criteria,
    Judgement,
    Parameters,
    Reason,
    default_band,
    judged,
    of_effect,
    scale_of,
)
from bakeoff.results.statistics.counts import boschloo
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.statistics.multiplicity import holm
from bakeoff.results.statistics.permutation import division_test, permutation_test, rank_test
from bakeoff.results.statistics.pooling import Others, Runs, Trials, pool_runs, pool_trials
from bakeoff.results.statistics.two_sample import MIN_PAIRS, Scale, contrast
from bakeoff.results.statistics.unseen import NoiseSource, Unseen

MIN_TRIALS = 3
"""Below it both values are shown, but no interval: that of two trials a side is as wide as chance makes it."""
NO_TRIALS, NO_RUNS = Others[Trials](), Others[Runs]()
_MIN_DECISIVE = 3  # by chance all of B are bad and none of A in at most 2^-6 = 1.6 % of comparisons


def compare_runs(
    metric: Metric,
    level: str,
    a: Mapping[int, float],
    b: Mapping[int, float],
    *,
    interleaved: bool,
    only_pairs: bool = False,
    criteria: Criteria | None = None,
    others: Others[Trials] = NO_TRIALS,
    unseen: Unseen | None = None,
) -> Comparison:
    """Compare one metric of two sides by their trials.

    Args:
        metric: says which direction is better.
        level: label of the load level.
        a: repeat → value of the baseline.
        b: repeat → value of the candidate.
        interleaved: whether equal repeats were measured next to each other.
        only_pairs: whether only pairs count; see :func:`~bakeoff.results.statistics.two_sample.contrast`.
        criteria: None for the defaults, with the metric's band.
        others: what the metric may share its noise with, as a ratio.
        unseen: noise that the trials do not show; None if they show all of it.
    """
    scale, criteria = scale_of(metric), criteria or Criteria(band=default_band(metric))
    if scale is Scale.RATIO and (extreme := _compare_extremes(metric, level, a.values(), b.values(), criteria)):
        return extreme
    effect = None
    if min(len(a), len(b)) >= MIN_TRIALS:
        effect = contrast(
            a, b, interleaved=interleaved, only_pairs=only_pairs, scale=scale, min_error=criteria.min_error,
            other_loads=others.loads if scale is Scale.RATIO else (),
        )  # fmt: skip
    if effect is None:
        parameters = Parameters(trials_a=len(a), trials_b=len(b), needed_trials=MIN_TRIALS)
        reason = Reason.TOO_FEW_TRIALS
        if only_pairs and min(len(a), len(b)) >= MIN_TRIALS:
            reason, parameters = Reason.TOO_FEW_PAIRS, Parameters(needed_pairs=MIN_PAIRS)
        centre = _centre(scale, list(a.values()), list(b.values()))
        return of_effect(metric, level, centre, Judgement.UNCLEAR, reason, parameters=parameters)
    if scale is Scale.RATIO:
        effect = pool_trials(effect, (a, b), others)
    if metric.name == "failures":  # most are 0, so ranks tell whether more fail
        of_a, of_b = list(a.values()), list(b.values())
        ranks = rank_test(of_a, of_b) if effect.difference >= 0 else rank_test(of_b, of_a)
        comparison = judged(metric, level, effect, ranks, criteria, p_value=ranks.p_value)
        if any((*of_a, *of_b)):
            return comparison
        return msgspec.structs.replace(comparison, judgement=Judgement.SAME, reason=Reason.NO_FAILURES)
    centre_a = sum(a.values()) / len(a)
    permutation = permutation_test(a, b, effect)
    return judged(metric, level, effect, permutation, criteria, centre=centre_a, unseen=unseen)


def compare_sessions(
    metric: Metric,
    level: str,
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    *,
    floor: NoiseFloor | None = None,
    criteria: Criteria | None = None,
    others: Others[Runs] = NO_RUNS,
    unseen_sd: float | None = None,
) -> Comparison:
    """Compare one metric of two sides that were measured at different times.

    Args:
        metric: says which direction is better.
        level: label of the load level.
        a: values of the trials of each run of the baseline.
        b: values of the trials of each run of the candidate.
        floor: noise floor of the machine, for a baseline of fewer than three runs.
        criteria: None for the defaults, with the metric's band.
        others: what the metric may share its noise with, as a ratio.
        unseen_sd: standard deviation of the noise between runs, as a ratio, that is assumed where a baseline has too
            few runs and there is no floor; None to judge by trials alone.
    """
    scale, criteria = scale_of(metric), criteria or Criteria(band=default_band(metric))
    of_a, of_b = ([value for values in side for value in values] for side in (a, b))
    if not of_a or not of_b:
        parameters = Parameters(runs_a=len(of_a), runs_b=len(of_b), needed_runs=1)
        return of_effect(metric, level, None, Judgement.UNCLEAR, Reason.TOO_FEW_RUNS, parameters=parameters)
    medians = [statistics.median(values) for values in a], [statistics.median(values) for values in b]
    if scale is Scale.RATIO and (extreme := _compare_extremes(metric, level, of_a, of_b, criteria, units=medians)):
        return extreme
    effect = between_runs(a, b, scale=scale, floor=floor, min_error=criteria.min_error)
    if effect is None:
        trials_a, trials_b = (dict(enumerate(side)) for side in (of_a, of_b))
        return compare_runs(
            metric, level, trials_a, trials_b, interleaved=False, criteria=criteria,
            unseen=Unseen(NoiseSource.RUNS, 1 / len(a) + 1 / len(b), unseen_sd if scale is Scale.RATIO else None),
        )  # fmt: skip
    if scale is Scale.RATIO:
        effect = pool_runs(effect, (a, b), others)
    permutation = division_test(run_means(a, scale), run_means(b, scale))
    return judged(metric, level, effect, permutation, criteria, centre=sum(of_a) / len(of_a))


def guardrails(comparisons: Sequence[Comparison], alpha: float = ALPHA) -> list[Comparison]:
    """Correct the judgements for multiplicity over all guardrails (Holm); the intervals keep their own level.

    Args:
        comparisons: all of one family.
        alpha: at which each was judged.
    """
    p_values = {
        str(i): p_value
        for i, item in enumerate(comparisons)
        if item.is_guardrail and (p_value := _p_value(item)) is not None
    }
    adjusted = holm(p_values)
    corrected: list[Comparison] = []
    for i, comparison in enumerate(comparisons):
        is_decided = comparison.judgement in {Judgement.BETTER, Judgement.WORSE}
        if str(i) not in adjusted or not is_decided or adjusted[str(i)] <= alpha:
            corrected.append(comparison)
            continue
        parameters = Parameters(metrics=len(adjusted), p_value=adjusted[str(i)])
        corrected.append(
            msgspec.structs.replace(
                comparison, judgement=Judgement.UNCLEAR, reason=Reason.MULTIPLICITY, parameters=parameters
            )
        )
    return corrected


def _p_value(comparison: Comparison) -> float | None:
    """The p value of a comparison's test; None where counts decide or nothing does."""
    if comparison.evidence is not None:
        return comparison.evidence.p_value
    p_value = comparison.parameters.get("p_value")
    return None if p_value is None else float(p_value)


def _compare_extremes(
    metric: Metric,
    level: str,
    a: Iterable[float],
    b: Iterable[float],
    criteria: Criteria,
    *,
    units: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Comparison | None:
    """Compare sides with values that have no log (0, negative or infinite); None if all values have one.

    Args:
        metric: says which direction is better.
        level: label of the load level.
        a: values of the baseline's trials.
        b: values of the candidate's.
        criteria: criteria of the judgement.
        units: independent values of both sides, whose ranks count; None for the trials.
    """
    of_a, of_b = list(a), list(b)
    is_higher_better = metric.better is Better.HIGHER

    def count(side: Sequence[float], *, bad: bool) -> int:
        return sum(value == math.inf or (value <= 0 and (is_higher_better or not bad)) for value in side)

    counts = {"count_a": count(of_a, bad=False), "count_b": count(of_b, bad=False)}
    if not any(counts.values()):
        return None
    reason = Reason.AMONG_FAILURES if math.inf in (*of_a, *of_b) else Reason.ZEROS
    bad_a, bad_b = count(of_a, bad=True), count(of_b, bad=True)
    p_value: float | None = None
    is_decisive = bool(bad_a) != bool(bad_b) and (not criteria.zeros_by_chance or _all_of_one(bad_a, bad_b, of_a, of_b))
    if reason is Reason.ZEROS and is_decisive:
        judgement = Judgement.WORSE if bad_b else Judgement.BETTER
    else:
        judgement, p_value = _by_ranks(*(units or (of_a, of_b)), criteria.alpha, is_higher_better=is_higher_better)
    parameters: Parameters = {**counts, "runs_a": len(of_a), "runs_b": len(of_b)}
    if p_value is not None:
        parameters["p_value"] = p_value
    return Comparison(metric.name, level, None, judgement, reason, parameters)


def _all_of_one(bad_a: int, bad_b: int, a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether all values of one side are bad and none of the other's, beyond chance."""
    return (bad_a, bad_b) in {(0, len(b)), (len(a), 0)} and min(len(a), len(b)) >= _MIN_DECISIVE


def _by_ranks(
    a: Sequence[float], b: Sequence[float], alpha: float, *, is_higher_better: bool
) -> tuple[Judgement, float | None]:
    """Judgement of the exact tests with their two-sided p value, which is None where nothing decides."""
    larger, smaller = Judgement.WORSE, Judgement.BETTER
    if is_higher_better:
        larger, smaller = smaller, larger
    if min(len(a), len(b)) < 2:
        return Judgement.UNCLEAR, None
    infinite_a, infinite_b = ((sum(value == math.inf for value in side), len(side)) for side in (a, b))
    if _all_of_one(infinite_a[0], infinite_b[0], a, b):  # few trials have too few ranks
        judgement = Judgement.WORSE if infinite_b[0] else Judgement.BETTER
        one_sided = min(boschloo(infinite_a, infinite_b), boschloo(infinite_b, infinite_a))
    else:
        one_sided, judgement = min((rank_test(a, b).p_value, larger), (rank_test(b, a).p_value, smaller))
    p_value = min(1.0, 2 * one_sided)
    return (judgement if p_value <= alpha else Judgement.UNCLEAR), p_value


def _centre(scale: Scale, a: Sequence[float], b: Sequence[float]) -> Interval | None:
    if not a or not b:
        return None
    of_a, of_b = (sum(side) / len(side) for side in (a, b))
    effect = of_b / of_a if scale is Scale.RATIO else of_b - of_a
    return Interval(effect, None, None, min(len(a), len(b)), "the noise from run to run is not known")
