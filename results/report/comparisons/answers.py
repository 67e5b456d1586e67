"""Token match of both sides' answers with the float32 reference, at each load."""

from bakeoff.results.compare.comparison import EngineComparison
from bakeoff.results.report.quality import MatchText, match_text
from bakeoff.results.show.table import Cell, Column, Kind, Table, Tone
from bakeoff.results.text.format import listed

PLACE = 20
_COLUMNS = [Column("load", Kind.NAME), Column("token match A"), Column("token match B"), Column("judgement", Kind.NAME)]


def table(compared: EngineComparison) -> Table:
    """One row for each load at which answers were compared; a side that differs by more than rounding is named."""
    pairs = {
        level: {name: match_text(side, "not compared") for name, side in zip("AB", sides, strict=True)}
        for level, sides in compared.answers.items()
        if any(sides)
    }
    rows = [[Cell(level), *map(_cell, matches.values()), _judgement(matches)] for level, matches in pairs.items()]
    return Table("Token match", _COLUMNS, rows, title="Token match with the reference")


def _cell(match: MatchText) -> Cell:
    return Cell(match.text, match.why or match.answers, tone=Tone.BAD if match.differs else None)


def _judgement(matches: dict[str, MatchText]) -> Cell:
    differing = [name for name, match in matches.items() if match.differs]
    if not differing:
        return Cell("")
    return Cell(f"▼ {listed(differing)} differ{'s' if len(differing) == 1 else ''}", tone=Tone.WORSE)
