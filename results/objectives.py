"""Objectives in one line of text: ``ttft_p99<500ms,itl_p99<30ms,attainment>=0.99``.

Each bounds one metric of the catalogue. The name may leave the unit out that the catalogue's name ends in, and the
bound may carry one of its own; without, it is in the metric's unit.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import msgspec

from results.errors import NotComparable
from results.metrics import CATALOGUE, Better, Metric, Unit, Value


class Relation(StrEnum):
    """Which side of the bound is asked for."""

    BELOW = "<"
    AT_MOST = "<="
    ABOVE = ">"
    AT_LEAST = ">="


_HOLDS: dict[Relation, Callable[[float, float], bool]] = {
    Relation.BELOW: operator.lt,
    Relation.AT_MOST: operator.le,
    Relation.ABOVE: operator.gt,
    Relation.AT_LEAST: operator.ge,
}
_UNITS: dict[Unit, dict[str, float]] = {
    Unit.SECONDS: {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6},
    Unit.BYTES: {"B": 1.0, "MB": 1e6, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30},
    Unit.SHARE: {"%": 0.01},
    Unit.JOULES: {"J": 1.0, "mJ": 1e-3},
    Unit.PER_SECOND: {"/s": 1.0},
    Unit.TOKENS_PER_SECOND: {"tok/s": 1.0},
}
_BY_SHARE = {Unit.SECONDS, Unit.BYTES, Unit.JOULES, Unit.PER_SECOND, Unit.TOKENS_PER_SECOND}
_FORM = re.compile(r"\s*(?P<name>\w+)\s*(?P<relation><=|>=|<|>)\s*(?P<number>[-+.\deE]*\d\.?)\s*(?P<unit>\S*)\s*")
_SUFFIXES = ("", "_s", "_per_s", "_bytes", "_j")
_EXAMPLE = "write it like ttft_p99<500ms"


class Miss(msgspec.Struct, frozen=True):
    """An objective that a trial does not meet.

    Attributes:
        objective: as it was written.
        metric: name in the catalogue.
        value: of the trial; absent where nothing was seen of it.
    """

    objective: str
    metric: str
    value: Value


class Objective(msgspec.Struct, frozen=True):
    """One bound.

    Attributes:
        metric: name in the catalogue.
        relation: which side of the bound is asked for.
        bound: in the metric's unit.
        text: as it was written.
    """

    metric: str
    relation: Relation
    bound: float
    text: str

    def holds(self, value: float) -> bool:
        """Whether a value of the metric meets it."""
        return _HOLDS[self.relation](value, self.bound)

    def margin(self, value: float) -> float | None:
        """How far a value of the metric is on the good side: log of bound over value, negative on the bad one.

        None for a metric whose noise is no share of its value, as of counts and shares, and where there is no log.
        """
        if CATALOGUE[self.metric].unit not in _BY_SHARE or value <= 0 or self.bound <= 0:
            return None
        upper = self.relation in {Relation.BELOW, Relation.AT_MOST}
        return math.log(self.bound / value) * (1 if upper else -1)

    def missed(self, metrics: Mapping[str, Value]) -> Miss | None:
        """What a trial has instead; None where it meets the objective.

        Args:
            metrics: of one trial, by name. An absent value meets nothing: what was not seen was not kept.
        """
        found = metrics[self.metric]
        met = found.value is not None and self.holds(found.value)
        return None if met else Miss(self.text, self.metric, found)


def objectives(text: str) -> list[Objective]:
    """Read objectives, separated by commas.

    Raises:
        NotComparable: one is not of the form, names no metric, has a unit of another kind, or bounds a metric on the
            side where it is good.
    """
    return [_objective(part) for part in text.split(",")]


def missed(wanted: Sequence[Objective], metrics: Mapping[str, Value]) -> list[Miss]:
    """The objectives that a trial does not meet."""
    return [miss for objective in wanted if (miss := objective.missed(metrics)) is not None]


def least_margin(wanted: Sequence[Objective], metrics: Mapping[str, Value]) -> float | None:
    """The margin of the objective that is kept least; None unless every one has a margin."""
    values = [(one, metrics[one.metric].value) for one in wanted]
    margins = [None if value is None else one.margin(value) for one, value in values]
    known = [margin for margin in margins if margin is not None]
    return min(known) if known and len(known) == len(margins) else None


def _objective(text: str) -> Objective:
    form = _FORM.fullmatch(text)
    if form is None:
        raise NotComparable(f"'{text.strip()}' is no objective; {_EXAMPLE}")
    metric = metric_named(form["name"])
    relation = Relation(form["relation"])
    try:
        bound = float(form["number"]) * _factor(form["unit"], metric)
    except ValueError as error:
        raise NotComparable(f"'{form['number']}' in '{text.strip()}' is no number; {_EXAMPLE}") from error
    upper = relation in {Relation.BELOW, Relation.AT_MOST}
    if upper != (metric.better is Better.LOWER):
        raise NotComparable(f"'{text.strip()}' bounds {metric.name} on its good side: {metric.better.value} is better")
    return Objective(metric.name, relation, bound, text.strip())


def metric_named(name: str) -> Metric:
    """The metric of that name, whose unit may be left out: ``ttft_p99`` is ``ttft_p99_s``.

    Raises:
        NotComparable: there is none.
    """
    found = next((CATALOGUE[name + suffix] for suffix in _SUFFIXES if name + suffix in CATALOGUE), None)
    if found is None:
        raise NotComparable(f"unknown metric '{name}'; known: {', '.join(CATALOGUE)}")
    return found


def _factor(unit: str, metric: Metric) -> float:
    known = _UNITS.get(metric.unit, {})
    if unit and unit not in known:
        allowed = f"use {', '.join(known)}" if known else "it has no unit"
        raise NotComparable(f"'{unit}' is no unit of {metric.name}; {allowed}")
    return known[unit] if unit else 1.0
