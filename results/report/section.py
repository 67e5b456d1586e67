"""How a section of the report is declared."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Table


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A section of the report.

    Attributes:
        id: its anchor; with ``_`` for ``-`` also the name of its template.
        title: its heading, and its name in the table of contents.
        shows: what it shows, for the table in docs/report.md.
        place: position on the page: sections are ordered by it.
        folded: whether a reader opens it first.
        tables: of a run, of a section that is nothing else.
        build: likewise its content by the names that its template uses. A section without content is left out.
        island: data for the page's script, from that content.
    """

    id: str
    title: str
    shows: str
    place: int
    tables: Callable[[Run], Sequence[Table]] | None = None
    build: Callable[[Run], Mapping[str, Any]] = lambda _: {}
    folded: bool = False
    island: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {}

    def content(self, run: Run) -> Mapping[str, Any]:
        """Content of a run for the template; empty for none."""
        if self.tables is None:
            return self.build(run)
        tables = self.tables(run)
        return {"tables": tables} if tables else {}

    @property
    def template(self) -> str:
        """Name of the template."""
        return "tables.html" if self.tables is not None else f"{self.id.replace('-', '_')}.html"
