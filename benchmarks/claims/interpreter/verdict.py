"""Verdicts: pure functions of estimates and the claimed range."""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from bakeoff.results.statistics.interval import Interval
from bakeoff.results.statistics.power import runs_needed
from bakeoff.results.statistics.two_sample import Contrast, Method, contrast
from benchmarks.claims.interpreter.claim import Expected

CONFIDENCE = 0.95
_MIN_TRIALS = 2


class Outcome(StrEnum):
    """Result of one case."""

    INSIDE = "inside"
    """The quantity lies in the range."""
    OUTSIDE = "outside"
    """Its interval excludes the range."""
    UNCLEAR = "unclear"
    """The interval admits both."""


class Verdict(StrEnum):
    """Result of all cases of a claim together."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    OTHER_CONDITIONS = "holds under other conditions"
    """Outside the range under the claimed conditions or in some tests, inside in others."""
    NOT_TESTABLE = "not testable here"
    """No case with the claimed conditions can run on this machine."""
    CANNOT_TELL = "cannot tell"
    """More repeats would decide."""


class Estimate(msgspec.Struct, frozen=True):
    """A quantity with its interval.

    Attributes:
        interval: at 95 %; of a computed figure, both bounds are the figure.
        contrast: noise behind it, on a log scale; None for computed or evaluated quantities.
        no_effect: value that means no effect; None if there is none.
    """

    interval: Interval
    contrast: Contrast | None = None
    no_effect: float | None = None


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one case.

    Attributes:
        title: of the case.
        as_claimed: of the case.
        procedure: of the case.
        missing: why it was not tested; None if it was.
        why_absent: why a test gave no figure.
        interval: of the quantity.
        outcome: against the claimed range; unclear without a figure, None for a case that was not tested.
        repeats: per side that would decide an unclear case; None if unknown, too many, or decided.
        runs: ids of runs, or names of published ones.
        machine: of the measurement; None for computed quantities.
        details: other figures, such as the source's own formula beside ours; None is infinite.
        values: raw values by side and repeat.
        retry: whether trials behind it were INVALID, so that the next call measures these again.
    """

    title: str
    as_claimed: bool
    procedure: str
    missing: str | None = None
    why_absent: str | None = None
    interval: Interval | None = None
    outcome: Outcome | None = None
    repeats: int | None = None
    runs: list[str] = []
    machine: str | None = None
    details: dict[str, float | None] = {}
    values: dict[str, dict[int, float]] = {}
    retry: bool = False


def exact(value: float) -> Estimate:
    """Estimate of a computed figure."""
    return Estimate(Interval(value, value, value, 1))


def estimate(of: Mapping[int, float], over: Mapping[int, float] | None, *, interleaved: bool) -> Estimate | None:
    """Geometric mean of a quantity, or ratio of two.

    Args:
        of: repeat → value.
        over: repeat → value of the denominator; None for the quantity itself.
        interleaved: whether equal repeats were measured next to each other.

    Returns:
        None without a value, or if some are not positive.
    """
    sides = [of] if over is None else [of, over]
    if not all(sides) or any(value <= 0 or math.isinf(value) for side in sides for value in side.values()):
        return None
    no_effect = None if over is None else 1.0
    effect = _alone(of) if over is None else contrast(over, of, interleaved=interleaved)
    if effect is not None:
        return Estimate(effect.interval(CONFIDENCE), effect, no_effect)
    centre = math.exp(_mean_log(of) - (_mean_log(over) if over is not None else 0.0))
    return Estimate(Interval(centre, None, None, min(map(len, sides)), "one repeat"), None, no_effect)


def outcome(estimated: Estimate, expected: Expected) -> Outcome:
    """Compare a quantity with the claimed range.

    Inside: the whole interval is in the range; or its centre is, and both the range and the interval rule out "no
    effect". Outside: no value of the interval is in the range.
    """
    interval, low, high = estimated.interval, expected.low, expected.high
    if interval.low is None or interval.high is None:
        return Outcome.UNCLEAR
    if interval.high < low or interval.low > high:
        return Outcome.OUTSIDE
    if low <= interval.low and interval.high <= high:
        return Outcome.INSIDE
    is_centre_in = low <= interval.centre <= high
    return Outcome.INSIDE if is_centre_in and _shows_effect(estimated, low, high) else Outcome.UNCLEAR


def repeats_needed(estimated: Estimate, expected: Expected) -> int | None:
    """Repeats per side that separate the centre from the nearest bound or from no effect; None: unknown or too many."""
    centre, effect = estimated.interval.centre, estimated.contrast
    if effect is None:
        return None
    bounds = [bound for bound in (expected.low, expected.high) if 0 < bound < math.inf and bound != centre]
    none = estimated.no_effect
    if expected.low <= centre <= expected.high and none is not None and not expected.low < none < expected.high:
        bounds = [none]
    distances = [math.expm1(abs(math.log(centre / bound))) for bound in bounds]
    smallest = min(distances, default=0.0)
    return runs_needed(effect, 1 - CONFIDENCE, smallest) if smallest else None


def verdict(results: Sequence[CaseResult]) -> Verdict:
    """Combine the results of a claim's cases."""
    claimed = [case.outcome for case in results if case.as_claimed and case.outcome is not None]
    elsewhere = [case.outcome for case in results if not case.as_claimed and case.outcome is not None]
    if not claimed:
        return Verdict.NOT_TESTABLE
    if Outcome.INSIDE in claimed:
        return Verdict.OTHER_CONDITIONS if Outcome.OUTSIDE in claimed else Verdict.REPRODUCED
    if Outcome.INSIDE in elsewhere and Outcome.OUTSIDE in claimed:
        return Verdict.OTHER_CONDITIONS
    return Verdict.NOT_REPRODUCED if Outcome.OUTSIDE in claimed else Verdict.CANNOT_TELL


def deciding(results: Sequence[CaseResult]) -> CaseResult | None:
    """The case that a summary shows: one that was tested, with the claimed conditions and inside first."""
    tested = [case for case in results if case.outcome is not None]
    return min(tested, key=lambda case: (not case.as_claimed, case.outcome is not Outcome.INSIDE), default=None)


def _shows_effect(estimated: Estimate, low: float, high: float) -> bool:
    """Whether the claim is about an effect, and the interval excludes that there is none."""
    none, interval = estimated.no_effect, estimated.interval
    if none is None or low < none < high or interval.low is None or interval.high is None:
        return False
    return not interval.low <= none <= interval.high


def _alone(values: Mapping[int, float]) -> Contrast | None:
    n = len(values)
    if n < _MIN_TRIALS:
        return None
    logs = [math.log(value) for value in values.values()]
    mean = math.fsum(logs) / n
    variance = math.fsum((value - mean) ** 2 for value in logs) / (n - 1)
    return Contrast(mean, math.sqrt(variance / n), n - 1.0, Method.PAIRED, (n, n))


def _mean_log(values: Mapping[int, float]) -> float:
    return math.fsum(math.log(value) for value in values.values()) / len(values)
