"""Texts and cells on claims, for the tables and the page."""

from collections.abc import Sequence

import msgspec

from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text.format import ABSENT, moment_text
from benchmarks.claims.interpreter.catalogue import Entry
from benchmarks.claims.interpreter.claim import Claim, Expected, Source
from benchmarks.claims.interpreter.records import Record
from benchmarks.claims.interpreter.verdict import CaseResult, Outcome, Verdict, deciding

LEGEND = (
    "± is the tolerance that we add to each bound, since claims are rounded. "
    "“Our reading” marks a range with a bound that the source does not give."
)
HEADINGS = ("claim", "verdict", "claimed", "measured", "95 % interval")
CASE_HEADINGS = ("case", "result", "measured", "95 % interval", "procedure", "machine, run")
_THOUSAND, _BILLION = 1e3, 1e9
_UNPLACED = {"arithmetic": "computed"}


class Row(msgspec.Struct, frozen=True):
    """One claim on one machine.

    Attributes:
        entry: the claim.
        record: its result; None if it was not tested.
    """

    entry: Entry
    record: Record | None

    @property
    def decisive(self) -> CaseResult | None:
        """The case that summarises the claim."""
        return deciding(self.record.cases) if self.record else None

    @property
    def cells(self) -> list[str]:
        """Cells below :data:`HEADINGS`."""
        case = self.decisive
        verdict = self.record.verdict.value if self.record else "not tested yet"
        centre, bounds = interval_cells(case)
        nearest = " (nearest case)" if case is not None and not case.as_claimed else ""
        return [self.entry.name, verdict, range_text(self.entry.claim.expected), f"{centre}{nearest}", bounds]

    @property
    def place(self) -> str:
        """Machine of the summarised measurement, and date of the test."""
        if self.record is None:
            return ABSENT
        case = self.decisive
        where = self.record.machine if case is None else case.machine or _UNPLACED.get(case.procedure, "")
        return f"{where or self.record.machine}; tested {moment_text(self.record.tested_utc)}"


def tallies(rows: Sequence[Row]) -> str:
    """``reproduced: 31; not reproduced: 4; …``."""
    counts = {kind: sum(row.record is not None and row.record.verdict is kind for row in rows) for kind in Verdict}
    parts = [f"{kind.value}: {count}" for kind, count in counts.items() if count]
    untested = sum(row.record is None for row in rows)
    return "; ".join([*parts, *([f"not tested yet: {untested}"] if untested else [])]) or "no claims"


def range_text(expected: Expected) -> str:
    """``2 – 4 (± 5 %)`` or ``≥ 2, our reading``: the range, its margin, and whether a bound is ours."""
    low, high = expected.at_least, expected.at_most
    if low is not None and high is not None:
        text = number(low) if low == high else f"{number(low)} – {number(high)}"
    else:
        text = f"≥ {number(low)}" if low is not None else f"≤ {number(high or 0.0)}"
    margin = f" (± {100 * expected.margin:.2g} %)" if expected.margin else ""
    return f"{text}{margin}, our reading" if expected.ours else f"{text}{margin}"


def interval_cells(case: CaseResult | None) -> tuple[str, str]:
    """Centre and bounds; one figure has no bounds."""
    interval = case.interval if case else None
    if interval is None:
        return ABSENT, ABSENT
    return number(interval.centre), _bounds(interval)


def _bounds(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return ABSENT
    return "exact" if interval.low == interval.high else f"{number(interval.low)} – {number(interval.high)}"


def number(value: float | None) -> str:
    """Three significant digits or whole numbers, from 10⁹ up in billions (G); None is infinite."""
    if value is None:
        return "∞"
    if abs(value) >= _BILLION:
        return f"{value / _BILLION:.3g} G"
    return f"{value:.3g}" if abs(value) < _THOUSAND else f"{value:,.0f}"


def case_cells(case: CaseResult, expected: Expected) -> list[str]:
    """Cells below :data:`CASE_HEADINGS`."""
    where = ", ".join(filter(None, [case.machine, *case.runs])) or ABSENT
    title = case.title if case.as_claimed else f"{case.title} (other conditions)"
    return [title, result_text(case, expected), *interval_cells(case), case.procedure, where]


def result_text(case: CaseResult, expected: Expected) -> str:
    """The quantity's position relative to the claimed range, in words."""
    match case.outcome:
        case Outcome.INSIDE:
            return "inside the range"
        case Outcome.OUTSIDE:
            is_above = case.interval is not None and case.interval.centre > expected.high
            return "above the range" if is_above else "below the range"
        case Outcome.UNCLEAR:
            return "unclear"
        case None:
            return "not tested"


def remarks(record: Record, expected: Expected) -> list[str]:
    """Open points of the verdict: missing things, conditions under which it holds, repeats needed, other figures."""
    lines: list[str] = []
    if record.verdict is Verdict.OTHER_CONDITIONS:
        inside = [case.title for case in record.cases if case.outcome is Outcome.INSIDE]
        lines.append(f"holds with: {'; '.join(inside)}")
    nearest = deciding(record.cases)
    if record.verdict is Verdict.NOT_TESTABLE and nearest is not None:
        lines.append(f"nearest case: {nearest.title}: {result_text(nearest, expected)}")
    lines += [f"missing for “{case.title}”: {case.missing}" for case in record.cases if case.missing]
    for case in record.cases:
        if case.retry:
            lines.append(f"some trials of “{case.title}” were INVALID; the next bakeoff lab claims run repeats them")
        if case.outcome is Outcome.UNCLEAR:
            more = f"{case.repeats} repeats of each side would decide" if case.repeats else "more repeats are needed"
            more = case.why_absent or more
            lines.append(f"cannot tell with “{case.title}”: {more}")
        lines += [f"{name}: {number(value)}" for name, value in case.details.items()]
    return list(dict.fromkeys(lines))


def sources_text(claim: Claim) -> str:
    """Sources in one line."""
    return "; ".join(map(_source_text, claim.source))


def _source_text(source: Source) -> str:
    parts = [source.author, source.title, source.kind, str(source.year) if source.year else None]
    return ", ".join(part for part in parts if part)
