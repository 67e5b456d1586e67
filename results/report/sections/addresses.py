"""Results by address, of engines that run at several."""

from collections.abc import Callable, Sequence

from bakeoff.results.metrics import Unit
from bakeoff.results.report.engine_cell import engine_cells
from bakeoff.results.report.group_tables import group_table
from bakeoff.results.report.section import Section
from bakeoff.results.run.address_pages import AddressPage, address_pages
from bakeoff.results.run.groups import by_address
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Cell, Table, figures, names
from bakeoff.results.text.format import ABSENT, percent_text, value_text

_METRICS = ("ttft_p50_s", "ttft_p90_s", "tpot_p50_s", "e2e_p50_s")
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


def address_tables(run: Run) -> list[Table]:
    """The requests by address, and what each address shows on its metrics page."""
    groups, pages = by_address(run), address_pages(run)
    lead = "Requests planned inside the windows of valid trials, by the address that the client sent them to."
    sent = [group_table(run, groups, _METRICS, heading="address", label="Results by address", lead=lead)]
    return [*(sent if groups else []), *([_page_table(run, pages)] if pages else [])]


def _page_table(run: Run, pages: Sequence[AddressPage]) -> Table:
    shown = [figure for figure in _FIGURES if any(getattr(page, figure[0]) is not None for page in pages)]
    engine_cell = engine_cells(run)
    return Table(
        "Metrics pages by address",
        [*names("load", "engine", "address", "role"), *figures([title for _, title, _ in shown])],
        [
            [
                *(Cell(page.level), engine_cell(page.engine), Cell(page.address), Cell(page.role)),
                *(Cell(ABSENT if (value := getattr(page, name)) is None else write(value)) for name, _, write in shown),
            ]
            for page in pages
        ],
        lead="What each address shows on its metrics page, between the beginning of the load and its last answer in "
        "valid trials; requests running and waiting are means over the windows.",
    )


SECTIONS = (
    Section(
        id="addresses",
        title="Addresses",
        shows="latencies, failures, prefix hits and tokens of each address, and what its metrics page shows, if an "
        "engine has several",
        place=16,
        tables=address_tables,
    ),
)
