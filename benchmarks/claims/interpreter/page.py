"""Results of claims as one offline HTML page and as Markdown."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from bakeoff.results.files.atomic import write_atomic
from bakeoff.results.report.offline import SHELL, asset, rendered
from bakeoff.results.show.markdown import escaped, pipe_table
from benchmarks.claims.interpreter import cells
from benchmarks.claims.interpreter.catalogue import Entry
from benchmarks.claims.interpreter.records import latest, read_records
from benchmarks.claims.interpreter.verdict import Verdict

_PACKAGE = "benchmarks.claims.interpreter"
_TONES = {Verdict.REPRODUCED: "good", Verdict.NOT_REPRODUCED: "bad"}


class ClaimPart(msgspec.Struct, frozen=True):
    """One claim on one machine, on the page."""

    name: str
    anchor: str
    verdict: str
    tone: str
    sentence: str
    facts: list[tuple[str, str]]
    rows: list[list[str]]
    remarks: list[str]


class Page(msgspec.Struct, frozen=True):
    """Everything on the page, in order."""

    name: str
    answer: str
    legend: str
    headings: tuple[str, ...]
    overview: list[tuple[str, str, list[str]]]
    case_headings: tuple[str, ...]
    claims: list[ClaimPart]


def rows_of(entries: Sequence[Entry], folder: Path) -> list[cells.Row]:
    """A row for each claim and machine that tested it, and one for each claim that none tested.

    Records of a claim that has changed since do not count, since they had another range or another measurement.

    Raises:
        BadClaim: a record cannot be read.
    """
    rows: list[cells.Row] = []
    for entry in entries:
        current = [record for record in read_records(folder, entry.name) if record.digest == entry.digest]
        rows += [cells.Row(entry, record) for record in latest(current).values()] or [cells.Row(entry, None)]
    return rows


def write_page(rows: Sequence[cells.Row], path: Path) -> None:
    """Write the HTML page.

    Raises:
        NotWritable: the folder is missing, read-only or full.
    """
    text = rendered(
        "claims.html", _page(rows), packages=[_PACKAGE, SHELL], style=asset("page.css"), script=asset("theme.js")
    )
    write_atomic(path, text.encode())


def markdown(rows: Sequence[cells.Row]) -> str:
    """A table of all claims, with machine and date."""
    lines = ([*row.cells, row.place, "; ".join(_remarks(row))] for row in rows)
    titles = [*cells.HEADINGS, "machine; date", "remarks"]
    listed = pipe_table(titles, ([escaped(cell) for cell in line] for line in lines))
    return f"# Claims\n\n{cells.tallies(rows)}.\n\n{cells.LEGEND}\n\n{listed}"


def _page(rows: Sequence[cells.Row]) -> Page:
    parts = [_part(row, f"claim-{number}") for number, row in enumerate(rows)]
    return Page(
        name="Claims",
        answer=f"{cells.tallies(rows)}.".capitalize(),
        legend=cells.LEGEND,
        headings=(*cells.HEADINGS, "machine; date"),
        overview=[(part.anchor, part.tone, [*row.cells, row.place]) for part, row in zip(parts, rows, strict=True)],
        case_headings=cells.CASE_HEADINGS,
        claims=parts,
    )


def _part(row: cells.Row, anchor: str) -> ClaimPart:
    claim, record = row.entry.claim, row.record
    facts = [
        ("claimed", f"{cells.range_text(claim.expected)}: {claim.quantity}"),
        *([("our reading", claim.expected.ours)] if claim.expected.ours else []),
        ("conditions", claim.conditions),
        ("source", cells.sources_text(claim)),
        ("tested", row.place if record else f"not yet: bakeoff lab claims run --only {row.entry.name}"),
    ]
    return ClaimPart(
        name=row.entry.name,
        anchor=anchor,
        verdict=row.cells[1],
        tone=_TONES.get(record.verdict, "") if record else "",
        sentence=claim.sentence,
        facts=facts,
        rows=[cells.case_cells(case, claim.expected) for case in record.cases] if record else [],
        remarks=_remarks(row),
    )


def _remarks(row: cells.Row) -> list[str]:
    remarks = cells.remarks(row.record, row.entry.claim.expected) if row.record else []
    return [*([row.entry.claim.note] if row.entry.claim.note else []), *remarks]
