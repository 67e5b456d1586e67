"""How a section of the report is declared."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bakeoff.results.run.run import Run


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A section of the report.

    Attributes:
        id: its anchor; with ``_`` for ``-`` also the name of its template.
        title: its heading, and its name in the table of contents.
        shows: what it shows, for the table in docs/report.md.
        place: position on the page: sections are ordered by it.
        folded: whether a reader opens it first.
        build: content of a run, by the names that the template uses; a section without content is left out.
        island: data for the page's script, from that content.
    """

    id: str
    title: str
    shows: str
    place: int
    build: Callable[[Run], Mapping[str, Any]]
    folded: bool = False
    island: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {}

    @property
    def template(self) -> str:
        """Name of the template."""
        return f"{self.id.replace('-', '_')}.html"
