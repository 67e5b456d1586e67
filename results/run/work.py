"""Whether two sides did the same work; only then can the times of their requests be compared.

A side whose answers are half as long serves twice the requests in half the time and is no faster. So the work of both
sides is compared first: the fraction of the requested output that was delivered, in total and per answer (p10, p50,
p90), why answers ended, and how many requests were answered. Each is one number per trial; MLPerf requires the first to
be 90 to 110 % of its reference.

The faster side of a closed loop gets further in the plan, so the work is that of the requests that both served
(:mod:`bakeoff.results.compare.common_part`). Where these are unknown, the mix of the requests may differ: no difference
in work, but request times cannot be compared then either.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum

import msgspec
import numpy as np

from bakeoff.results.columns import UNKNOWN
from bakeoff.results.requests import Requests
from bakeoff.results.statistics.comparison import Judgement
from bakeoff.results.statistics.distributions import t_quantile
from bakeoff.results.statistics.two_sample import Scale, contrast

_QUANTILES = (0.1, 0.5, 0.9)
_FINISHES = {
    "length": "length", "max_tokens": "length",
    "stop": "stop", "eos": "stop", "eos_token": "stop", "end_turn": "stop", "stop_sequence": "stop",
}  # fmt: skip
"""Finish reasons of the engines' APIs → the two common ones."""


class Work(msgspec.Struct, frozen=True, omit_defaults=True):
    """Work of the measured requests of one trial.

    Attributes:
        requests: planned requests.
        ok: successful requests.
        output_tokens: of these, as counted by the engine, else as received.
        asked_tokens: output tokens requested of these; None if not every one requested a length.
        delivered: p10, p50 and p90 over answers of output tokens per requested token, or of output tokens if none were
            requested.
        finishes: finish reason → number of answers.
        scored: questions whose answers were scored; two are one if both their length and what is expected are equal.
    """

    requests: int = 0
    ok: int = 0
    output_tokens: int = 0
    asked_tokens: int | None = None
    delivered: list[float] = []
    finishes: dict[str, int] = {}
    scored: int = 0


def work_of(measured: Requests) -> Work:
    """Compute the work of a trial's measured requests; requests that the client cancelled do not count."""
    answered = measured.ok
    counted, requested = answered.ints("output_tokens"), answered.ints("requested_output_tokens")
    tokens = np.where(counted == UNKNOWN, answered.chunks.total_tokens, counted)
    is_known = len(answered) > 0 and bool((requested > 0).all())
    amounts = tokens / requested if is_known else tokens
    scored = answered.take(~answered.equal("is_right", None))
    finishes = Counter(_FINISHES.get(reason or "", reason or "none") for reason in answered.values("finish_reason"))
    return Work(
        requests=int((~measured.is_cancelled).sum()),
        ok=len(answered),
        output_tokens=int(tokens.sum()),
        asked_tokens=int(requested.sum()) if is_known else None,
        delivered=[float(q) for q in np.quantile(amounts, _QUANTILES)] if len(answered) else [],
        finishes=dict(finishes),
        scored=len(set(zip(scored.values("requested_input_tokens"), scored.values("expected"), strict=True))),
    )


class WorkAspect(StrEnum):
    """Aspect of the work that is compared."""

    ANSWERED = "answered"
    """Fraction of the requests that were answered."""
    DELIVERED = "delivered"
    """Output tokens per requested token, in total."""
    DELIVERED_QUANTILE = "delivered_quantile"
    """The same per answer."""
    TOKENS = "tokens"
    """Mean output tokens per request, if no length was requested."""
    TOKENS_QUANTILE = "tokens_quantile"
    """The same per answer."""
    FINISH = "finish"
    """Fraction of the answers with one finish reason."""


_QUANTILE_ASPECTS = {WorkAspect.DELIVERED_QUANTILE, WorkAspect.TOKENS_QUANTILE}
_BY_CHANCE = 0.05
"""Level at which all quantiles together may differ from the baseline's by chance."""


class WorkDifference(msgspec.Struct, frozen=True):
    """One aspect that differs by more than the band.

    Attributes:
        aspect: what differs.
        a: mean over the baseline's trials.
        b: mean over the candidate's trials.
        detail: ``p10`` for quantiles, the finish reason for finishes; else empty.
    """

    aspect: WorkAspect
    a: float
    b: float
    detail: str = ""


class WorkComparison(msgspec.Struct, frozen=True):
    """The work of B compared with that of A, at one load.

    Attributes:
        level: label of the load.
        judgement: ``same``; ``worse`` if B's work is outside the band; ``unclear`` if that may be chance, or if B only
            answers more requests than A: then it does more work, and nothing is known of its speed.
        differences: aspects outside the band, without quantiles that may differ by chance.
        mix: mean requested output tokens of A's and of B's requests, if these differ by more than the band.
        traffic_class: the class of the traffic whose work it is; None for all requests.
    """

    level: str
    judgement: Judgement
    differences: list[WorkDifference]
    mix: tuple[float, float] | None = None
    traffic_class: str | None = None

    @property
    def is_equal(self) -> bool:
        """Whether answers are as alike as what was asked for."""
        return self.judgement is Judgement.SAME


def compare_work(level: str, a: Sequence[Work], b: Sequence[Work], *, band: float, alpha: float) -> WorkComparison:
    """Compare the work of both sides.

    Args:
        level: label of the load.
        a: work of each valid trial of the baseline.
        b: work of each valid trial of the candidate.
        band: allowed relative difference.
        alpha: significance level of the tests of all aspects together (Bonferroni).
    """
    if not a or not b or not all(work.requests for work in (*a, *b)):
        return WorkComparison(level, Judgement.SAME, [])  # one side has no trial, or no log
    differences: list[WorkDifference] = []
    is_significant = False
    aspects = list(_aspects(a, b))
    for aspect in aspects:
        of_a, of_b = ([aspect.of(work) for work in side] for side in (a, b))
        mean_a, mean_b = (sum(side) / len(side) for side in (of_a, of_b))
        is_outside = abs(mean_b - mean_a) > band * (mean_a if aspect.is_relative else 1.0)
        if is_outside and not (aspect.kind in _QUANTILE_ASPECTS and _may_be_chance(of_a, of_b)):
            differences.append(WorkDifference(aspect.kind, mean_a, mean_b, aspect.detail))
            is_fix = aspect.kind is WorkAspect.ANSWERED and mean_b > mean_a
            is_significant |= not is_fix and _differs_significantly(of_a, of_b, alpha / len(aspects))
    judgement = Judgement.SAME
    if differences:
        judgement = Judgement.WORSE if is_significant else Judgement.UNCLEAR
    return WorkComparison(level, judgement, differences, _mix(a, b, band))


class _Aspect(msgspec.Struct, frozen=True):
    """One number of a trial's work; the band is a fraction of it if ``is_relative``, else an absolute difference."""

    kind: WorkAspect
    of: Callable[[Work], float]
    detail: str = ""
    is_relative: bool = True


def _aspects(a: Sequence[Work], b: Sequence[Work]) -> Iterator[_Aspect]:
    yield _Aspect(WorkAspect.ANSWERED, lambda work: work.ok / work.requests)
    is_known = [all(work.asked_tokens for work in side) for side in (a, b)]
    if all(is_known):
        yield _Aspect(WorkAspect.DELIVERED, lambda work: work.output_tokens / (work.asked_tokens or 1))
    else:
        yield _Aspect(WorkAspect.TOKENS, lambda work: work.output_tokens / max(1, work.ok))
    if is_known[0] == is_known[1]:
        kind = WorkAspect.DELIVERED_QUANTILE if all(is_known) else WorkAspect.TOKENS_QUANTILE
        for index, q in enumerate(_QUANTILES):
            yield _Aspect(kind, _quantile(index), f"p{q * 100:g}")
    for reason in sorted({reason for work in (*a, *b) for reason in work.finishes}):
        yield _Aspect(WorkAspect.FINISH, _finish(reason), reason, is_relative=False)


def _quantile(index: int) -> Callable[[Work], float]:
    return lambda work: work.delivered[index] if work.delivered else 0.0


def _finish(reason: str) -> Callable[[Work], float]:
    return lambda work: work.finishes.get(reason, 0) / max(1, work.ok)


def _mix(a: Sequence[Work], b: Sequence[Work], band: float) -> tuple[float, float] | None:
    """Mean requested output tokens of both sides; None if they are alike or unknown."""
    requested_means = [[work.asked_tokens / work.ok for work in side if work.asked_tokens] for side in (a, b)]
    if any(len(of_side) < len(side) for of_side, side in zip(requested_means, (a, b), strict=True)):
        return None
    mean_a, mean_b = (sum(of_side) / len(of_side) for of_side in requested_means)
    return None if abs(mean_b - mean_a) <= band * mean_a else (mean_a, mean_b)


def _may_be_chance(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether A's trials differ enough from each other to explain how far B's mean is from theirs.

    Sampled answers of some dozen requests have quantiles that vary by more than the band. Where A's do not vary, no
    difference is chance, however much B's trials vary.
    """
    if len(a) < 2:
        return False
    error = float(np.std(a, ddof=1)) * math.sqrt(1 / len(a) + 1 / len(b))
    bound = t_quantile(1 - _BY_CHANCE / (2 * len(_QUANTILES)), len(a) - 1)
    return abs(sum(b) / len(b) - sum(a) / len(a)) <= bound * error


def _differs_significantly(a: Sequence[float], b: Sequence[float], alpha: float) -> bool:
    """Whether trials differ by more than their noise; always for single trials, whose noise is unknown."""
    effect = contrast(dict(enumerate(a)), dict(enumerate(b)), interleaved=False, scale=Scale.DIFFERENCE)
    return effect is None or effect.p_value <= alpha
