"""Measurement error of the client: its send lag, from the data of the run."""

from collections.abc import Sequence

import msgspec
import numpy as np

from bakeoff.results.metrics import Unit, latency
from bakeoff.results.metrics.declaration import known
from bakeoff.results.metrics.percentiles import percentile
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.report.clients import error_of, uncalibrated_text
from bakeoff.results.report.section import Section
from bakeoff.results.requests import Floats
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.levels import engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.text.format import ABSENT, share_text, value_text


class LagRow(msgspec.Struct, frozen=True):
    """Send lag at one level of one engine, pooled over valid trials, and the client's error there.

    Fields ending in ``_why`` say why a value is absent.
    """

    engine: str
    colour: str
    level: str
    count: int
    p50: str
    p99: str
    p99_why: str
    largest: str
    loop_lag: str
    share_of_ttft: str
    ttft_error: str
    gap_error: str
    error_why: str


def lag_rows(run: Run) -> list[LagRow]:
    """One row per level and engine."""
    engines = engines_of(run)
    rows: list[LagRow] = []
    for level in levels_of(run):
        for cell in level.cells:
            valid = run.valid_trials_of(cell)
            lags = known(np.concatenate([np.empty(0), *(latency.send_lag_s(trial.inside) for trial in valid)]))
            ttft = cell.intervals.get("ttft_p50_s")
            colour = engine_class(engines.index(cell.engine))
            row = _row(cell.engine, colour, level.title, lags, ttft.centre if ttft else None)
            errors = [error_of(cell, name) for name in ("ttft_p50_s", "chunk_gap_p99_s")]
            rows.append(
                msgspec.structs.replace(
                    row,
                    loop_lag=_loop_lag(valid),
                    ttft_error=errors[0].text,
                    gap_error=errors[1].text,
                    error_why=errors[0].why or errors[1].why,
                )
            )
    return rows


def _row(engine: str, colour: str, level: str, lags: Floats, ttft_s: float | None) -> LagRow:
    p50, p99 = percentile(lags, 0.5), percentile(lags, 0.99)
    return LagRow(
        engine=engine,
        colour=colour,
        level=level,
        count=len(lags),
        p50=value_text(Unit.SECONDS, p50.value),
        p99=value_text(Unit.SECONDS, p99.value),
        p99_why=p99.reason or "",
        loop_lag="",
        largest=value_text(Unit.SECONDS, float(lags.max())) if len(lags) else ABSENT,
        share_of_ttft=share_text(p50.value, ttft_s) if p50.value is not None and ttft_s is not None else ABSENT,
        ttft_error="",
        gap_error="",
        error_why="",
    )


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
        build=lambda run: {"lag_rows": lag_rows(run), "uncalibrated": uncalibrated_text(run)},
    ),
)
