"""From an engine's own page to the frame: names, units and sums as :mod:`engines.metrics.source` has them. No I/O."""

import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from engines.metrics.iterations import IterationReader
from engines.metrics.prometheus import Sample, samples
from engines.metrics.source import DrainedIterations, MetricsSource, Prometheus

Frame = dict[str, float | None]
"""Values by name; one that the engine shows as no number is None, one that it does not show is absent."""


class MetricsReader(Protocol):
    """Reads the pages of one server, one after the other."""

    def read(self, body: bytes) -> Frame:
        """What a page says.

        Raises:
            ValueError: it is not of this kind.
        """
        ...


def reader_of(source: MetricsSource) -> MetricsReader:
    """A reader for the pages of one server; made anew for each, because some pages say only what is new."""
    match source:
        case Prometheus():
            return PrometheusReader(source)
        case DrainedIterations():
            return IterationReader()


class _Target(NamedTuple):
    """What a series of the page is added to.

    Attributes:
        ours: the name; that of a bucket is completed by its bound.
        labels: which the series must have.
        scale: of its value.
        bound_scale: of a bucket's bound; None of what is no bucket.
    """

    ours: str
    labels: dict[str, str]
    scale: float = 1.0
    bound_scale: float | None = None


class PrometheusReader:
    """Reads a page in Prometheus' text format.

    Several series of one name are added up; of shares (names that end in ``_share``) the mean is taken: two
    replicas with half-full caches are half full.

    Args:
        source: what its names mean.
    """

    def __init__(self, source: Prometheus) -> None:
        self._targets: dict[str, list[_Target]] = {}
        for theirs, target in _targets(source):
            self._targets.setdefault(theirs, []).append(target)

    def read(self, body: bytes) -> Frame:
        """See :class:`MetricsReader`; a page without any of the names is an empty frame."""
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        for sample in samples(body.decode("utf-8", "replace"), self._targets):
            for target in self._targets[sample.name]:
                name = _name(target, sample)
                if name and all(sample.labels.get(label) == value for label, value in target.labels.items()):
                    sums[name] = sums.get(name, 0.0) + sample.value * target.scale
                    counts[name] = counts.get(name, 0) + 1
        return {name: _finite(total / (counts[name] if name.endswith("_share") else 1)) for name, total in sums.items()}


def _targets(source: Prometheus) -> Iterator[tuple[str, _Target]]:
    for ours, series in source.values.items():
        for one in series:
            yield one.name, _Target(ours, one.labels, one.scale)
    for ours, histogram in source.histograms.items():
        yield f"{histogram.name}_sum", _Target(f"{ours}_sum", histogram.labels, histogram.scale)
        yield f"{histogram.name}_count", _Target(f"{ours}_count", histogram.labels)
        # Of a bucket the bound has the unit, not the number in it.
        yield f"{histogram.name}_bucket", _Target(f"{ours}_le_", histogram.labels, bound_scale=histogram.scale)


def _name(target: _Target, sample: Sample) -> str:
    """The name in the frame; empty for the last bucket, which says what ``_count`` says."""
    if target.bound_scale is None:
        return target.ours
    bound = float(sample.labels.get("le", "inf"))
    return f"{target.ours}{bound * target.bound_scale:.6g}" if math.isfinite(bound) else ""


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
