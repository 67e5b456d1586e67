"""How a metric is declared: what it is, and the functions that compute and count it.

A metric of trials is one :class:`TrialMetric` beside its function, in the ``METRICS`` of its module; a latency is one
:class:`Latency`, of which each percentile is a metric. Tables, comparisons, reports and docs/definitions.md are made
from these.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import numpy as np

from bakeoff.results.metric import Better, Metric, Role, Unit
from bakeoff.results.metrics.percentiles import percentile
from bakeoff.results.metrics.values import Value, absent
from bakeoff.results.records import Slo, TelemetryRecord, TrialRecord, Window
from bakeoff.results.requests import Floats, Places, Requests
from bakeoff.results.statistics.clusters import Clusters

_T = TypeVar("_T")
QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))
ShareOf = Callable[[Requests, Window], Floats]
"""How much of each request counts in a window, 0 to 1."""
OfRequest = Callable[[Requests], Floats]
"""One observation of each request; NaN where it has none."""
OfGaps = Callable[[Requests, Window], tuple[Floats, Places]]
"""Observations within a window, and the position of the request of each."""


class Observations(msgspec.Struct, frozen=True):
    """Observations of one latency.

    Attributes:
        values_s: in seconds.
        failures: failed requests, which count as later than any value.
        answers: answers that the observations come from, if one has several; else None.
    """

    values_s: Floats
    failures: int = 0
    answers: int | None = None

    @property
    def count(self) -> int:
        """Number of observations, failures included."""
        return len(self.values_s) + self.failures


class TrialData:
    """What the metrics of a trial are computed from.

    Args:
        load: all requests under load, without warm-up.
        window: a request counts by its planned time, a token by its arrival.
        slo: SLO of the experiment.
        share_of: how much of a request counts in a rate.
        planned: requests that count by their planned time; None for those planned inside the window.
        telemetry: samples of the trial.
        idle: part of the trial in which the engine was ready and idle; None if there is none.
        trial: record of the trial, for metrics that need its load and plan; None for requests alone.
    """

    def __init__(
        self,
        load: Requests,
        window: Window,
        slo: Slo,
        share_of: ShareOf,
        *,
        planned: Requests | None = None,
        telemetry: Sequence[TelemetryRecord] = (),
        idle: Window | None = None,
        trial: TrialRecord | None = None,
    ) -> None:
        self.load: Requests = load
        self.window: Window = window
        self.slo: Slo = slo
        self.share_of: Callable[[Requests, Window], Floats] = share_of
        self.telemetry: Sequence[TelemetryRecord] = telemetry
        self.idle: Window | None = idle
        self.trial: TrialRecord | None = trial
        self.inside: Requests = load.planned_inside(window) if planned is None else planned
        self.is_part: bool = planned is not None
        self._computed: dict[Callable[[TrialData], Any], Any] = {}

    @cached_property
    def shares(self) -> Floats:
        """How much of each request under load counts in a rate."""
        return self.share_of(self.load, self.window)

    @cached_property
    def gpu_telemetry(self) -> list[TelemetryRecord]:
        """Samples of the GPUs."""
        return [record for record in self.telemetry if record.source.startswith("gpu")]

    def once(self, compute: Callable[["TrialData"], _T]) -> _T:
        """What ``compute`` returns for this trial; several metrics share it."""
        if compute not in self._computed:
            self._computed[compute] = compute(self)
        return self._computed[compute]


class Needs(StrEnum):
    """What a metric is computed from; each level includes the one before."""

    PLANNED = "planned"
    """Requests that count by their planned time, one by one."""
    LOAD = "load"
    """All requests under load, and the window."""
    TELEMETRY = "telemetry"
    """Samples of the machine as well."""


class TrialMetric(Metric, frozen=True, kw_only=True):
    """A metric of trials.

    Attributes:
        of: computes its value.
        count: counts its observations.
        needs: what both read.
    """

    of: Callable[[TrialData], Value]
    count: Callable[[TrialData], int]
    needs: Needs = Needs.LOAD


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """A latency, whose percentiles are metrics.

    Attributes:
        key: family of its metrics, and the beginning of their names.
        title: heading without the percentile.
        definition: one sentence, of a single observation.
        observation: what one observation is.
        of_request: the observation of each request; None for a latency of gaps between tokens.
        of_gaps: observations within a window, whatever the outcome of their request.
        counts_failures: whether a failed request counts as later than every success.
        why_absent: why a trial has no such latency; None, or a result of None, if it has.
        roles: of every percentile.
        median_roles: of the median only.
        in_full: heading in words, without the percentile.
    """

    key: str
    title: str
    definition: str
    observation: str
    of_request: OfRequest | None = None
    of_gaps: OfGaps | None = None
    counts_failures: bool = True
    why_absent: Callable[[TrialData], str | None] | None = None
    roles: Iterable[Role] = ()
    median_roles: Iterable[Role] = ()
    in_full: str = ""

    @property
    def is_of_requests(self) -> bool:
        """Whether each planned request has at most one observation, and failures count."""
        return self.of_request is not None and self.counts_failures

    def observe(self, data: TrialData) -> Observations:
        """Collect the observations of a trial."""
        if self.of_gaps is not None:
            values_s, owners = self.of_gaps(data.load, data.window)
            return Observations(values_s, answers=len(np.unique(owners)))
        assert self.of_request is not None
        if not self.counts_failures:
            return Observations(known(self.of_request(data.inside)))
        return Observations(known(self.of_request(data.inside.ok)), int(data.inside.has_failed.sum()))

    def by_request(self, load: Requests, window: Window) -> Clusters:
        """Return the observations of each request, in planned order; a failure is infinite."""
        in_order = load.take(np.argsort(load.ints("planned_ns"), kind="stable"))
        if self.of_gaps is not None:
            values_s, owners = self.of_gaps(in_order, window)
            return Clusters(values_s, np.bincount(owners, minlength=len(in_order)))
        assert self.of_request is not None
        inside = in_order.planned_inside(window)
        inside = inside.take(~inside.is_cancelled)
        values_s = np.where(inside.has_failed, math.inf, self.of_request(inside))
        return Clusters(known(values_s), (~np.isnan(values_s)).astype(np.int64))

    def metrics(self) -> list[TrialMetric]:
        """One metric for each percentile."""
        return [
            TrialMetric(
                name=f"{self.key}_{label}_s",
                title=f"{self.title} {label}",
                unit=Unit.SECONDS,
                better=Better.LOWER,
                definition=f"{label} of {self.definition}",
                observation=self.observation,
                roles=frozenset((Role.NEEDS_CAPACITY, *self.roles, *(self.median_roles if label == "p50" else ()))),
                latency=self.key,
                in_full=f"{self.in_full} {label}" if self.in_full else "",
                needs=Needs.PLANNED if self.is_of_requests else Needs.LOAD,
                of=self._percentile(q),
                count=lambda data: 0 if self._absent(data) else data.once(self.observe).count,
            )
            for label, q in QUANTILES
        ]

    def _percentile(self, q: float) -> Callable[[TrialData], Value]:
        def of(data: TrialData) -> Value:
            if (why := self._absent(data)) is not None:
                return absent(why)
            seen = data.once(self.observe)
            return percentile(seen.values_s, q, seen.failures, answers=seen.answers)

        return of

    def _absent(self, data: TrialData) -> str | None:
        return self.why_absent(data) if self.why_absent else None


def known(values: Floats) -> Floats:
    """The values that are not NaN."""
    return values[~np.isnan(values)]
