"""A portrait's charts for the page."""

from markupsafe import Markup

from harness.portraits.figures import View, figure_text
from harness.portraits.scales import bins_scale, capacity_scale, time_scale
from harness.portraits.spreads import Spread
from results.metrics import Unit
from results.report.charts.columns import Column, columns
from results.report.charts.curve import Point, curve
from results.report.format import duration_text, short_text, value_text
from workloads.portrait import Portrait


def over_time(view: View) -> Markup:
    """Arrivals per second over time, with their mean."""
    counts, bin_s = view.counts, view.bin_s
    length_s = len(counts) * bin_s
    mean, most = sum(counts) / length_s, max(counts) / bin_s
    drawn = [
        Column(
            i * bin_s, (i + 1) * bin_s, count / bin_s, f"{duration_text(i * bin_s)}: {count:,} sessions in {bin_s} s"
        )
        for i, count in enumerate(counts)
    ]
    words = f"{sum(counts):,} sessions in bins of {bin_s} s; at most {most:.3g} a second, {mean:.3g} on average."
    title = f"{view.title}, mean {value_text(Unit.PER_SECOND, mean)}"
    return columns(title, words, drawn, time_scale(length_s), "↑ sessions per second", level=mean)


def distribution(spread: Spread, position: int) -> Markup:
    """How lengths or pauses are spread; empty where all are alike."""
    binned = spread.binned
    if len(binned.bins) < 2:
        return Markup("")
    drawn = [
        Column(one.low, one.high, height, spread.hint(one))
        for one, height in zip(binned.bins, binned.heights, strict=True)
    ]
    words = f"{binned.total:,} {spread.counted}; {'; '.join(name for _, name in spread.marks)}."
    scale = bins_scale(binned, f"{spread.unit}, {'logarithmic' if binned.log else 'linear'}", 6)
    y_title = f"↑ % of {spread.counted} {spread.per}"
    return columns(spread.title, words, drawn, scale, y_title, marks=spread.marks, position=position)


def hits(portrait: Portrait) -> Markup:
    """Hits against the size of the cache, below the bound."""
    if not portrait.curve or portrait.curve[-1].hit_share <= 0:
        return Markup("")
    bound = portrait.figures["prefix_bound"]
    points = [
        Point(
            one.capacity_tokens,
            one.hit_share,
            f"{one.capacity_tokens:,} tokens: {value_text(Unit.SHARE, one.hit_share)}",
        )
        for one in portrait.curve
    ]
    words = "; ".join(f"{short_text(one.capacity_tokens)} tokens {one.hit_share:.0%}" for one in portrait.curve) + "."
    scale = capacity_scale([one.capacity_tokens for one in portrait.curve])
    limit = (bound, f"bound {figure_text('prefix_bound', bound)}")
    return curve("hits", words, points, scale, "↑ share of prompt tokens", limit=limit)
