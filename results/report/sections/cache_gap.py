"""Why the prefix cache hits less than the load allows."""

from collections.abc import Mapping
from typing import Any

import msgspec

from bakeoff.results.records import CacheCause, CacheGap
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.report.section import Section
from bakeoff.results.run.cache import CellGap, cache_gaps_of, largest_cause
from bakeoff.results.run.levels import engines_of
from bakeoff.results.run.run import Run
from bakeoff.results.text.cache import CAUSES, cache_text, points_text
from bakeoff.results.text.format import ABSENT, percent_text


class GapRow(msgspec.Struct, frozen=True):
    """One row: all requests of an engine at a load, or a group of them.

    Attributes:
        engine: label.
        colour: class of the engine.
        level: title of the load.
        name: of the group; empty for all requests.
        observed: share of the prompt tokens that hit.
        ideal: share that could.
        parts: points of each cause, and whether it is the largest.
        unexplained: in points.
    """

    engine: str
    colour: str
    level: str
    name: str
    observed: str
    ideal: str
    parts: list[tuple[str, bool]]
    unexplained: str


def _build(run: Run) -> Mapping[str, Any]:
    found = cache_gaps_of(run)
    if not found:
        return {}
    causes = [cause for cause in CacheCause if any(cause in each.gaps.whole.parts for each in found)]
    engines = engines_of(run)

    def row(each: CellGap, gap: CacheGap) -> GapRow:
        largest = largest_cause(gap)
        return GapRow(
            each.engine,
            engine_class(engines.index(each.engine)),
            each.level,
            gap.name or "all requests",
            ABSENT if gap.observed is None else percent_text(gap.observed),
            percent_text(gap.ideal),
            [(points_text(gap.parts.get(cause)), cause is largest) for cause in causes],
            points_text(gap.unexplained),
        )

    return {
        "gap_causes": [CAUSES[cause] for cause in causes],
        "gap_caches": list(dict.fromkeys(f"{each.engine}: {cache_text(each.gaps)}" for each in found)),
        "gap_rows": [row(each, gap) for each in found for gap in (each.gaps.whole, *each.gaps.groups)],
    }


SECTIONS = (
    Section(
        id="cache_gap",
        title="Prefix cache: what was lost",
        shows="the share of prompt tokens that hit, the share that could, and what each cause takes from it",
        place=56,
        folded=True,
        build=_build,
    ),
)
