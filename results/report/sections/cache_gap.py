"""Why the prefix cache hits less than the load allows."""

from collections.abc import Sequence

from bakeoff.results.records import CacheCause, CacheGap
from bakeoff.results.report.engine_cell import engine_cells
from bakeoff.results.report.section import Section
from bakeoff.results.run.cache import CellGap, cache_gaps_of, largest_cause
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Cell, Table, Tone, figures, names
from bakeoff.results.text.cache import CAUSES, cache_text, points_text
from bakeoff.results.text.format import ABSENT, percent_text


def _tables(run: Run) -> Sequence[Table]:
    found = cache_gaps_of(run)
    if not found:
        return []
    causes = [cause for cause in CacheCause if any(cause in each.gaps.whole.parts for each in found)]
    engine_cell = engine_cells(run)

    def row(each: CellGap, gap: CacheGap) -> list[Cell]:
        largest = largest_cause(gap)
        parts = [(points_text(gap.parts.get(cause)), Tone.BAD if cause is largest else None) for cause in causes]
        return [
            *(Cell(each.level), engine_cell(each.engine), Cell(gap.name or "all requests")),
            Cell(ABSENT if gap.observed is None else percent_text(gap.observed)),
            Cell(percent_text(gap.ideal)),
            *(Cell(text, tone=tone) for text, tone in parts),
            Cell(points_text(gap.unexplained)),
        ]

    caches = "; ".join(dict.fromkeys(f"{each.engine}: {cache_text(each.gaps)}" for each in found))
    return [
        Table(
            "Why prefix hits were lost",
            [
                *names("load", "engine", "requests of"),
                *figures(["hit", "could hit", *(CAUSES[cause] for cause in causes), "unexplained"]),
            ],
            [row(each, gap) for each in found for gap in (each.gaps.whole, *each.gaps.groups)],
            lead="The share of the prompt tokens that the engine found in its prefix cache, the share that an "
            "unlimited cache of whole prompts could have found, and the points between them by cause. Each part is the "
            "rise in a simulation of the engine’s cache when its cause is removed, from left to right; what the "
            "simulation finds beyond the engine’s count is unexplained.",
            notes=[f"Simulated caches: {caches}."],
        )
    ]


SECTIONS = (
    Section(
        id="cache_gap",
        title="Prefix cache: what was lost",
        shows="the share of prompt tokens that hit, the share that could, and what each cause takes from it",
        place=56,
        folded=True,
        tables=_tables,
    ),
)
