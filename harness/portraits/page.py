"""A portrait as one offline page in the report's style; :mod:`results.report.offline` says what is guaranteed."""

from pathlib import Path

import msgspec
from markupsafe import Markup

from harness.portraits.figures import (
    LENGTH_COLUMNS,
    Line,
    View,
    anchor_texts,
    anchors_text,
    arrival_lines,
    arrival_views,
    curve_notes,
    figure_text,
    in_a_sentence,
    length_rows,
    other_lines,
    prefix_lines,
    sample_text,
    session_lines,
    why_no_arrivals,
)
from harness.portraits.scales import bins_scale, capacity_scale, time_scale
from harness.portraits.spreads import Spread, length_spreads, session_spreads
from harness.portraits.subject import Subject
from harness.version import version
from results.atomic import write_atomic
from results.metrics import Unit
from results.report.charts.columns import Column, columns
from results.report.charts.curve import Point, curve
from results.report.format import duration_text, short_text, value_text
from results.report.offline import SHELL, asset, rendered
from workloads.portrait import Portrait

_HERE = "harness.portraits"
_MARKS = {True: ("✓", "met"), False: ("✗", "missed"), None: ("–", "not judged")}


class AnchorRow(msgspec.Struct, frozen=True):
    """One line of the table of anchors; ``word`` says its mark in words."""

    metric: str
    value: str
    wanted: str
    mark: str
    word: str
    source: str


class Page(msgspec.Struct, frozen=True):
    """Everything on the page, in its order."""

    name: str
    sentence: str
    facts: list[tuple[str, str]]
    notes: list[str]
    arrivals: list[Markup]
    arrival_lines: list[Line]
    no_arrivals: str
    lengths: list[Markup]
    length_columns: list[str]
    length_rows: list[tuple[str, list[str]]]
    sessions: list[Markup]
    session_lines: list[Line]
    hits: Markup
    prefix_lines: list[Line]
    prefix_notes: list[str]
    others: list[Line]
    anchors: list[AnchorRow]
    anchors_text: str
    command: str
    version: str


def render_page(subject: Subject) -> str:
    """The page of a drawn workload."""
    style = asset("page.css") + asset("portrait.css", _HERE)
    packages = [_HERE, SHELL]
    return rendered("portrait.html", _page(subject), packages=packages, style=style, script=asset("theme.js"))


def write_page(subject: Subject, path: Path) -> None:
    """Write the page, whole or not at all.

    Raises:
        NotWritable: the folder is missing, read-only or full.
    """
    write_atomic(path, render_page(subject).encode("utf-8", errors="replace"))


def _page(subject: Subject) -> Page:
    portrait = subject.portrait
    sessions = session_spreads(portrait)
    return Page(
        name=portrait.name,
        sentence=f"{in_a_sentence(portrait)}.",
        facts=_facts(subject),
        notes=list(portrait.notes),
        arrivals=[_over_time(view) for view in arrival_views(portrait)],
        arrival_lines=list(arrival_lines(portrait)),
        no_arrivals=why_no_arrivals(portrait),
        lengths=[_distribution(spread, i) for i, spread in enumerate(length_spreads(portrait))],
        length_columns=list(LENGTH_COLUMNS),
        length_rows=length_rows(portrait),
        sessions=[_distribution(spread, 2) for spread in sessions],
        session_lines=list(session_lines(portrait)) if sessions else [],
        hits=_hits(portrait),
        prefix_lines=list(prefix_lines(portrait)),
        prefix_notes=curve_notes(portrait),
        others=other_lines(portrait),
        anchors=_anchors(subject),
        anchors_text=anchors_text(subject),
        command=subject.command,
        version=version(),
    )


def _facts(subject: Subject) -> list[tuple[str, str]]:
    facts = [("sample", sample_text(subject))]
    if subject.given:
        facts.append(("options", ", ".join(subject.given)))
    if subject.tokenizer:
        facts.append(("counted by", subject.tokenizer))
    if subject.portrait.anchors:
        facts.append(("anchors", anchors_text(subject)))
    return facts


def _anchors(subject: Subject) -> list[AnchorRow]:
    figures = subject.portrait.figures
    return [
        AnchorRow(
            anchor.metric,
            *anchor_texts(anchor, figures.get(anchor.metric)),
            *_MARKS[subject.met(anchor)],
            anchor.source,
        )
        for anchor in subject.portrait.anchors
    ]


def _over_time(view: View) -> Markup:
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


def _distribution(spread: Spread, position: int) -> Markup:
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


def _hits(portrait: Portrait) -> Markup:
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
