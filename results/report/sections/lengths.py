"""TTFT against the length of the prompt, at each level."""

from collections.abc import Sequence

import msgspec
import numpy as np
from markupsafe import Markup

from results.levels import Level, engines_of, levels_of
from results.records import RequestRecord
from results.report.charts.scatter import Cloud, Frame, middles, scatter, spread
from results.report.verdict import primary_level
from results.run import Cell, Run
from results.text.format import listed
from results.units import NS_PER_S

BINS, ABOUT = 8, 10
"""Groups of prompts of about equal length, and the requests that each should have."""


class LengthPanel(msgspec.Struct, frozen=True):
    """One level; ``note`` says whose lengths are not the engine's own."""

    key: str
    title: str
    primary: bool
    svg: Markup
    note: str


def length_panels(run: Run) -> list[LengthPanel]:
    """One per level."""
    levels = levels_of(run)
    return [_panel(run, level, f"level{i}", primary_level(levels)) for i, level in enumerate(levels)]


def length_of(request: RequestRecord) -> int | None:
    """Prompt tokens as the engine counted them, else as the plan wanted them."""
    return request.prompt_tokens if request.prompt_tokens is not None else request.wanted_input_tokens


def _panel(run: Run, level: Level, key: str, primary: Level | None) -> LengthPanel:
    clouds = [_cloud(run, cell) for cell in level.cells]
    known = [at for cloud in clouds for at, _ in cloud.dots]
    svg = Markup("")
    if known:
        title = f"TTFT against the length of the prompt at {level.title}"
        svg = scatter(Frame(title, spread(known, "prompt tokens"), "↑ TTFT", "requests"), clouds)
    planned = [cell.engine for cell in level.cells if _as_planned(run, cell)]
    note = f"Lengths as planned, since the engine did not say: {listed(planned)}." if planned else ""
    return LengthPanel(key, level.title, level is primary, svg, note)


def _cloud(run: Run, cell: Cell) -> Cloud:
    seen = [
        (float(length), (request.chunk_ns[0] - request.planned_ns) / NS_PER_S)
        for request in _answers(run, cell)
        if request.chunk_ns and (length := length_of(request)) is not None
    ]
    x, y = [at for at, _ in seen], [value for _, value in seen]
    return Cloud(cell.engine, engines_of(run).index(cell.engine), seen, middles(x, y, _edges(x), 1))


def _edges(x: Sequence[float]) -> list[float]:
    """Edges between which about as many requests lie each; one interval where all prompts are equally long."""
    if not x:
        return []
    bins = max(1, min(BINS, len(x) // ABOUT))
    edges = np.unique(np.quantile(x, np.linspace(0, 1, bins + 1))).tolist()
    return [*(edges[:-1] or edges), edges[-1] + 1.0]


def _answers(run: Run, cell: Cell) -> list[RequestRecord]:
    return [request for trial in run.valid_trials_of(cell) for request in trial.answered]


def _as_planned(run: Run, cell: Cell) -> bool:
    return any(r.prompt_tokens is None and r.wanted_input_tokens is not None for r in _answers(run, cell))
