"""A workload profile as numbers in the terminal; the HTML page draws them."""

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bakeoff.harness.traffic.profile.figures import (
    Line,
    anchor_texts,
    anchors_text,
    arrival_lines,
    curve_notes,
    extra_lines,
    prefix_lines,
    sample_text,
    session_lines,
    summary,
)
from bakeoff.harness.traffic.profile.selection import ShownProfile
from bakeoff.results.show.table import text_table
from bakeoff.results.show.terminal import print_table
from bakeoff.results.text.format import duration_text, plain
from bakeoff.workloads.histogram import Histogram
from bakeoff.workloads.profile import CheckedAnchor

WIDTH = 100
"""Columns of output that does not go to a terminal."""


def print_profile(profile: ShownProfile, console: Console) -> None:
    """Print a profile, :data:`WIDTH` columns wide if ``console`` is not a terminal."""
    if not console.is_terminal:
        console.width = WIDTH
    console.print(_text(profile.name, "bold"))
    console.print(_text(summary(profile)))
    for note in (*profile.notes, f"sample: {sample_text(profile)}"):
        console.print(_text(note, "dim"))
    console.print()
    rows = ((title, f"{quantity.total:,}", *_levels(title, quantity)) for title, quantity in _quantities(profile))
    headings = ("quantity", "count", "mean", "p50", "p90", "p99", "max")
    print_table(text_table("Quantities", headings, rows), console)
    if profile.no_arrivals_reason:
        _print_lines(console, "Arrivals", [], f"– {profile.no_arrivals_reason}")
    else:
        _print_lines(console, "Arrivals", arrival_lines(profile))
    _print_lines(console, "Sessions", session_lines(profile))
    _print_lines(console, "Prefix cache", prefix_lines(profile), *curve_notes(profile))
    _print_lines(console, "Extra figures", extra_lines(profile))
    failed = (_anchor_line(anchor) for anchor in profile.anchors if not (anchor.met or profile.rescaled))
    _print_lines(console, "Anchors", failed, anchors_text(profile))


def _quantities(profile: ShownProfile) -> Iterator[tuple[str, Histogram]]:
    yield "prompt tokens", profile.input_tokens
    yield "answer tokens", profile.output_tokens
    if profile.turns.max > 1:
        yield "requests per session", profile.turns
        yield "pause", profile.think_s


def _levels(title: str, quantity: Histogram) -> list[str]:
    levels = (quantity.mean, quantity.p50, quantity.p90, quantity.p99, quantity.max)
    if title == "pause":
        return [duration_text(level) for level in levels]
    return [f"{level:,.0f}" if level >= 100 else f"{level:.3g}" for level in levels]


def _anchor_line(anchor: CheckedAnchor) -> Line:
    value, expected = anchor_texts(anchor, anchor.value)
    state = "not in the sample" if anchor.met is None else "missed"
    return Line(anchor.metric, value, f"{state}; expected {expected} ({anchor.source})")


def _print_lines(console: Console, title: str, lines: Iterable[Line], *notes: str) -> None:
    """Print a section, or nothing if it is empty."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for line in lines:
        table.add_row(_text(line.title), _text(line.text), _text(line.note))
    if not table.row_count and not any(notes):
        return
    console.print()
    console.print(_text(title, "bold"))
    if table.row_count:
        console.print(table)
    for note in filter(None, notes):
        console.print(_text(note, "dim"))


def _text(text: str, style: str = "") -> Text:
    return Text(plain(text), style=style)
