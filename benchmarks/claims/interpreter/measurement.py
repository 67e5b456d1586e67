"""The result of a procedure: an estimate of the claim's quantity, and the figures behind it."""

import math
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from bakeoff.results.compare.evaluation import Evaluation
from bakeoff.results.statistics.interval import Interval, reciprocal
from benchmarks.claims.interpreter.claim import Arithmetic, Contrasted
from benchmarks.claims.interpreter.expression import evaluate
from benchmarks.claims.interpreter.verdict import Estimate, estimate, exact


class Measurement(msgspec.Struct, frozen=True):
    """Result of a case's procedure.

    Attributes:
        estimate: of the quantity; None if there is none.
        why_absent: the reason.
        runs: ids of runs, or names of published ones.
        machine: on which these were measured.
        details: other figures; None is infinite.
        values: raw values by side and repeat.
        retry: whether some trials were INVALID.
    """

    estimate: Estimate | None
    why_absent: str | None = None
    runs: list[str] = []
    machine: str | None = None
    details: dict[str, float | None] = {}
    values: dict[str, dict[int, float]] = {}
    retry: bool = False


def quality(quantity: str, evaluation: Evaluation) -> Measurement:
    """A quantity of an evaluation beside the plain model."""
    ratio, reference = evaluation.perplexity_ratio, evaluation.reference_perplexity
    assert ratio is not None
    assert reference is not None
    intervals: Mapping[str, Interval | None] = {
        "perplexity_ratio": ratio,
        "perplexity_increase": _scaled(ratio, reference.centre, -reference.centre),
        "retention": reciprocal(ratio),
        "token_match": evaluation.token_match,
        "kl_nats_per_token": evaluation.kl_nats_per_token,
    }
    interval = intervals[quantity]
    details: dict[str, float | None] = {
        "perplexity": evaluation.perplexity.centre,
        "perplexity of the plain model": reference.centre,
    }
    return Measurement(None if interval is None else Estimate(interval), evaluation.kl_absent, details=details)


def computed(arithmetic: Arithmetic) -> Measurement:
    """Evaluate the expressions of an arithmetic case."""
    value = evaluate(arithmetic.expression, arithmetic.inputs)
    beside = {name: evaluate(text, arithmetic.inputs) for name, text in arithmetic.beside.items()}
    details = {name: figure if math.isfinite(figure) else None for name, figure in beside.items()}
    if not math.isfinite(value):
        return Measurement(None, "the figure is infinite", details=details)
    return Measurement(exact(value), details=details)


def contrasted_measurement(
    contrasted: Contrasted,
    values: Mapping[str, Mapping[int, float]],
    runs: list[str],
    machine: str | None,
    failures: Mapping[str, str | None] = MappingProxyType({}),
) -> Measurement:
    """The quantity of the sides' values by repeat; `failures` has the cause by side where trials are missing."""
    of, over = contrasted.of, contrasted.over
    interleaved = over is not None and over.run == of.run
    estimated = estimate(values[of.text], None if over is None else values[over.text], interleaved=interleaved)
    why = None
    if estimated is None:
        empty = [side.text for side in contrasted.sides if not values[side.text]]
        why = f"no VALID trial of {empty[0]} has the metric" if empty else "some values are not positive"
        if empty and (cause := failures.get(empty[0])):
            why += f"; {cause}"
    return Measurement(estimated, why, runs, machine, values={side: dict(own) for side, own in values.items()})


def _scaled(interval: Interval, factor: float, offset: float) -> Interval:
    low, high = (None if bound is None else bound * factor + offset for bound in (interval.low, interval.high))
    return msgspec.structs.replace(interval, centre=interval.centre * factor + offset, low=low, high=high)
