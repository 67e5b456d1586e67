"""What a comparison says: an effect with its interval, one of four words, and what the word rests on."""

from enum import StrEnum

import msgspec

from results.metrics.catalogue import Better, Metric, Unit
from results.statistics.interval import Interval
from results.statistics.permutation import PermutationTest
from results.statistics.power import runs_needed, smallest_effect
from results.statistics.two_sample import Contrast, Method, Scale

ALPHA = 0.01
"""Default share of false alarms."""
BAND, SHARE_BAND, FAILURE_BAND = 0.03, 0.005, 0.0
"""How much of a change nobody minds by default: of a ratio, of a share, and of the share of failed requests."""


class Judgement(StrEnum):
    """What the interval says of B."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    """The whole interval lies inside the equivalence band."""
    UNCLEAR = "unclear"


class Criteria(msgspec.Struct, frozen=True):
    """By what one metric is judged.

    Attributes:
        alpha: share of false alarms; the interval has the level 1 − alpha.
        band: half-width of the equivalence band, as a share: of A's value, or added to it where shares are compared. At
            0 nothing but a significant change counts, and without one B is no worse.
        error: of the instrument, in the metric's unit: a difference of the centres within it is none.
        least_error: the standard error is no smaller, on the metric's scale: counts have steps of one in N.
    """

    alpha: float = ALPHA
    band: float = BAND
    error: float = 0.0
    least_error: float = 0.0


class Evidence(msgspec.Struct, frozen=True):
    """What a word rests on.

    Attributes:
        method: where the interval comes from.
        p_value: of no difference; two-sided, of failures to the side to which they lie.
        permutation_p: the same without assuming a distribution; see :mod:`results.statistics.permutation`.
        smallest_effect: the change, as a share, that runs like these show in 9 of 10 cases.
        runs_needed: runs of each side that would show a change as large as the band; None where there are too many.
        alpha: level of the test.
        band: half-width of the equivalence band, as a share.
    """

    method: Method
    p_value: float
    permutation_p: float
    smallest_effect: float
    runs_needed: int | None
    alpha: float
    band: float


class Comparison(msgspec.Struct, frozen=True):
    """One metric at one load level.

    Attributes:
        metric: its name.
        level: the load level's label.
        ratio: B over A with its interval; None where shares are compared.
        judgement: the word.
        why: what the word rests on, or what is missing.
        evidence: None where there are too few runs.
        difference: B minus A with its interval, of metrics that are shares of requests.
    """

    metric: str
    level: str
    ratio: Interval | None
    judgement: Judgement
    why: str
    evidence: Evidence | None = None
    difference: Interval | None = None

    def no_worse(self, metric: Metric) -> bool:
        """Whether B is certainly not worse than A by more than the band; with a band of 0, whether it is not worse."""
        effect = self.ratio or self.difference
        if self.evidence is None:
            return self.judgement in {Judgement.BETTER, Judgement.SAME}
        if self.evidence.band == 0:
            return self.judgement is not Judgement.WORSE
        if effect is None or effect.low is None or effect.high is None:
            return False
        same = 0.0 if self.ratio is None else 1.0
        if metric.better is Better.HIGHER:
            return effect.low >= same - self.evidence.band
        return effect.high <= same + self.evidence.band


def scale_of(metric: Metric) -> Scale:
    """How a metric is compared: shares of requests by their difference, everything else as a ratio."""
    is_share = metric.unit is Unit.SHARE or metric.name == "failures"
    return Scale.DIFFERENCE if is_share else Scale.RATIO


def default_band(metric: Metric) -> float:
    """The half-width of its band where nobody names one."""
    if metric.name == "failures":
        return FAILURE_BAND
    return SHARE_BAND if scale_of(metric) is Scale.DIFFERENCE else BAND


def band_text(band: float, scale: Scale) -> str:
    """``3%`` of a ratio, ``0.5 pp`` of a difference of shares."""
    return f"{100 * band:.3g}%" if scale is Scale.RATIO else f"{100 * band:.3g} pp"


def change_text(change: float, scale: Scale) -> str:
    """``2.9%`` of a ratio, ``0.29 pp`` of a difference of shares."""
    return f"{change:.1%}" if scale is Scale.RATIO else f"{100 * change:.2g} pp"


def of_effect(
    metric: Metric,
    level: str,
    effect: Interval | None,
    judgement: Judgement,
    why: str,
    *,
    evidence: Evidence | None = None,
) -> Comparison:
    """A comparison whose effect stands where its scale puts it."""
    if scale_of(metric) is Scale.DIFFERENCE:
        return Comparison(metric.name, level, None, judgement, why, evidence, effect)
    return Comparison(metric.name, level, effect, judgement, why, evidence)


def judged(
    metric: Metric,
    level: str,
    found: Contrast,
    divisions: PermutationTest,
    criteria: Criteria,
    *,
    centre: float = 0.0,
    p_value: float | None = None,
) -> Comparison:
    """The word for a contrast.

    Args:
        metric: says which way is better.
        level: label of the load level.
        found: B against A.
        divisions: the same without assuming a distribution.
        criteria: what was agreed.
        centre: mean of A, in the metric's unit, where the instrument has an error.
        p_value: in place of the contrast's.
    """
    p_value = found.p_value if p_value is None else p_value
    effect = found.interval(1 - criteria.alpha)
    needed = runs_needed(found, criteria.alpha, criteria.band) if criteria.band else None
    smallest = smallest_effect(found, criteria.alpha)
    evidence = Evidence(found.method, p_value, divisions.p_value, smallest, needed, criteria.alpha, criteria.band)
    word, why = _word(metric, effect, found, evidence)
    if word in {Judgement.BETTER, Judgement.WORSE}:
        difference = abs(effect.centre - 1) * centre if found.scale is Scale.RATIO else 0.0
        if 0 < difference <= criteria.error:
            shown, known = _quantity(metric, difference), _quantity(metric, criteria.error)
            word, why = Judgement.UNCLEAR, f"the difference of {shown} is within the client's own error of ± {known}"
        elif not divisions.agrees(criteria.alpha):
            why = f"the t test sees a difference and the permutation test does not (p {divisions.p_value:.3f})"
            word, why = Judgement.UNCLEAR, f"{why}; a run may be an outlier"
    return of_effect(metric, level, effect, word, why, evidence=evidence)


def _word(metric: Metric, effect: Interval, found: Contrast, evidence: Evidence) -> tuple[Judgement, str]:
    assert effect.low is not None
    assert effect.high is not None
    band, same = evidence.band, 1.0 if found.scale is Scale.RATIO else 0.0
    confidence = f"{100 * (1 - evidence.alpha):.3g}%"
    runs = _runs(found)
    if effect.low >= same - band and effect.high <= same + band:
        return Judgement.SAME, f"the whole {confidence} interval of {runs} lies within ±{band_text(band, found.scale)}"
    if evidence.p_value > evidence.alpha:
        return Judgement.UNCLEAR, _too_little(f"the {confidence} interval holds {same:g}", evidence, found)
    improved = (effect.centre > same) == (metric.better is Better.HIGHER)
    why = f"the {confidence} interval of {runs} leaves {same:g} out"
    return Judgement.BETTER if improved else Judgement.WORSE, why


def _runs(found: Contrast) -> str:
    if found.method is Method.PAIRED:
        return f"{found.n[0]} pairs"
    runs = f"{found.n[0]} and {found.n[1]} runs"
    if found.method is Method.WELCH:
        return runs
    return f"{runs} made at different times" + (
        ", under the machine's noise floor," if found.method is Method.NOISE_FLOOR else ""
    )


def _too_little(holds: str, evidence: Evidence, found: Contrast) -> str:
    seen = f"{holds}; a change of {change_text(evidence.smallest_effect, found.scale)} would have shown"
    if evidence.band == 0:
        return seen
    band = band_text(evidence.band, found.scale)
    if evidence.runs_needed is None:
        return f"{seen}; the noise is too large for ±{band}"
    if found.method in {Method.BETWEEN_RUNS, Method.NOISE_FLOOR}:
        return f"{seen}; about {evidence.runs_needed} runs of each side, made at different times, would show {band}"
    if evidence.runs_needed <= max(found.n):
        return seen
    return f"{seen}; about {evidence.runs_needed - max(found.n)} more runs of each side would show {band}"


def _quantity(metric: Metric, value: float) -> str:
    if metric.unit is not Unit.SECONDS:
        return f"{value:.3g} {metric.unit.value}".rstrip()
    return f"{value * 1e3:.2g} ms" if value < 0.1 else f"{value * 1e3:,.0f} ms"
