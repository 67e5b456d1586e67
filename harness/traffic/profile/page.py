"""A workload profile as one offline page (:mod:`bakeoff.results.report.offline`) in the report's style."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from markupsafe import Markup

from bakeoff.harness.traffic.profile.charts import arrival_charts, hit_chart, length_charts, session_charts
from bakeoff.harness.traffic.profile.figures import (
    LENGTH_COLUMNS,
    Line,
    anchor_texts,
    anchors_text,
    arrival_lines,
    curve_notes,
    extra_lines,
    length_rows,
    prefix_lines,
    sample_text,
    session_lines,
    summary,
)
from bakeoff.harness.traffic.profile.selection import ShownProfile
from bakeoff.harness.version import version
from bakeoff.results.files.atomic import write_atomic
from bakeoff.results.report.offline import SHELL, asset, rendered

_PACKAGE = "bakeoff.harness.traffic.profile"
_MARKS = {True: ("✓", "met"), False: ("✗", "missed"), None: ("–", "not checked")}


class AnchorRow(msgspec.Struct, frozen=True):
    """One row of the table of anchors; ``state`` is ``mark`` in words."""

    metric: str
    value: str
    expected: str
    mark: str
    state: str
    source: str


class Page(msgspec.Struct, frozen=True):
    """Values for the template besides the profile itself."""

    name: str
    profile: ShownProfile
    summary: str
    facts: Sequence[tuple[str, str]]
    arrivals: Sequence[Markup]
    arrival_lines: Sequence[Line]
    lengths: Sequence[Markup]
    length_columns: Sequence[str]
    length_rows: Sequence[tuple[str, list[str]]]
    sessions: Sequence[Markup]
    session_lines: Sequence[Line]
    hits: Markup
    prefix_lines: Sequence[Line]
    prefix_notes: Sequence[str]
    extra_lines: Sequence[Line]
    anchors: Sequence[AnchorRow]
    anchors_text: str
    command: str
    version: str


def render_page(profile: ShownProfile) -> str:
    """The page as HTML."""
    style = asset("page.css") + asset("profile.css", _PACKAGE)
    packages = [_PACKAGE, SHELL]
    return rendered("profile.html", _page(profile), packages=packages, style=style, script=asset("theme.js"))


def write_page(profile: ShownProfile, path: Path) -> None:
    """Write the page, whole or not at all.

    Raises:
        NotWritable: the folder is missing, read-only or full.
    """
    write_atomic(path, render_page(profile).encode("utf-8", errors="replace"))


def _page(profile: ShownProfile) -> Page:
    return Page(
        name=profile.name,
        profile=profile,
        summary=summary(profile),
        facts=list(_facts(profile)),
        arrivals=arrival_charts(profile),
        arrival_lines=list(arrival_lines(profile)),
        lengths=length_charts(profile),
        length_columns=LENGTH_COLUMNS,
        length_rows=length_rows(profile.figures),
        sessions=session_charts(profile),
        session_lines=list(session_lines(profile)),
        hits=hit_chart(profile),
        prefix_lines=list(prefix_lines(profile)),
        prefix_notes=curve_notes(profile),
        extra_lines=extra_lines(profile),
        anchors=[
            AnchorRow(anchor.metric, *anchor_texts(anchor, anchor.value), *_MARKS[anchor.met], anchor.source)
            for anchor in profile.anchors
        ],
        anchors_text=anchors_text(profile),
        command=profile.command,
        version=version(),
    )


def _facts(profile: ShownProfile) -> Iterator[tuple[str, str]]:
    yield "sample", sample_text(profile)
    if profile.option_texts:
        yield "options", ", ".join(profile.option_texts)
    if profile.tokenizer:
        yield "tokenizer", profile.tokenizer
    if profile.anchors:
        yield "anchors", anchors_text(profile)
