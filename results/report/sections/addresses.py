"""Results by address, of engines that run at several."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from bakeoff.results.metrics import Unit
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.report.group_rows import titles_of, with_figures
from bakeoff.results.report.section import Section
from bakeoff.results.run.address_pages import AddressPage, address_pages
from bakeoff.results.run.groups import by_address
from bakeoff.results.run.levels import engines_of
from bakeoff.results.run.run import Run
from bakeoff.results.text.format import ABSENT, percent_text, value_text

COLUMNS = ("ttft_p50_s", "ttft_p90_s", "tpot_p50_s", "e2e_p50_s")
"""Metrics of the requests that went to an address."""


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _level(value: float) -> str:
    return f"{value:.3g}"


_FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("requests", "requests", _count),
    ("prompt_tokens", "prompt tokens", _count),
    ("output_tokens", "output tokens", _count),
    ("hit_share", "prefix hits", percent_text),
    ("running", "running, mean", _level),
    ("waiting", "waiting, mean", _level),
    ("queue_s", "queue, mean", lambda value: value_text(Unit.SECONDS, value)),
)
"""Figures of a page: name, heading, and how they are written."""


class ShownPage(msgspec.Struct, frozen=True):
    """A row of the table of pages, with the engine's colour and the texts of its figures."""

    page: AddressPage
    colour: str
    figures: list[str]


def page_columns(pages: Sequence[AddressPage]) -> list[tuple[str, str, Callable[[float], str]]]:
    """The figures that any page has."""
    return [figure for figure in _FIGURES if any(getattr(page, figure[0]) is not None for page in pages)]


def page_figures(page: AddressPage, columns: Sequence[tuple[str, str, Callable[[float], str]]]) -> list[str]:
    """Texts of a page's figures."""
    return [ABSENT if (value := getattr(page, name)) is None else write(value) for name, _, write in columns]


def _build(run: Run) -> Mapping[str, Any]:
    groups, pages = by_address(run), address_pages(run)
    if not groups and not pages:
        return {}
    columns, engines = page_columns(pages), engines_of(run)
    return {
        "address_columns": titles_of(groups, COLUMNS),
        "address_rows": with_figures(run, groups, COLUMNS),
        "page_columns": [title for _, title, _ in columns],
        "page_rows": [
            ShownPage(page, engine_class(engines.index(page.engine)), page_figures(page, columns)) for page in pages
        ],
    }


SECTIONS = (
    Section(
        id="addresses",
        title="Addresses",
        shows="latencies, failures, prefix hits and tokens of each address, and what its metrics page shows, if an "
        "engine has several",
        place=16,
        build=_build,
    ),
)
