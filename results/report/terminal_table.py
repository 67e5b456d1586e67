"""Style of terminal tables."""

from rich import box
from rich.table import Table


def terminal_table(*headings: str, gap: int = 1) -> Table:
    """Make a table with a rule below its head, readable in a pipe and without colour.

    Args:
        headings: headings of the first columns, which wrap long text; callers add the others.
        gap: characters between columns.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table
