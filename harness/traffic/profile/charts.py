"""The charts on a workload profile's page."""

from collections.abc import Sequence

from markupsafe import Markup

from bakeoff.harness.traffic.profile.figures import figure_text
from bakeoff.results.metrics import Unit
from bakeoff.results.report.charts.axes import tick_text
from bakeoff.results.report.charts.columns import Column, columns
from bakeoff.results.report.charts.curve import Point, curve
from bakeoff.results.report.charts.scales import Axis, Scale
from bakeoff.results.text.format import duration_text, percent_text, short_text, value_text
from bakeoff.workloads.dispersion import ArrivalCounts
from bakeoff.workloads.histogram import Bin, Histogram
from bakeoff.workloads.profile import WorkloadProfile

_FEWEST_BINS = 20
"""Arrival charts with this many bins leave out the last one, which may be incomplete."""
_TIME_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def arrival_charts(profile: WorkloadProfile) -> list[Markup]:
    """All session starts, and a closer view of the first ones; empty without arrivals."""
    arrivals, opening = profile.arrivals, profile.opening
    if not arrivals.counts:
        return []
    charts = [_over_time("whole sample", arrivals)]
    if len(opening.counts) > 1 and sum(opening.counts) < sum(arrivals.counts):
        length = duration_text(len(_complete(opening.counts)) * opening.bin_s)
        charts.append(_over_time(f"the first {length}", opening))
    return charts


def length_charts(profile: WorkloadProfile) -> list[Markup]:
    """Distributions of prompt and answer tokens."""
    figures = profile.figures
    return [
        _distribution(title, ("requests", "tokens"), histogram, _length_marks(figures, kind), position)
        for position, (title, histogram, kind) in enumerate(
            (("prompts", profile.input_tokens, "input"), ("answers", profile.output_tokens, "output"))
        )
    ]


def session_charts(profile: WorkloadProfile) -> list[Markup]:
    """Distributions of requests per session and of pauses; empty if every session has one request."""
    turns, pauses = profile.turns, profile.think_s
    if turns.max < 2:
        return []
    pause_marks = [(pauses.p50, f"p50 {duration_text(pauses.p50)}")] if pauses.p50 > 0 else []
    return [
        _distribution("session lengths", ("sessions", "requests"), turns, [(turns.p50, f"p50 {turns.p50:g}")], 2),
        _distribution("pauses", ("pauses", "seconds"), pauses, pause_marks, 2),
    ]


def hit_chart(profile: WorkloadProfile) -> Markup:
    """Hit rate against cache size, below the bound; empty without hits."""
    points = profile.prefix_cache.points
    if not points:
        return Markup("")
    bound = profile.figures["prefix_bound"]
    drawn = [
        Point(size, share, f"{size:,} tokens: {value_text(Unit.SHARE, share)}")
        for size, share in ((point.capacity_tokens, point.hit_share) for point in points)
    ]
    description = "; ".join(f"{short_text(point.x)} tokens {percent_text(point.share)}" for point in drawn) + "."
    low, high = points[0].capacity_tokens / 1.1, points[-1].capacity_tokens * 1.1
    scale = Scale(low, high, _ticks(low, high, logarithmic=True), "cache size in tokens, logarithmic", log=True)
    limit = (bound, f"bound {figure_text('prefix_bound', bound)}")
    return curve("hits", description, drawn, scale, "↑ share of prompt tokens", limit=limit)


def _over_time(title: str, arrivals: ArrivalCounts) -> Markup:
    """Session starts per second over time, with their mean."""
    counts, bin_s = _complete(arrivals.counts), arrivals.bin_s
    length_s = len(counts) * bin_s
    mean, highest = sum(counts) / length_s, max(counts) / bin_s
    drawn = [
        Column(
            i * bin_s, (i + 1) * bin_s, count / bin_s, f"{duration_text(i * bin_s)}: {count:,} sessions in {bin_s} s"
        )
        for i, count in enumerate(counts)
    ]
    description = f"{sum(counts):,} sessions in bins of {bin_s} s; at most {highest:.3g} /s, mean {mean:.3g} /s."
    title = f"{title}, mean {value_text(Unit.PER_SECOND, mean)}"
    return columns(title, description, drawn, _time_scale(length_s), "↑ sessions per second", level=mean)


def _time_scale(length_s: float) -> Scale:
    """Time axis in the largest unit of which ``length_s`` holds three."""
    unit_s, name = next((unit for unit in _TIME_UNITS if length_s >= 3 * unit[0]), _TIME_UNITS[-1])
    axis = Axis(0.0, length_s / unit_s, 0, 1)
    ticks = [(value * unit_s, f"{tick_text(Unit.COUNT, value, axis)} {name}") for value in axis.ticks(6)]
    return Scale(0.0, length_s, ticks, "since the load began")


def _distribution(
    title: str, units: tuple[str, str], histogram: Histogram, marks: Sequence[tuple[float, str]], position: int
) -> Markup:
    """Columns of a histogram, coloured by ``position``; empty if all values are alike.

    ``units`` are what the histogram counts and the unit of its values.
    """
    bins, (counted, unit) = histogram.bins, units
    if len(bins) < 2:
        return Markup("")
    drawn = [
        Column(
            bin_.low, bin_.high, height, f"{_range_text(bin_, unit)}: {bin_.count:,} of {histogram.total:,} {counted}"
        )
        for bin_, height in zip(bins, histogram.heights, strict=True)
    ]
    description = f"{histogram.total:,} {counted}; {'; '.join(name for _, name in marks)}."
    low, high = bins[0].low, bins[-1].high
    ticks = _ticks(low, high, logarithmic=histogram.logarithmic)
    kind = "logarithmic" if histogram.logarithmic else "linear"
    scale = Scale(low, high, ticks, f"{unit}, {kind}", histogram.logarithmic)
    per = "per doubling" if histogram.logarithmic else f"per {bins[0].high - bins[0].low:,.3g} {unit}"
    return columns(title, description, drawn, scale, f"↑ % of {counted} {per}", marks=marks, position=position)


def _range_text(bin_: Bin, unit: str) -> str:
    if unit == "seconds":
        return f"{duration_text(bin_.low)} to {duration_text(bin_.high)}"
    if bin_.high - bin_.low == 1:
        return f"{bin_.low:,.0f} {unit}"
    return f"{bin_.low:,.0f} to {bin_.high - 1:,.0f} {unit}"


def _length_marks(figures: dict[str, float], kind: str) -> list[tuple[float, str]]:
    names = [(f"{kind}_{level}", level) for level in ("p50", "p99", "p90")]
    return [(figures[name], f"{level} {figure_text(name, figures[name])}") for name, level in names]


def _ticks(low: float, high: float, *, logarithmic: bool) -> list[tuple[float, str]]:
    return [(value, short_text(value)) for value in Axis(low, high, 0, 1, log=logarithmic).ticks(6)]


def _complete(counts: Sequence[int]) -> Sequence[int]:
    """Bins without the last one, if there are enough to spare it."""
    return counts[:-1] if len(counts) >= _FEWEST_BINS else counts
