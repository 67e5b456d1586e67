"""The main picture of a run as one SVG file, for a message or a document: both themes, no script, no network."""

import re
import textwrap
from collections.abc import Iterator

from markupsafe import Markup

from bakeoff.results.errors import NoEvidence
from bakeoff.results.report.charts.svg import label, num, tag
from bakeoff.results.report.offline import asset
from bakeoff.results.report.sections.curves import frontiers, panels
from bakeoff.results.report.verdict import verdict
from bakeoff.results.run.levels import levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.text.format import machine_text, moment_text

_MARGIN, _LINE, _CHARACTERS = 18.0, 20.0, 92
_STYLE = re.compile(r"(?s)^.*?(?=\*\{box-sizing)|/\* figures \*/.*?(?=/\* timelines \*/)")
"""The parts of the page's style that charts use: colours in both themes, and figures."""


def main_picture(run: Run) -> Markup:
    """The picture, with the verdict above it: throughput against speed over several loads, else the TTFTs of one.

    Raises:
        NoEvidence: no valid trial has an observation.
    """
    chart = next(_charts(run), None)
    if chart is None:
        raise NoEvidence(f"{run.path} has no valid trial with an observation to draw; bakeoff report lists why")
    width, height = _size(chart)
    manifest = run.manifest
    head = textwrap.wrap(verdict(run).sentence, _CHARACTERS)
    top = _MARGIN + _LINE * len(head) + _MARGIN
    foot = f"{manifest.name}: {machine_text(manifest)}, {moment_text(manifest.created_utc)}"
    whole_width, whole_height = width + 2 * _MARGIN, top + height + 2 * _MARGIN + _LINE
    style = "".join(_STYLE.findall(asset("page.css")))
    place = f'x="{num(_MARGIN)}" y="{num(top)}" width="{num(width)}" height="{num(height)}"'
    inner = str(chart).replace("<svg ", f"<svg {place} ", 1)
    return tag(
        "svg",
        tag("style", Markup(f"{style}.chart .chart{{width:auto;height:auto}}")),  # noqa: S704  (our own file)
        tag("rect", width=whole_width, height=whole_height, fill="var(--paper)"),
        *(label(_MARGIN, _MARGIN + _LINE * (number + 0.7), text, "heading") for number, text in enumerate(head)),
        Markup(inner),  # noqa: S704  (a chart)
        label(_MARGIN, whole_height - _MARGIN, foot, "tick"),
        xmlns="http://www.w3.org/2000/svg",
        class_="chart",
        width=whole_width,
        height=whole_height,
        viewBox=f"0 0 {num(whole_width)} {num(whole_height)}",
    )


def _charts(run: Run) -> Iterator[Markup]:
    """What could be the picture, best first."""
    if len({level.title for level in levels_of(run)}) > 1:
        yield from (each.svg for each in frontiers(run))
    yield from (chart for panel in panels(run) if panel.primary for chart in panel.charts)


def _size(chart: Markup) -> tuple[float, float]:
    """Width and height of a chart, which its view box has."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', chart)
    assert found is not None, "every chart has one"
    return float(found[1]), float(found[2])
