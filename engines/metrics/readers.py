"""Readers of metrics pages: they translate a page into :data:`EngineValues`. No I/O."""

import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from bakeoff.engines.metrics.iterations import IterationReader
from bakeoff.engines.metrics.prometheus import Sample, declared_counters, samples
from bakeoff.engines.metrics.source import COUNTERS, POSITIONED, DrainedIterations, MetricsSource, Prometheus

EngineValues = dict[str, float | None]
"""Values by the names of :mod:`bakeoff.engines.metrics.source`. None stands for NaN and infinity; values that the page
lacks are absent."""


class MetricsReader(Protocol):
    """Reads successive pages of one server."""

    def read(self, body: bytes) -> EngineValues:
        """The values of a page.

        Raises:
            ValueError: the page has another format.
        """
        ...


def reader_of(source: MetricsSource) -> MetricsReader:
    """A new reader; each server needs its own, because some pages contain only what is new."""
    match source:
        case Prometheus():
            return PrometheusReader(source)
        case DrainedIterations():
            return IterationReader()


class _Target(NamedTuple):
    """Our value to which a series of the page is added.

    Attributes:
        ours: our name; a bucket's bound is appended.
        labels: labels that the series must have.
        scale: factor of the value.
        bound_scale: factor of a bucket's bound; None for other series.
        position: label whose number is put into our name; None for other series.
    """

    ours: str
    labels: dict[str, str]
    scale: float = 1.0
    bound_scale: float | None = None
    position: str | None = None


class PrometheusReader:
    """Reads a page in Prometheus' text format.

    Several series of one name are summed, those of names that end in ``_share`` averaged. A counter that the page
    declares without a sample is 0: Prometheus' clients write a labelled series only after its first increment.

    Args:
        source: maps the page's names to ours.
    """

    def __init__(self, source: Prometheus) -> None:
        self._targets: dict[str, list[_Target]] = {}
        for theirs, target in _targets(source):
            self._targets.setdefault(theirs, []).append(target)
        self._counters: dict[str, list[str]] = {}
        for ours in source.values.keys() & set(COUNTERS):
            for series in source.values[ours]:
                self._counters.setdefault(series.name, []).append(ours)

    def read(self, body: bytes) -> EngineValues:
        """Empty for a page with none of the names."""
        page = body.decode("utf-8", "replace")
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        seen: set[str] = set()
        for sample in samples(page, self._targets):
            seen.add(sample.name)
            for target in self._targets[sample.name]:
                name = _name(target, sample)
                if name and all(sample.labels.get(label) == value for label, value in target.labels.items()):
                    sums[name] = sums.get(name, 0.0) + sample.value * target.scale
                    counts[name] = counts.get(name, 0) + 1
        silent = self._counters.keys() - seen
        for theirs in silent & declared_counters(page) if silent else ():
            for name in self._counters[theirs]:
                sums.setdefault(name, 0.0)
                counts.setdefault(name, 1)
        return {name: _finite(total / (counts[name] if name.endswith("_share") else 1)) for name, total in sums.items()}


def _targets(source: Prometheus) -> Iterator[tuple[str, _Target]]:
    for ours, all_series in source.values.items():
        for series in all_series:
            yield series.name, _Target(ours, series.labels, series.scale)
    for ours, histogram in source.histograms.items():
        yield f"{histogram.name}_sum", _Target(f"{ours}_sum", histogram.labels, histogram.scale)
        yield f"{histogram.name}_count", _Target(f"{ours}_count", histogram.labels)
        # A bucket's bound has a unit to convert; its value is a count.
        yield f"{histogram.name}_bucket", _Target(f"{ours}_le_", histogram.labels, bound_scale=histogram.scale)
    if source.accepted_at is not None:
        yield source.accepted_at.name, _Target(POSITIONED, {}, position=source.accepted_at.label)


def _name(target: _Target, sample: Sample) -> str:
    """Our name; empty for the bucket ``+Inf``, which equals ``_count``, and for a position that is no number."""
    if target.position is not None:
        position = sample.labels.get(target.position, "")
        return target.ours.format(int(position)) if position.isdecimal() else ""
    if target.bound_scale is None:
        return target.ours
    bound = float(sample.labels.get("le", "inf"))
    return f"{target.ours}{bound * target.bound_scale:.6g}" if math.isfinite(bound) else ""


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
