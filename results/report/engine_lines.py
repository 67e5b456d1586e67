"""The engines' own view in a terminal: one line for an engine at a level, where something stands out."""

from collections.abc import Iterator

from results.metrics import Unit
from results.report.format import share_text, value_text
from results.report.levels import Level, levels_of
from results.run import Cell, Run

WORTH_SAYING = 0.1
"""Share of the mean E2E from which a part other than prefill and decode is named."""
_FULL = 0.95
_PLACES = (
    ("split_queue_s", "in the engine's queue"),
    ("split_other_s", "in the engine outside queue, prefill and decode"),
    ("split_outside_s", "between engine and client"),
)


def engine_lines(run: Run) -> list[str]:
    """``c=8, reference: 45 % of the mean E2E (328 of 723 ms) in the engine's queue; 12 preemptions``."""
    lines: list[str] = []
    for level in levels_of(run):
        for cell in level.cells:
            remarks = [*_time(cell), *_cache(cell)]
            lines += [f"{_place(level, cell)}: {'; '.join(remarks)}"] if remarks else []
    return lines


def _place(level: Level, cell: Cell) -> str:
    return f"{level.title}, {cell.engine}"


def _time(cell: Cell) -> Iterator[str]:
    whole = _centre(cell, "client_e2e_mean_s")
    for name, place in _PLACES:
        part = _centre(cell, name)
        if whole and part and part > WORTH_SAYING * whole:
            spent, total = value_text(Unit.SECONDS, part), value_text(Unit.SECONDS, whole)
            yield f"{share_text(part, whole)} of the mean E2E ({spent} of {total}) {place}"


def _cache(cell: Cell) -> Iterator[str]:
    usage, preemptions = _centre(cell, "server_kv_usage_share_peak"), _centre(cell, "server_preemptions")
    if usage and usage >= _FULL:
        yield f"KV cache up to {value_text(Unit.SHARE, usage)} full"
    if preemptions:
        yield f"{preemptions:,.3g} preemptions in a trial"


def _centre(cell: Cell, name: str) -> float | None:
    interval = cell.server.intervals.get(name)
    return interval.centre if interval else None
