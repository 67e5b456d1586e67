"""A Prometheus histogram that takes many values in one call."""

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class BulkHistogram(Collector):
    """On /metrics identical to `prometheus_client.Histogram`, which takes a lock or two for each value.

    Args:
        name: of the series.
        documentation: one sentence.
        labels: names and values, the same for all values.
        buckets: upper bounds, ascending; +Inf is added.
        registry: that exposes it.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Mapping[str, str],
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = dict(labels)
        self._bounds = [float(bound) for bound in buckets]
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        self._created_s = time.time()  # wall clock, as Prometheus requires
        registry.register(self)

    def observe_all(self, values: Sequence[float]) -> None:
        """Adds values in their order: the sum is rounded as if they were added one by one."""
        bounds, counts, total = self._bounds, self._counts, self._sum
        for value in values:
            total += value
            counts[bisect_left(bounds, value)] += 1
        self._sum = total

    def collect(self) -> Iterator[Metric]:
        """Part of `Collector`."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=list(self._labels))
        buckets: list[tuple[str, float]] = []
        cumulative = 0
        for bound, count in zip([*self._bounds, float("inf")], self._counts, strict=True):
            cumulative += count
            buckets.append((floatToGoString(bound), cumulative))
        family.add_metric(list(self._labels.values()), buckets, self._sum)
        family.add_sample(f"{self._name}_created", self._labels, self._created_s)
        yield family
