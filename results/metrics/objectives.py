"""Service-level objectives written as text: ``ttft<500ms`` for each request, ``ttft_p99<500ms`` for a trial.

Names are those of single requests (``ttft``, ``tpot``, ``e2e``, ``first_visible``) or of a metric of the catalogue,
which has a value for a trial. The name may omit the unit suffix of the metric's name; the bound of a time, a
size or an energy then needs a unit. Any other bound without a unit is in the metric's unit.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from bakeoff.results.errors import NotComparable
from bakeoff.results.metrics import CATALOGUE, Better, Metric, Unit, Value
from bakeoff.results.metrics.catalogue import unknown_metric
from bakeoff.results.records import Slo


class Relation(StrEnum):
    """Direction of the bound."""

    BELOW = "<"
    AT_MOST = "<="
    ABOVE = ">"
    AT_LEAST = ">="


_COMPARE: dict[Relation, Callable[[float, float], bool]] = {
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
    Unit.PER_HOUR: {"/h": 1.0},
    Unit.TOKENS_PER_SECOND: {"tok/s": 1.0},
}
_PROPORTIONAL = {Unit.SECONDS, Unit.BYTES, Unit.JOULES, Unit.PER_SECOND, Unit.PER_HOUR, Unit.TOKENS_PER_SECOND}
"""Units of metrics whose noise is proportional to their value."""
_NEEDS_UNIT = {Unit.SECONDS, Unit.BYTES, Unit.JOULES}
"""Units of metrics whose bound could be meant in another unit: 300 is more often meant in ms than in s."""
_FORM = re.compile(r"\s*(?P<name>\w+)\s*(?P<relation><=|>=|<|>)\s*(?P<number>[-+.\deE]*\d\.?)\s*(?P<unit>\S*)\s*")
_SUFFIXES = ("", "_s", "_per_s", "_bytes", "_j")
_OF_MET_REQUESTS = frozenset({"attainment", "goodput_per_s"})
"""Metrics of the requests that meet bounds of their own."""
_EXAMPLE = "write it like ttft_p99<500ms"


class Violation(msgspec.Struct, frozen=True):
    """An objective that a trial violates, with the value observed.

    Attributes:
        objective: as written.
        metric: name in the catalogue.
        value: of the trial; absent if it was not observed.
    """

    objective: str
    metric: str
    value: Value


class Objective(msgspec.Struct, frozen=True):
    """One objective.

    Attributes:
        metric: name in the catalogue.
        relation: direction of the bound.
        bound: in the metric's unit.
        text: as written.
    """

    metric: str
    relation: Relation
    bound: float
    text: str

    def holds(self, value: float) -> bool:
        """Whether a value meets the objective."""
        return _COMPARE[self.relation](value, self.bound)

    def margin(self, value: float) -> float | None:
        """Log distance of a value from the bound: positive if met, negative if violated.

        None for counts and shares, whose noise is not proportional to their value, and if a logarithm does not exist.
        """
        if CATALOGUE[self.metric].unit not in _PROPORTIONAL or value <= 0 or self.bound <= 0:
            return None
        upper = self.relation in {Relation.BELOW, Relation.AT_MOST}
        return math.log(self.bound / value) * (1 if upper else -1)

    def violation(self, metrics: Mapping[str, Value]) -> Violation | None:
        """The violation by a trial; None if it meets the objective.

        Args:
            metrics: of one trial, by name. An absent value violates every objective.
        """
        measured = metrics[self.metric]
        met = measured.value is not None and self.holds(measured.value)
        return None if met else Violation(self.text, self.metric, measured)


def objectives(text: str) -> list[Objective]:
    """Parse objectives separated by commas.

    Raises:
        NotComparable: an objective is malformed, names an unknown metric or unit, or bounds a metric in the direction
            of improvement, or the unit of a bound is not known.
    """
    return [_objective(_form(part)) for part in text.split(",")]


def service_level(text: str | Iterable[str]) -> tuple[Slo, list[Objective]]:
    """Parse bounds of each request and of the trial, separated by commas.

    Raises:
        NotComparable: as :func:`objectives`.
    """
    parts = [part for each in ([text] if isinstance(text, str) else text) for part in each.split(",") if part.strip()]
    bounds: dict[str, float] = {}
    trial: list[Objective] = []
    for form in map(_form, parts):
        field = _request_field(form)
        if field is None:
            trial.append(_bounded(form, metric_named(form["name"])))
        elif field in bounds:
            raise NotComparable(f"'{form[0].strip()}' bounds {field.removesuffix('_s')} a second time; give one bound")
        else:  # it has the unit and the direction of the metric's median
            bounds[field] = _bounded(form, CATALOGUE[f"{field.removesuffix('_s')}_p50_s"]).bound
    return Slo(**bounds), trial


def missing_bounds(slo: Slo, required: Iterable[Objective]) -> str | None:
    """What is wrong with objectives of requests that meet their bounds where there are none; None if nothing is."""
    names = [each.metric for each in required if each.metric in _OF_MET_REQUESTS]
    wrong = "is of requests that meet bounds of their own; add one, such as ttft<500ms"
    return f"{names[0]} {wrong}" if names and slo == Slo() else None


def violated(required: Sequence[Objective], metrics: Mapping[str, Value]) -> list[Violation]:
    """Violations of objectives by a trial; empty if it meets them all."""
    return [violation for objective in required if (violation := objective.violation(metrics)) is not None]


def least_margin(required: Sequence[Objective], metrics: Mapping[str, Value]) -> float | None:
    """Smallest margin over the objectives; None unless each has one."""
    values = [(objective, metrics[objective.metric].value) for objective in required]
    margins = [None if value is None else objective.margin(value) for objective, value in values]
    known_margins = [margin for margin in margins if margin is not None]
    return min(known_margins) if known_margins and len(known_margins) == len(margins) else None


def _form(text: str) -> re.Match[str]:
    form = _FORM.fullmatch(text)
    if form is None:
        raise NotComparable(f"'{text.strip()}' is not an objective; {_EXAMPLE}")
    return form


def _request_field(form: re.Match[str]) -> str | None:
    """Field of :class:`Slo` that a text bounds; None if it bounds a metric of the trial."""
    field = f"{form['name'].removesuffix('_s')}_s"
    return field if field in Slo.__struct_fields__ else None


def _objective(form: re.Match[str]) -> Objective:
    if field := _request_field(form):
        name = field.removesuffix("_s")
        raise NotComparable(
            f"'{form[0].strip()}' bounds each request; bound a percentile of the trial, as in {name}_p90, or the share "
            "of requests that meet it, as in attainment>=99%"
        )
    return _bounded(form, metric_named(form["name"]))


def _bounded(form: re.Match[str], metric: Metric) -> Objective:
    text = form[0].strip()
    relation = Relation(form["relation"])
    if not form["unit"] and metric.unit in _NEEDS_UNIT and form["name"] != metric.name:
        raise NotComparable(f"'{text}' has no unit; add one of {', '.join(_UNITS[metric.unit])}")
    try:
        bound = float(form["number"]) * _factor(form["unit"], metric)
    except ValueError as error:
        raise NotComparable(f"'{form['number']}' in '{text}' is not a number; {_EXAMPLE}") from error
    if metric.unit is Unit.SHARE and bound > 1:
        raise NotComparable(f"'{text}' bounds a share by more than 1; write {metric.name}>=99%")
    if bound < 0 or (bound == 0 and metric.unit in _PROPORTIONAL):
        raise NotComparable(f"'{text}' bounds {form['name']} by {form['number']}; a bound must be above 0")
    upper = relation in {Relation.BELOW, Relation.AT_MOST}
    if upper != (metric.better is Better.LOWER):
        raise NotComparable(f"'{text}' bounds {form['name']} in the wrong direction: {metric.better.value} is better")
    return Objective(metric.name, relation, bound, text)


def metric_named(name: str, known: Mapping[str, Metric] = CATALOGUE) -> Metric:
    """Look up a metric by name; the unit suffix may be omitted: ``ttft_p99`` is ``ttft_p99_s``.

    Args:
        name: in full, or without the suffix.
        known: where to look.

    Raises:
        NotComparable: the metric is unknown.
    """
    metric = next((known[name + suffix] for suffix in _SUFFIXES if name + suffix in known), None)
    if metric is None:
        raise NotComparable(unknown_metric(name, known))
    return metric


def _factor(unit: str, metric: Metric) -> float:
    factors = _UNITS.get(metric.unit, {})
    if unit and unit not in factors:
        allowed = f"use {', '.join(factors)}" if factors else "it has no unit"
        raise NotComparable(f"'{unit}' is not a unit of {metric.name}; {allowed}")
    return factors[unit] if unit else 1.0
