"""Tables of a comparison. Each module declares ``PLACE``, its place among them, and ``table``, which makes one."""

from typing import Any

from bakeoff.declared import declared
from bakeoff.results.compare.comparison import EngineComparison
from bakeoff.results.show.table import Table


def comparison_tables(compared: EngineComparison) -> list[Table]:
    """The tables of a comparison that have rows, for terminals, pages, Markdown and programs alike."""
    modules = sorted(declared(__name__, __path__, "table"), key=lambda module: module.PLACE)
    return [table for module in modules if (table := module.table(compared)).rows]


def comparison_entries(compared: EngineComparison) -> dict[str, list[dict[str, Any]]]:
    """The same tables for programs: the rows of each, by its label."""
    return {table.label: table.entries() for table in comparison_tables(compared)}
