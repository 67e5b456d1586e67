"""Cache gaps of cells: those of their valid trials, pooled by prompt tokens."""

from collections.abc import Sequence

import msgspec

from bakeoff.results.records import CacheCause, CacheGap, CacheGaps
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.levels import levels_of
from bakeoff.results.run.run import Run

MIN_IDEAL = 0.05
"""Gaps of loads whose prompts share less than this are not shown."""


class CellGap(msgspec.Struct, frozen=True):
    """The cache gap of one engine at one load.

    Attributes:
        engine: label.
        level: title of the load.
        gaps: over its valid trials.
    """

    engine: str
    level: str
    gaps: CacheGaps


def cache_gaps_of(run: Run) -> list[CellGap]:
    """The cache gaps of a run, by load and engine; none where prompts share next to nothing."""
    pairs = ((level.title, cell, _pooled(run, cell)) for level in levels_of(run) for cell in level.cells)
    return [
        CellGap(cell.engine, level, gaps)
        for level, cell, gaps in pairs
        if gaps is not None and gaps.whole.ideal >= MIN_IDEAL
    ]


def largest_cause(gap: CacheGap) -> CacheCause | None:
    """The cause of the largest part; None if no part is above 0."""
    cause = max(gap.parts, key=lambda each: gap.parts[each], default=None)
    return cause if cause is not None and gap.parts[cause] > 0 else None


def _pooled(run: Run, cell: Cell) -> CacheGaps | None:
    found = [trial.record.cache_gaps for trial in run.valid_trials_of(cell) if trial.record.cache_gaps is not None]
    if not found:
        return None
    names = dict.fromkeys(gap.name for gaps in found for gap in gaps.groups)
    groups = {name: [gap for gaps in found for gap in gaps.groups if gap.name == name] for name in names}
    return msgspec.structs.replace(
        found[0],
        whole=_mean([gaps.whole for gaps in found]),
        groups=[_mean(gaps) for gaps in groups.values()],
    )


def _mean(gaps: Sequence[CacheGap]) -> CacheGap:
    """The mean of gaps, weighted by their prompt tokens."""
    tokens = sum(gap.prompt_tokens for gap in gaps)
    observed = [gap.observed for gap in gaps if gap.observed is not None]
    causes = [cause for cause in CacheCause if any(cause in gap.parts for gap in gaps)]
    return CacheGap(
        gaps[0].name,
        tokens,
        sum((gap.observed or 0.0) * gap.prompt_tokens for gap in gaps) / tokens if len(observed) == len(gaps) else None,
        sum(gap.ideal * gap.prompt_tokens for gap in gaps) / tokens,
        {cause: sum(gap.parts.get(cause, 0.0) * gap.prompt_tokens for gap in gaps) / tokens for cause in causes},
    )
