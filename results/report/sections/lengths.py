"""TTFT against prompt length, at each level."""

import msgspec
import numpy as np
from markupsafe import Markup

from bakeoff.results.metrics.requests import prompt_lengths
from bakeoff.results.report.charts.scatter import Axes, Cloud, middles, scatter, spread
from bakeoff.results.report.verdict import primary_level
from bakeoff.results.requests import Floats, Requests
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.levels import Level, engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.text.format import listed

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
    lengths = np.concatenate([dots[:, 0] for cloud in clouds for dots in (cloud.dots, cloud.rings)])
    svg = Markup("")
    if len(lengths):
        title = f"TTFT against the length of the prompt at {level.title}"
        svg = scatter(Axes(title, spread(lengths, "prompt tokens"), "↑ TTFT", "requests"), clouds)
    planned = [cell.engine for cell in level.cells if _as_planned(run, cell)]
    notes = [_RINGS] if any(len(cloud.rings) for cloud in clouds) else []
    if planned:
        notes.append(f"Lengths as planned, since the engine did not say: {listed(planned)}.")
    return LengthPanel(key, level.title, level is primary, svg, " ".join(notes))


def _cloud(run: Run, cell: Cell) -> Cloud:
    observed = [np.empty((0, 3)), *(_observed(trial.answered) for trial in run.valid_trials_of(cell))]
    dots = np.concatenate(observed)
    x, y, is_cached = dots[:, 0], dots[:, 1], dots[:, 2] > 0
    shown = middles(x, y, _edges(x), 1)
    return Cloud(cell.engine, engines_of(run).index(cell.engine), dots[~is_cached, :2], shown, dots[is_cached, :2])


def _observed(answered: Requests) -> np.ndarray:
    """Length of the prompt, TTFT in seconds, and whether half of the prompt was cached, of each request with tokens."""
    lengths, cached = prompt_lengths(answered), np.nan_to_num(answered.numbers("cached_tokens"))
    ttft_s = answered.seconds_from("planned_ns", answered.chunks.first_ns)
    is_cached = (cached >= _CACHED * lengths) & (lengths > 0)
    known = ~np.isnan(lengths) & ~np.isnan(ttft_s)
    return np.column_stack((lengths, ttft_s, is_cached))[known]


def _edges(x: Floats) -> list[float]:
    """Edges of bins with about equally many requests; one bin if all prompts have one length."""
    if not len(x):
        return []
    bins = max(1, min(BINS, len(x) // REQUESTS_PER_BIN))
    edges = np.unique(np.quantile(x, np.linspace(0, 1, bins + 1))).tolist()
    return [*(edges[:-1] or edges), edges[-1] + 1.0]


def _as_planned(run: Run, cell: Cell) -> bool:
    """Whether the length of a prompt is known from the plan only."""
    return any(
        (np.isnan(trial.answered.numbers("prompt_tokens")) & ~np.isnan(prompt_lengths(trial.answered))).any()
        for trial in run.valid_trials_of(cell)
    )
