"""A portrait on the terminal: readable at 100 columns, in a pipe and without colour."""

import math
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

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
from harness.portraits.plots import GUTTER, column_plot, density, tick_line
from harness.portraits.scales import bins_scale, time_scale
from harness.portraits.spreads import Spread, length_spreads, session_spreads
from harness.portraits.subject import Subject
from results.metrics import Unit
from results.report.format import plain, short_text, value_text
from results.report.terminal_table import terminal_table
from workloads.portrait import Portrait

WIDTH = 100
"""Columns of a pipe."""
_NARROWEST, _FIGURES = 80, 42
_ROWS, _LOW_ROWS = 6, 4
_MET = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("–", "dim")}


def print_portrait(subject: Subject, console: Console) -> None:
    """Print a portrait, section by section.

    Args:
        subject: what to show.
        console: where to; :data:`WIDTH` columns wide where it is no terminal.
    """
    width = max(_NARROWEST, min(console.width, 120)) if console.is_terminal else WIDTH
    console.width = width
    portrait = subject.portrait
    console.print(_line(portrait.name, "bold"))
    console.print(_line(f"{in_a_sentence(portrait)}."))
    for note in portrait.notes:
        console.print(_line(note, "dim"))
    console.print(_line(f"sample: {sample_text(subject)}", "dim"))
    _print_arrivals(portrait, console)
    _print_lengths(portrait, console)
    _print_sessions(portrait, console)
    _print_prefixes(portrait, console)
    _print_others(portrait, console)
    _print_anchors(subject, console)


def _print_arrivals(portrait: Portrait, console: Console) -> None:
    _head(console, "Arrivals", "sessions per second")
    if why := why_no_arrivals(portrait):
        console.print(_line(f"– {why}"))
        return
    width = console.width - _FIGURES - GUTTER - 2
    views = zip(arrival_views(portrait), (_ROWS, _LOW_ROWS), strict=False)
    plots = [_over_time(view, width, rows) for view, rows in views]
    _beside(console, [line for plot in plots for line in plot], arrival_lines(portrait))


def _over_time(view: View, width: int, rows: int) -> list[str]:
    length_s = len(view.counts) * view.bin_s
    scale = time_scale(length_s, 5)
    edges = [view.bin_s * i for i in range(len(view.counts) + 1)]
    per_cell = density(edges, view.counts, scale, width) / (length_s / width)
    top = float(per_cell.max())
    plot = column_plot(per_cell, rows, top, value_text(Unit.COUNT, top))
    return [_over(view.title, width), *plot, tick_line(scale, width)]


def _print_lengths(portrait: Portrait, console: Console) -> None:
    _head(console, "Lengths", "tokens of each request")
    _print_pair(console, length_spreads(portrait))
    rows = length_rows(portrait)
    widths = (max(map(len, texts)) for texts in zip(*(texts for _, texts in rows), strict=True))
    if 6 + sum(width + 1 for width in widths) > console.width:
        rows = length_rows(portrait, short=True)
    table = _table(("", *LENGTH_COLUMNS), gap=0)
    for title, texts in rows:
        table.add_row(title, *texts)
    console.print(table)


def _print_sessions(portrait: Portrait, console: Console) -> None:
    spreads = session_spreads(portrait)
    if not spreads:
        return
    _head(console, "Sessions", "requests of each, and pauses in seconds from an answer to the next request")
    _print_pair(console, spreads)
    console.print(_lines(session_lines(portrait)))


def _print_pair(console: Console, spreads: Sequence[Spread]) -> None:
    """Two distributions side by side."""
    width = (console.width - 3) // 2 - GUTTER
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_row(*(_inked(_distribution(spread, width)) for spread in spreads))
    console.print(grid)


def _distribution(spread: Spread, width: int) -> list[str]:
    binned = spread.binned
    if not binned.bins:
        return [_over(f"{spread.title}: all are 0", width)]
    if len(binned.bins) == 1:
        return [_over(f"{spread.title}: all are {binned.bins[0].low:,.0f} {spread.unit}", width)]
    scale = bins_scale(binned, spread.unit)
    edges = [binned.bins[0].low, *(one.high for one in binned.bins)]
    mass = density(edges, [100 * one.count / binned.total for one in binned.bins], scale, width)
    span = math.log2(edges[-1] / edges[0]) if binned.log else len(binned.bins)
    heights = mass / (span / width)
    top = float(heights.max())
    head = _over(f"{spread.title}, % {spread.per}", width)
    return [head, *column_plot(heights, _ROWS, top, f"{top:.2g} %"), tick_line(scale, width)]


def _print_prefixes(portrait: Portrait, console: Console) -> None:
    _head(console, "Prefix cache", "share of prompt tokens that it hits, by its size in tokens")
    if portrait.curve and portrait.curve[-1].hit_share > 0:
        shares = [point.hit_share for point in portrait.curve]
        top = max(*shares, portrait.figures["prefix_bound"])
        cells = [share if cell < 3 else 0.0 for share in shares for cell in range(4)]
        plot = column_plot(cells, _ROWS, top, figure_text("prefix_bound", top))
        # Every other size: there is no room between four letters and the next four.
        sizes = "".join(f"{short_text(point.capacity_tokens):<8}" for point in portrait.curve[::2])
        hits = "".join(f"{100 * share:<4.0f}" if share >= 0.1 else f"{100 * share:<4.1f}" for share in shares)
        _beside(
            console,
            [*plot, f"{'tokens':>{GUTTER - 2}}  {sizes}", f"{'hit %':>{GUTTER - 2}}  {hits}"],
            prefix_lines(portrait),
        )
    else:
        console.print(_lines(prefix_lines(portrait)))
    for note in curve_notes(portrait):
        console.print(_line(note, "dim"))


def _print_others(portrait: Portrait, console: Console) -> None:
    if others := other_lines(portrait):
        _head(console, "More", "figures of this workload alone")
        console.print(_lines(others))


def _print_anchors(subject: Subject, console: Console) -> None:
    portrait = subject.portrait
    if not portrait.anchors:
        return
    _head(console, "Anchors", anchors_text(subject))
    table = _table(("metric", "value", "wanted", "", "source"), right=("value",))
    for anchor in portrait.anchors:
        mark, style = _MET[subject.met(anchor)]
        value, wanted = anchor_texts(anchor, portrait.figures.get(anchor.metric))
        table.add_row(_line(anchor.metric), value, wanted, Text(mark, style=style), _line(anchor.source, "dim"))
    console.print(table)


def _beside(console: Console, plot: Sequence[str], lines: Iterable[Line]) -> None:
    """A plot, and figures to the right of it, or below where there is no room."""
    if max(map(len, plot)) > console.width - _FIGURES - 2:
        console.print(_inked(plot))
        console.print(_lines(lines))
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, width=console.width - _FIGURES - 2)
    grid.add_column(width=_FIGURES)
    grid.add_row(_inked(plot), _lines(lines))
    console.print(grid)


def _over(text: str, width: int) -> str:
    """A title above a plot, further left where it is long."""
    return " " * max(0, min(GUTTER, GUTTER + width - len(text))) + text


def _inked(plot: Sequence[str]) -> Text:
    text = Text("\n".join(plot), no_wrap=True)
    text.highlight_regex("[▁-█]+", "cyan")
    return text


def _lines(lines: Iterable[Line]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for one in lines:
        table.add_row(_line(one.title), _line(one.text), _line(one.note))
    return table


def _table(columns: Sequence[str], right: Sequence[str] | None = None, gap: int = 1) -> Table:
    table = terminal_table(gap=gap)
    for name in columns:
        wanted = name in right if right is not None else bool(name)
        table.add_column(name, justify="right" if wanted else "left", no_wrap=name != "source")
    return table


def _head(console: Console, title: str, words: str) -> None:
    console.print()
    console.print(Text.assemble((title, "bold"), (f"  {plain(words)}", "dim")))


def _line(text: str, style: str = "") -> Text:
    return Text(plain(text), style=style)
