"""A against B: a ratio, its interval, and one of four words."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from results.metrics.catalogue import Better, Metric, Unit
from results.statistics.interval import Interval
from results.statistics.multiplicity import holm
from results.statistics.permutation import permutation_test
from results.statistics.power import runs_needed, smallest_effect
from results.statistics.two_sample import Contrast, Method, contrast

ALPHA, BAND = 0.01, 0.03
"""Defaults: the share of false alarms, and how much of a change nobody minds."""


class Judgement(StrEnum):
    """What the interval says of B."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    """The whole interval lies inside the equivalence band."""
    UNCLEAR = "unclear"


class Evidence(msgspec.Struct, frozen=True):
    """What a word rests on.

    Attributes:
        method: where the interval comes from.
        p_value: two-sided, of no difference.
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
        ratio: B over A with its interval.
        judgement: the word.
        why: what the word rests on, or what is missing.
        evidence: None where there are too few runs.
    """

    metric: str
    level: str
    ratio: Interval | None
    judgement: Judgement
    why: str
    evidence: Evidence | None = None

    def no_worse(self, metric: Metric) -> bool:
        """Whether B is certainly not worse than A by more than the band."""
        if self.ratio is None or self.ratio.low is None or self.ratio.high is None or self.evidence is None:
            return False
        band = self.evidence.band
        if metric.better is Better.HIGHER:
            return self.ratio.low >= 1 - band
        return self.ratio.high <= 1 + band


def compare_runs(
    metric: Metric,
    level: str,
    a: Mapping[int, float],
    b: Mapping[int, float],
    *,
    interleaved: bool,
    alpha: float = ALPHA,
    band: float = BAND,
    error: float = 0.0,
) -> Comparison:
    """Compare one metric of B with that of A, one number a run.

    Args:
        metric: says which way is better.
        level: label of the load level.
        a: repeat → value.
        b: the same for the candidate.
        interleaved: whether equal repeats were measured one beside the other.
        alpha: share of false alarms; the interval has the level 1 − alpha.
        band: half-width of the equivalence band as a share: ``same`` means within ± band.
        error: of the instrument, in the metric's unit: a difference of the centres within it is none.
    """
    if any(value <= 0 for side in (a, b) for value in side.values()):
        return Comparison(metric.name, level, None, Judgement.UNCLEAR, "a run has 0 of it, and 0 has no ratio")
    found = contrast(a, b, interleaved=interleaved)
    if found is None:
        why = f"needs 2 runs of each side, there are {len(a)} and {len(b)}"
        return Comparison(metric.name, level, _centre(a, b), Judgement.UNCLEAR, why)
    ratio, divisions = found.interval(1 - alpha), permutation_test(a, b, found)
    evidence = Evidence(
        found.method,
        found.p_value,
        divisions.p_value,
        smallest_effect(found, alpha),
        runs_needed(found, alpha, band),
        alpha,
        band,
    )
    word, why = _judge(metric, ratio, found, evidence)
    if word in {Judgement.BETTER, Judgement.WORSE}:
        difference = abs(ratio.centre - 1) * sum(a.values()) / len(a)
        if difference <= error:
            shown, known = _quantity(metric, difference), _quantity(metric, error)
            word, why = Judgement.UNCLEAR, f"the difference of {shown} is within the client's own error of ± {known}"
        elif not divisions.agrees(alpha):
            why = f"the t test sees a difference and the permutation test does not (p {divisions.p_value:.3f})"
            word, why = Judgement.UNCLEAR, f"{why}; a run may be an outlier"
    return Comparison(metric.name, level, ratio, word, why, evidence)


def guardrails(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The same, with words that hold for all of them at once (Holm); the level is that of each."""
    known = {index: one.evidence for index, one in enumerate(comparisons) if one.evidence is not None}
    adjusted = holm({str(index): evidence.p_value for index, evidence in known.items()})
    guarded: list[Comparison] = []
    for index, one in enumerate(comparisons):
        if one.judgement in {Judgement.BETTER, Judgement.WORSE} and adjusted[str(index)] > known[index].alpha:
            why = f"among {len(known)} metrics one such interval is chance (Holm: p {adjusted[str(index)]:.3f})"
            one = msgspec.structs.replace(one, judgement=Judgement.UNCLEAR, why=why)  # noqa: PLW2901
        guarded.append(one)
    return guarded


def _judge(metric: Metric, ratio: Interval, found: Contrast, evidence: Evidence) -> tuple[Judgement, str]:
    assert ratio.low is not None
    assert ratio.high is not None
    band = evidence.band
    confidence = f"{100 * (1 - evidence.alpha):.3g}%"
    runs = f"{found.n[0]} pairs" if found.method is Method.PAIRED else f"{found.n[0]} and {found.n[1]} runs"
    if ratio.low >= 1 - band and ratio.high <= 1 + band:
        return Judgement.SAME, f"the whole {confidence} interval of {runs} lies within ±{band:.0%}"
    if found.p_value > evidence.alpha:
        return Judgement.UNCLEAR, _too_little(confidence, evidence, found)
    improved = (ratio.centre > 1) == (metric.better is Better.HIGHER)
    return Judgement.BETTER if improved else Judgement.WORSE, f"the {confidence} interval of {runs} leaves 1 out"


def _too_little(confidence: str, evidence: Evidence, found: Contrast) -> str:
    seen = f"the {confidence} interval holds 1; a change of {evidence.smallest_effect:.1%} would have shown"
    most = max(found.n)
    if evidence.runs_needed is None:
        return f"{seen}; the noise is too large for ±{evidence.band:.0%}"
    if evidence.runs_needed <= most:
        return seen
    return f"{seen}; about {evidence.runs_needed - most} more runs of each side would show {evidence.band:.0%}"


def _centre(a: Mapping[int, float], b: Mapping[int, float]) -> Interval | None:
    if not a or not b:
        return None
    ratio = (sum(b.values()) / len(b)) / (sum(a.values()) / len(a))
    return Interval(ratio, None, None, min(len(a), len(b)), "fewer than two runs have no noise")


def _quantity(metric: Metric, value: float) -> str:
    if metric.unit is not Unit.SECONDS:
        return f"{value:.3g} {metric.unit.value}".rstrip()
    return f"{value * 1e3:.2g} ms" if value < 0.1 else f"{value * 1e3:,.0f} ms"
