"""What a metric is."""

from enum import StrEnum

import msgspec


class Unit(StrEnum):
    """Units of stored and computed values; :mod:`bakeoff.results.text.format` scales them for display."""

    SECONDS = "s"
    PER_SECOND = "/s"
    PER_HOUR = "/h"
    TOKENS_PER_SECOND = "tok/s"
    BYTES = "B"
    JOULES = "J"
    COUNT = ""
    SHARE = "share"


class Better(StrEnum):
    """Direction of improvement."""

    LOWER = "lower"
    HIGHER = "higher"


class Span(StrEnum):
    """Part of a trial over which a metric's observations are counted."""

    WINDOW = "window"
    TRIAL = "whole trial"


class Role(StrEnum):
    """What comparisons and tables need to know of a metric beyond its value."""

    HEADLINE = "headline"
    """A column of the summary table, and compared by default."""
    GUARDRAIL = "guardrail"
    """A gate judges it unless told otherwise: medians, work and failures. Tails and memory vary most, and each more
    guardrail costs power."""
    PER_TOKEN = "per token"  # noqa: S105 (a token of text)
    """It does not depend on the lengths of answers, or is part of the work itself, as failures are."""
    FOLLOWS_PACE = "follows pace"
    """It mostly follows from the time per token: from trial to trial all such metrics change by the same factor, so
    their variances are pooled. TTFT varies more."""
    COUNTS_AT_A_BOUND = "counts at a bound"
    """It counts requests on one side of a bound: the edge of a window, or an SLO. All repeats send the same plan, so
    the same request lies at the bound each time: a step of 1/N that repeats do not average out."""
    RATE_OF_ONE = "rate of one"
    """A rate that one request or session gets: it falls as the load rises, unlike the rates of a whole server."""
    OF_SLO = "of slo"
    """Present only if the experiment sets an SLO."""
    IF_PRESENT = "if present"
    """Left out of summaries and comparisons where no trial has it."""
    NEEDS_CAPACITY = "needs capacity"
    """While the engine falls behind, it only reflects the length of the load, and is absent."""


class Metric(msgspec.Struct, frozen=True):
    """What a metric is.

    Attributes:
        name: column in data frames, key in JSON; ends in its unit where it has one.
        title: column heading.
        unit: of the value.
        better: direction of improvement.
        definition: one sentence; the symbols are those of docs/definitions.md.
        observation: what one observation is.
        span: part of the trial over which observations are counted.
        roles: what comparisons and tables need to know of it.
        latency: the latency of which it is a percentile; empty for others.
        in_full: title in words, for a row of its own; empty where the title is in words.
    """

    name: str
    title: str
    unit: Unit
    better: Better
    definition: str
    observation: str = ""
    span: Span = Span.WINDOW
    roles: frozenset[Role] = frozenset()
    latency: str = ""
    in_full: str = ""

    @property
    def family(self) -> str:
        """Name that the percentiles of one latency share; every other metric is its own family."""
        return self.latency or self.name
