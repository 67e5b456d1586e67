"""Result of a comparison: the effect with its interval, one of four judgements, and the evidence for it."""

from enum import StrEnum

import msgspec

from bakeoff.results.metric import Better, Metric, Unit
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.statistics.permutation import PermutationTest
from bakeoff.results.statistics.power import runs_needed, smallest_effect
from bakeoff.results.statistics.two_sample import Contrast, Method, Scale
from bakeoff.results.statistics.unseen import Unseen, under, withstands

ALPHA, COMPARE_ALPHA = 0.01, 0.05
"""Default false-alarm rates: of a gate, which runs often and unattended, and of a comparison that a person reads."""
DETECT = 0.1
"""Default size of the change whose absence a gate shows, as a fraction."""
BAND, SHARE_BAND, FAILURE_BAND = 0.03, 0.005, 0.0
"""Default equivalence bands: of a ratio, of a share, and of the share of failed requests."""


class Judgement(StrEnum):
    """Judgement of B against A."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    """The whole interval lies inside the equivalence band."""
    UNCLEAR = "unclear"


class Criteria(msgspec.Struct, frozen=True):
    """Criteria for judging one metric.

    Attributes:
        alpha: false-alarm rate; the interval has confidence 1 − alpha.
        band: half-width of the equivalence band: a fraction of the smaller value, or an absolute difference of shares.
            With 0 only significance counts: B is no worse unless it is significantly worse.
        error: the client's own error, in the metric's unit; a smaller difference of the centres does not count.
        min_error: lower bound of the standard error, on the metric's scale: counts have steps of 1/N.
        detect: change that the runs are to rule out, as a fraction of a ratio; None for the band.
        zeros_by_chance: whether a trial of A may have a 0 by chance, because the metric counts few requests.
    """

    alpha: float = ALPHA
    band: float = BAND
    error: float = 0.0
    min_error: float = 0.0
    detect: float | None = None
    zeros_by_chance: bool = False

    def sought(self, scale: Scale) -> float:
        """The change that the runs are to rule out."""
        return self.band if self.detect is None or scale is not Scale.RATIO else max(self.band, self.detect)


class Evidence(msgspec.Struct, frozen=True):
    """Evidence for a judgement.

    Attributes:
        method: how the interval was computed.
        p_value: for no difference; two-sided, but one-sided for failures.
        permutation_p: p value of the permutation test; see :mod:`bakeoff.results.statistics.permutation`.
        smallest_effect: smallest detectable change, as a fraction, with power 0.9.
        runs_needed: runs per side needed to detect a change of ``sought``; None if too many.
        alpha: significance level.
        band: half-width of the equivalence band.
        runs: number of runs of A and of B; for pairs the number of pairs, twice.
        sought: the change that the runs are to rule out: the band, or what a gate is to detect.
        unseen: noise that the runs do not show; None if they show all of it.
        withstands: standard deviation of the unseen noise up to which the judgement by what is seen holds; None if that
            is unclear, or all noise is seen.
        rules_out_to: the same for B not being worse by ``sought``; None if that is not shown.
    """

    method: Method
    p_value: float
    permutation_p: float
    smallest_effect: float
    runs_needed: int | None
    alpha: float
    band: float
    runs: tuple[int, int] = (0, 0)
    sought: float = 0.0
    unseen: Unseen | None = None
    withstands: float | None = None
    rules_out_to: float | None = None


class Reason(StrEnum):
    """Reason for a judgement, worded by :mod:`bakeoff.results.compare.text`; ``parameters`` in parentheses."""

    INTERVAL = "interval"
    """The interval against the band and against no change."""
    CLIENT_ERROR = "client_error"
    """The difference is within the client's own error (``difference``, ``error``)."""
    OUTLIER = "outlier"
    """The permutation test does not confirm the t test."""
    MULTIPLICITY = "multiplicity"
    """Not significant once corrected over all guardrails (``metrics``, ``p_value``)."""
    TOO_FEW_TRIALS = "too_few_trials"
    """(``trials_a``, ``trials_b``, ``needed_trials``)"""
    TOO_FEW_RUNS = "too_few_runs"
    """(``runs_a``, ``runs_b``, ``needed_runs``)"""
    TOO_FEW_PAIRS = "too_few_pairs"
    """Too few repeats with both sides in one session (``needed_pairs``)."""
    UNSEEN_NOISE = "unseen_noise"
    """The judgement by what is seen (``seen``) does not hold under the noise that is not."""
    ZEROS = "zeros"
    """Some values are 0 (``count_a``, ``runs_a``, ``count_b``, ``runs_b``; ``p_value`` of the ranks)."""
    AMONG_FAILURES = "among_failures"
    """Some percentiles lie among failed requests (as for zeros)."""
    NO_FAILURES = "no_failures"
    """No request failed on either side."""
    ABSENT = "absent"
    """Some trials lack the metric (``side``, ``absent_trials``, ``trials``, ``detail``)."""
    UNEQUAL_WORK = "unequal_work"
    """The sides did different work, so request times cannot be compared."""
    OTHER_REQUESTS = "other_requests"
    """The sides served other requests, and which ones they have in common is unknown."""


Parameters = dict[str, str | int | float]


class Comparison(msgspec.Struct, frozen=True):
    """One metric at one load level.

    Attributes:
        metric: name in the catalogue.
        level: label of the load level.
        ratio: B over A with its interval; None if shares are compared.
        judgement: the judgement.
        reason: what decided it, or what is missing.
        parameters: of the reason, see :class:`Reason`.
        evidence: None if there are too few runs.
        difference: B minus A with its interval, for metrics that are shares of requests.
        is_guardrail: whether it counts in a gate's outcome; tails and memory, which vary most, only if asked for.
        traffic_class: the class of the traffic whose requests are compared; None for all requests.
    """

    metric: str
    level: str
    ratio: Interval | None
    judgement: Judgement
    reason: Reason
    parameters: Parameters = {}
    evidence: Evidence | None = None
    difference: Interval | None = None
    is_guardrail: bool = True
    traffic_class: str | None = None

    def no_worse(self, metric: Metric) -> bool:
        """Whether B is shown to be worse than A by at most what is sought; if that is 0, whether it is not worse."""
        effect = self.ratio or self.difference
        if self.evidence is None or self.reason in {Reason.UNEQUAL_WORK, Reason.OTHER_REQUESTS}:
            return self.judgement in {Judgement.BETTER, Judgement.SAME}
        if self.evidence.sought == 0:
            return self.judgement is not Judgement.WORSE
        return effect is not None and _rules_out(metric, effect, self.evidence.sought, is_ratio=self.ratio is not None)

    def may_be_worse(self, metric: Metric) -> bool:
        """Whether it is unclear although the whole interval is worse by more than the band."""
        effect, evidence = self.ratio or self.difference, self.evidence
        is_by_chance = self.reason not in {Reason.UNEQUAL_WORK, Reason.OTHER_REQUESTS, Reason.CLIENT_ERROR}
        if self.judgement is not Judgement.UNCLEAR or evidence is None or not is_by_chance:
            return False
        if effect is None or effect.low is None or effect.high is None:
            return False
        if metric.better is Better.LOWER:
            return effect.low > (0.0 if self.ratio is None else 1.0) + evidence.band
        return effect.high < (-evidence.band if self.ratio is None else 1 / (1 + evidence.band))


def scale_of(metric: Metric) -> Scale:
    """Return how a metric is compared: shares of requests by difference, everything else as a ratio."""
    is_share = metric.unit is Unit.SHARE or metric.name == "failures"
    return Scale.DIFFERENCE if is_share else Scale.RATIO


def default_band(metric: Metric) -> float:
    """Return the default half-width of a metric's equivalence band."""
    if metric.name == "failures":
        return FAILURE_BAND
    return SHARE_BAND if scale_of(metric) is Scale.DIFFERENCE else BAND


def of_effect(
    metric: Metric,
    level: str,
    effect: Interval | None,
    judgement: Judgement,
    reason: Reason,
    *,
    parameters: Parameters | None = None,
    evidence: Evidence | None = None,
) -> Comparison:
    """Make a comparison, with the effect as a ratio or a difference according to the metric's scale.

    Bounds of a difference of shares are clipped to −1…1.
    """
    is_ratio = scale_of(metric) is Scale.RATIO
    if not is_ratio and effect is not None and effect.low is not None and effect.high is not None:
        effect = msgspec.structs.replace(effect, low=max(-1.0, effect.low), high=min(1.0, effect.high))
    return Comparison(
        metric.name,
        level,
        effect if is_ratio else None,
        judgement,
        reason,
        parameters or {},
        evidence,
        None if is_ratio else effect,
    )


def judged(
    metric: Metric,
    level: str,
    effect: Contrast,
    permutation: PermutationTest,
    criteria: Criteria,
    *,
    centre: float = 0.0,
    p_value: float | None = None,
    unseen: Unseen | None = None,
) -> Comparison:
    """Judge a contrast.

    Args:
        metric: says which direction is better.
        level: label of the load level.
        effect: B against A.
        permutation: the permutation test of the same data.
        criteria: criteria of the judgement.
        centre: mean of A in the metric's unit, used if the client has an error.
        p_value: replaces the contrast's.
        unseen: noise that the trials do not show; None if they show all of it.
    """
    sought = criteria.sought(effect.scale)
    seen, limits = effect, (None, None)
    if unseen is not None:
        limits = _limits(metric, effect, unseen, criteria)
        effect = under(effect, unseen, unseen.sd or 0.0, criteria.alpha)
    p_value = effect.p_value if p_value is None else p_value
    interval = effect.interval(1 - criteria.alpha)
    evidence = Evidence(
        effect.method,
        p_value,
        permutation.p_value,
        smallest_effect(effect, criteria.alpha),
        runs_needed(effect, criteria.alpha, sought) if sought else None,
        criteria.alpha,
        criteria.band,
        effect.n,
        sought,
        unseen,
        *limits,
    )
    judgement, by_seen = _judgement(metric, effect, criteria, p_value), _judgement(metric, seen, criteria)
    reason = Reason.INTERVAL
    parameters: Parameters = {}
    if unseen is not None and judgement is not by_seen:
        reason, parameters = Reason.UNSEEN_NOISE, Parameters(seen=by_seen.value)
    if judgement in {Judgement.BETTER, Judgement.WORSE}:
        difference = abs(interval.centre - 1) * centre if effect.scale is Scale.RATIO else 0.0
        if 0 < difference <= criteria.error:
            judgement, reason = Judgement.UNCLEAR, Reason.CLIENT_ERROR
            parameters = {"difference": difference, "error": criteria.error}
        elif not permutation.agrees(criteria.alpha):
            judgement, reason = Judgement.UNCLEAR, Reason.OUTLIER
    return of_effect(metric, level, interval, judgement, reason, parameters=parameters, evidence=evidence)


def _limits(metric: Metric, effect: Contrast, unseen: Unseen, criteria: Criteria) -> tuple[float | None, float | None]:
    """Standard deviations of unseen noise up to which B has its judgement, and is not worse by what is sought."""
    judgement = _judgement(metric, effect, criteria)

    def is_so(whole: Contrast) -> bool:
        return _judgement(metric, whole, criteria) is judgement

    def rules_out(whole: Contrast) -> bool:
        interval, sought = whole.interval(1 - criteria.alpha), criteria.sought(whole.scale)
        return sought > 0 and _rules_out(metric, interval, sought, is_ratio=whole.scale is Scale.RATIO)

    is_clear = judgement is not Judgement.UNCLEAR
    return (
        withstands(effect, unseen, criteria.alpha, is_so) if is_clear else None,
        withstands(effect, unseen, criteria.alpha, rules_out) if rules_out(effect) else None,
    )


def _rules_out(metric: Metric, effect: Interval, sought: float, *, is_ratio: bool) -> bool:
    """Whether an interval shows that B is not worse by more than is sought."""
    if effect.low is None or effect.high is None:
        return False
    same = 1.0 if is_ratio else 0.0
    if metric.better is Better.HIGHER:
        return effect.low >= same - sought
    return effect.high <= same + sought


def _judgement(metric: Metric, effect: Contrast, criteria: Criteria, p_value: float | None = None) -> Judgement:
    """Judge a contrast; ``p_value`` replaces its own."""
    interval = effect.interval(1 - criteria.alpha)
    assert interval.low is not None
    assert interval.high is not None
    no_change = 1.0 if effect.scale is Scale.RATIO else 0.0
    # A ratio's band is the same seen from either side: B/A = 1.03 is A/B = 1 / 1.03.
    lowest = 1 / (1 + criteria.band) if effect.scale is Scale.RATIO else -criteria.band
    if interval.low >= lowest and interval.high <= no_change + criteria.band:
        return Judgement.SAME
    if (effect.p_value if p_value is None else p_value) > criteria.alpha:
        return Judgement.UNCLEAR
    improved = (interval.centre > no_change) == (metric.better is Better.HIGHER)
    return Judgement.BETTER if improved else Judgement.WORSE
