"""TTFT against prompt length, at each level."""

from collections.abc import Sequence

import msgspec
import numpy as np
from markupsafe import Markup

from bakeoff.results.metrics.requests import prompt_length
from bakeoff.results.records import RequestRecord
from bakeoff.results.report.charts.scatter import Axes, Cloud, middles, scatter, spread
from bakeoff.results.report.verdict import primary_level
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.levels import Level, engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.text.format import listed
from bakeoff.results.units import NS_PER_S

BINS, REQUESTS_PER_BIN = 8, 10
"""Maximum number of length bins, and requests that each should hold."""
_CACHED = 0.5
"""Share of a prompt from the prefix cache from which on it is drawn as a ring."""
_RINGS = "Rings are requests of whose prompt at least half came from the prefix cache."


class LengthPanel(msgspec.Struct, frozen=True):
    """One level; ``note`` says which prompts came from the cache, and which engines do not report prompt lengths."""

    key: str
    title: str
    primary: bool
    svg: Markup
    note: str


def length_panels(run: Run) -> list[LengthPanel]:
    """One panel per level."""
    levels = levels_of(run)
    return [_panel(run, level, f"level{i}", primary_level(levels)) for i, level in enumerate(levels)]


def _panel(run: Run, level: Level, key: str, primary: Level | None) -> LengthPanel:
    clouds = [_cloud(run, cell) for cell in level.cells]
    lengths = [length for cloud in clouds for length, _ in (*cloud.dots, *cloud.rings)]
    svg = Markup("")
    if lengths:
        title = f"TTFT against the length of the prompt at {level.title}"
        svg = scatter(Axes(title, spread(lengths, "prompt tokens"), "↑ TTFT", "requests"), clouds)
    planned = [cell.engine for cell in level.cells if _as_planned(run, cell)]
    notes = [_RINGS] if any(cloud.rings for cloud in clouds) else []
    if planned:
        notes.append(f"Lengths as planned, since the engine did not say: {listed(planned)}.")
    return LengthPanel(key, level.title, level is primary, svg, " ".join(notes))


def _cloud(run: Run, cell: Cell) -> Cloud:
    dots: list[tuple[float, float]] = []
    rings: list[tuple[float, float]] = []
    for request in _answers(run, cell):
        if request.chunk_ns and (length := prompt_length(request)) is not None:
            is_cached = (request.cached_tokens or 0) >= _CACHED * length > 0
            ttft_s = (request.chunk_ns[0] - request.planned_ns) / NS_PER_S
            (rings if is_cached else dots).append((float(length), ttft_s))
    x, y = [length for length, _ in (*dots, *rings)], [ttft_s for _, ttft_s in (*dots, *rings)]
    return Cloud(cell.engine, engines_of(run).index(cell.engine), dots, middles(x, y, _edges(x), 1), rings)


def _edges(x: Sequence[float]) -> list[float]:
    """Edges of bins with about equally many requests; one bin if all prompts have one length."""
    if not x:
        return []
    bins = max(1, min(BINS, len(x) // REQUESTS_PER_BIN))
    edges = np.unique(np.quantile(x, np.linspace(0, 1, bins + 1))).tolist()
    return [*(edges[:-1] or edges), edges[-1] + 1.0]


def _answers(run: Run, cell: Cell) -> list[RequestRecord]:
    return [request for trial in run.valid_trials_of(cell) for request in trial.answered]


def _as_planned(run: Run, cell: Cell) -> bool:
    return any(r.prompt_tokens is None and r.requested_input_tokens is not None for r in _answers(run, cell))
