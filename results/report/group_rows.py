"""Rows of tables whose rows are groups of requests."""

from collections.abc import Sequence

import msgspec

from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.run.groups import RequestGroup
from bakeoff.results.run.levels import engines_of
from bakeoff.results.run.run import Run
from bakeoff.results.text.format import ABSENT, percent_text, value_text

_FIRST = {"first_visible_p50_s": "ttft_p50_s"}


class ShownGroup(msgspec.Struct, frozen=True):
    """A row of a table, with the engine's colour and the texts of its figures."""

    group: RequestGroup
    colour: str
    prompt_tokens: str
    cached: str
    figures: list[str]


def known_columns(groups: Sequence[RequestGroup], columns: Sequence[str]) -> list[str]:
    """The metrics among ``columns`` that any group has, without times to the first visible token that are its TTFT."""
    return [
        name
        for name in columns
        if any(group.metrics[name].value is not None for group in groups)
        and not (name in _FIRST and all(group.metrics[name] == group.metrics[_FIRST[name]] for group in groups))
    ]


def titles_of(groups: Sequence[RequestGroup], columns: Sequence[str]) -> list[str]:
    """Headings of the metrics that any group has."""
    return [CATALOGUE[name].title for name in known_columns(groups, columns)]


def figures_of(group: RequestGroup, known: Sequence[str]) -> list[str]:
    """Texts of a group's metrics."""
    values = ((CATALOGUE[name].unit, group.metrics[name].value) for name in known)
    return [ABSENT if value is None else value_text(unit, value) for unit, value in values]


def cached_text(group: RequestGroup) -> str:
    """Share of its prompt tokens from the prefix cache."""
    return ABSENT if group.cached_share is None else percent_text(group.cached_share)


def with_figures(run: Run, groups: Sequence[RequestGroup], columns: Sequence[str]) -> list[ShownGroup]:
    """The rows of a table; each has the metrics that any of them has."""
    known, engines = known_columns(groups, columns), engines_of(run)
    return [
        ShownGroup(
            group,
            engine_class(engines.index(group.engine)),
            ABSENT if group.prompt_tokens is None else f"{group.prompt_tokens:,.0f}",
            cached_text(group),
            figures_of(group, known),
        )
        for group in groups
    ]
