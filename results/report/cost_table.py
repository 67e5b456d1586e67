"""Costs as a table."""

from collections.abc import Callable, Sequence

import msgspec
from rich.console import Console

from bakeoff.results.metric import Unit
from bakeoff.results.run.cost import CellCost, Figure
from bakeoff.results.show.table import Cell, Column, Table, names
from bakeoff.results.show.terminal import print_table
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text.format import ABSENT, bounds_text, money, money_like, scale_for

_TITLES = {
    Figure.HOUR: "per hour",
    Figure.OUTPUT: "1M out",
    Figure.TOKENS: "1M in+out",
    Figure.REQUESTS: "1k requests",
    Figure.GOODPUT: "1k met SLO",
    Figure.SESSION: "session",
    Figure.API_HOUR: "API per hour",
    Figure.BREAK_EVEN: "break-even",
}
_EXPLAINED = (Figure.HOUR, Figure.OUTPUT, Figure.TOKENS, Figure.REQUESTS, Figure.API_HOUR, Figure.BREAK_EVEN)
"""Figures that every run can have; others are left out without a word where they do not apply."""
_NOTE = (
    "in the currency of the prices; centre and 95 % interval over the valid trials; 1M out has all costs, prompts "
    "included"
)
_BREAK_EVEN_NOTE = (
    "break-even: share of the time that the engine must be under this load for its hardware to pay beside the API; "
    "above 100 % the API is cheaper"
)


def print_costs(entries: Sequence[CellCost], console: Console) -> None:
    """Print a row for each engine and load."""
    print_table(cost_table(entries), console)


def cost_table(entries: Sequence[CellCost], engine_cell: Callable[[str], Cell] = Cell) -> Table:
    """A row for each engine and load, with a column for each figure that any of them has.

    A terminal has no room for all: left out are the API's bill, which is in the break-even, an hour's cost where it is
    the price itself, and requests beside those that met the SLO.

    Args:
        entries: from :func:`~bakeoff.results.run.cost.costs`.
        engine_cell: makes the cell of an engine.
    """
    shown = [figure for figure in Figure if any(figure in entry.figures for entry in entries)]
    return Table(
        "Costs",
        [*names("load", "engine"), *(Column(_TITLES[each], is_wide=_is_wide(each, entries)) for each in shown)],
        [
            [
                Cell(entry.load),
                msgspec.structs.replace(engine_cell(entry.engine), text=name_of(entry, entries)),
                *(_cell(figure, entry.figures.get(figure)) for figure in shown),
            ]
            for entry in entries
        ],
        lead="What the traffic costs at each load; hardware costs the same whether it works or not.",
        notes=[
            *([_NOTE] if shown else []),
            *([_BREAK_EVEN_NOTE] if Figure.BREAK_EVEN in shown else []),
            *_whys(entries),
        ],
    )


def _is_wide(figure: Figure, entries: Sequence[CellCost]) -> bool:
    if figure is Figure.HOUR:
        return not any(entry.prices.bill_tokens for entry in entries)
    if figure is Figure.REQUESTS:
        return any(Figure.GOODPUT in entry.figures for entry in entries)
    return figure is Figure.API_HOUR


def name_of(entry: CellCost, entries: Sequence[CellCost]) -> str:
    """The engine, with its workload and its run where these differ."""
    parts = [entry.engine]
    if len({each.workload for each in entries}) > 1:
        parts.append(entry.workload)
    if len({each.run for each in entries}) > 1:
        parts.append(entry.run)
    return " · ".join(parts)


def _cell(figure: Figure, interval: Interval | None) -> Cell:
    if interval is None:
        return Cell(ABSENT)
    if figure is Figure.BREAK_EVEN:
        scale = scale_for(Unit.SHARE, interval.centre)
        return Cell(scale.text(interval.centre), bounds_text(interval, scale))
    low, high = interval.pair or (interval.low, interval.high)
    if figure is Figure.HOUR and low == high:
        return Cell(money(interval.centre))
    centre = money_like(interval.centre, interval.centre)
    if low is None or high is None or low == high:
        return Cell(centre)
    bounds = [money_like(bound, interval.centre) for bound in (low, high)]
    return Cell(centre, " / ".join(bounds) if interval.pair else f"[{bounds[0]}, {bounds[1]}]")


def _whys(entries: Sequence[CellCost]) -> list[str]:
    """Why figures are absent, each reason once with its engines and loads."""
    found: dict[str, dict[str, None]] = {}
    for entry in entries:
        for figure in _EXPLAINED:
            if figure in entry.reasons:
                found.setdefault(entry.reasons[figure], {})[f"{name_of(entry, entries)}, {entry.load}"] = None
    return [
        reason if len(names) == len(entries) else f"{'; '.join(names)}: {reason}" for reason, names in found.items()
    ]
