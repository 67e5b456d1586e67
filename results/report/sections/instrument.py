"""Measurement error of the client: its send lag, from the data of the run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bakeoff.results.metrics import Unit, latency
from bakeoff.results.metrics.declaration import known
from bakeoff.results.metrics.percentiles import percentile
from bakeoff.results.report.clients import error_of, uncalibrated_text
from bakeoff.results.report.engine_cell import engine_cells
from bakeoff.results.report.section import Section
from bakeoff.results.run.cells import Cell as MeasuredCell
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.levels import levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.show.footnotes import Footnotes
from bakeoff.results.show.table import Cell, Table, figures, names
from bakeoff.results.text.format import ABSENT, share_text, value_text


def _build(run: Run) -> Mapping[str, Any]:
    uncalibrated = uncalibrated_text(run)
    return {"table": _table(run, has_errors=not uncalibrated), "uncalibrated": uncalibrated}


def _table(run: Run, *, has_errors: bool) -> Table:
    """One row per level and engine: its send lag, pooled over valid trials, and the client's error there."""
    engine_cell, notes = engine_cells(run), Footnotes()
    titles = [
        "requests", "send lag p50", "share of TTFT p50", "send lag p99", "largest", "loop lag p99, worst trial",
        "error in TTFT p50", "error in chunk gap p99",
    ]  # fmt: skip
    rows = [
        [Cell(level.title), engine_cell(cell.engine), *map(Cell, _figures(run, cell, notes, has_errors=has_errors))]
        for level in levels_of(run)
        for cell in level.cells
    ]
    return Table("Client error", [*names("load", "engine"), *figures(titles)], rows, notes=notes.lines())


def _figures(run: Run, cell: MeasuredCell, notes: Footnotes, *, has_errors: bool) -> Iterator[str]:
    valid = run.valid_trials_of(cell)
    lags = known(np.concatenate([np.empty(0), *(latency.send_lag_s(trial.inside) for trial in valid)]))
    p50, p99 = percentile(lags, 0.5), percentile(lags, 0.99)
    ttft = cell.intervals.get("ttft_p50_s")
    ttft_error, gap_error = (error_of(cell, name) for name in ("ttft_p50_s", "chunk_gap_p99_s"))
    why = (ttft_error.why or gap_error.why) if has_errors else ""  # else the text above says it
    few = notes.mark("send lag p99", p99.reason) if p99.reason else ""
    yield f"{len(lags):,}"
    yield value_text(Unit.SECONDS, p50.value)
    yield share_text(p50.value, ttft.centre) if p50.value is not None and ttft is not None else ABSENT
    yield f"{value_text(Unit.SECONDS, p99.value)} {few}".rstrip()
    yield value_text(Unit.SECONDS, float(lags.max())) if len(lags) else ABSENT
    yield _loop_lag(valid)
    yield ttft_error.text
    yield f"{gap_error.text} {notes.mark('error', why) if why else ''}".rstrip()


def _loop_lag(trials: Sequence[Trial]) -> str:
    """Lag of the client's event loop: the largest p99 over trials."""
    lags = [
        value
        for trial in trials
        for record in trial.telemetry
        if record.source == "client_loop" and isinstance(value := record.values.get("loop_lag_p99_s"), int | float)
    ]
    return value_text(Unit.SECONDS, max(lags)) if lags else f"{ABSENT} (not sampled)"


SECTIONS = (
    Section(
        id="instrument",
        title="Client error",
        shows="how late the client was",
        place=130,
        folded=True,
        build=_build,
    ),
)
