"""Costs as a table."""

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from bakeoff.results.metric import Unit
from bakeoff.results.report.terminal_table import terminal_table
from bakeoff.results.run.cost import CellCost, Figure
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text.format import ABSENT, bounds_text, money, money_like, plain, scale_for

TITLES = {
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
CAPTION = (
    "in the currency of the prices; centre and 95 % interval over the valid trials; 1M out has all costs, prompts "
    "included"
)
_ANY_WIDTH = 10_000
NARROW_CAPTION = (
    "in the currency of the prices; centre over the valid trials, intervals in --json and wider terminals; 1M out has "
    "all costs, prompts included"
)
BREAK_EVEN_CAPTION = (
    "break-even: share of the time that the engine must be under this load for its hardware to pay beside the API; "
    "above 100 % the API is cheaper"
)


def print_costs(entries: Sequence[CellCost], console: Console) -> None:
    """Print a row for each engine and load, with a column for each figure that any of them has.

    A terminal has no room for all: left out are the API's bill, which is in the break-even, an hour's cost where it is
    the price itself, and requests beside those that met the SLO. A narrow one shows no intervals.
    """
    if shown := [figure for figure in shown_figures(entries) if not _is_left_out(figure, entries)]:
        table = _table(entries, shown, has_bounds=True)
        needed = Measurement.get(console, console.options.update_width(_ANY_WIDTH), table).maximum
        console.print(table if needed <= console.width else _table(entries, shown, has_bounds=False))
    for why in whys(entries):
        console.print(Text(plain(why), "dim"))


def _is_left_out(figure: Figure, entries: Sequence[CellCost]) -> bool:
    if figure is Figure.HOUR:
        return not any(entry.prices.bill_tokens for entry in entries)
    if figure is Figure.REQUESTS:
        return any(Figure.GOODPUT in entry.figures for entry in entries)
    return figure is Figure.API_HOUR


def _table(entries: Sequence[CellCost], shown: Sequence[Figure], *, has_bounds: bool) -> Table:
    table = terminal_table("engine", "load")
    for figure in shown:
        table.add_column(TITLES[figure], justify="right", no_wrap=True)
    caption = CAPTION if has_bounds else NARROW_CAPTION
    table.caption = f"{caption}; {BREAK_EVEN_CAPTION}" if Figure.BREAK_EVEN in shown else caption
    table.caption_justify = "left"
    for entry in entries:
        texts = [cost_text(figure, entry.figures.get(figure)) for figure in shown]
        cells = [Text(text if has_bounds else text.split("\n")[0]) for text in texts]
        table.add_row(Text(plain(name_of(entry, entries))), Text(plain(entry.load)), *cells)
    return table


def shown_figures(entries: Sequence[CellCost]) -> list[Figure]:
    """The figures that any entry has, in their order."""
    return [figure for figure in Figure if any(figure in entry.figures for entry in entries)]


def name_of(entry: CellCost, entries: Sequence[CellCost]) -> str:
    """The engine, with its workload and its run where these differ."""
    parts = [entry.engine]
    if len({each.workload for each in entries}) > 1:
        parts.append(entry.workload)
    if len({each.run for each in entries}) > 1:
        parts.append(entry.run)
    return " · ".join(parts)


def cost_text(figure: Figure, interval: Interval | None) -> str:
    """``0.356``, and its bounds in a line of their own; a share as ``31.2 %``."""
    if interval is None:
        return ABSENT
    if figure is Figure.BREAK_EVEN:
        scale = scale_for(Unit.SHARE, interval.centre)
        return f"{scale.text(interval.centre)}\n{bounds_text(interval, scale)}".rstrip()
    low, high = interval.pair or (interval.low, interval.high)
    if figure is Figure.HOUR and low == high:
        return money(interval.centre)
    centre = money_like(interval.centre, interval.centre)
    if low is None or high is None or low == high:
        return centre
    bounds = [money_like(bound, interval.centre) for bound in (low, high)]
    return f"{centre}\n{' / '.join(bounds) if interval.pair else f'[{bounds[0]}, {bounds[1]}]'}"


def whys(entries: Sequence[CellCost]) -> list[str]:
    """Why figures are absent, each reason once with its engines and loads."""
    found: dict[str, dict[str, None]] = {}
    for entry in entries:
        for figure in _EXPLAINED:
            if figure in entry.reasons:
                found.setdefault(entry.reasons[figure], {})[f"{name_of(entry, entries)}, {entry.load}"] = None
    return [
        reason if len(names) == len(entries) else f"{'; '.join(names)}: {reason}" for reason, names in found.items()
    ]
