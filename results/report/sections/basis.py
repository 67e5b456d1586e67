"""Numbers of observations behind each metric, and total window length, per engine and load."""

from collections.abc import Sequence

import msgspec

from bakeoff.results.metrics.catalogue import FAMILIES
from bakeoff.results.metrics.trial import observation_counts
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.report.clients import uncalibrated_text
from bakeoff.results.report.section import Section
from bakeoff.results.report.sections.background import definitions
from bakeoff.results.run.cells import Cell, Trial
from bakeoff.results.run.levels import engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.server_view import ENGINE_FIGURES
from bakeoff.results.text.format import ABSENT, duration_text


class Column(msgspec.Struct, frozen=True):
    """One engine at one load, over its valid trials."""

    engine: str
    colour: str
    trials: str
    window: str


class BasisRow(msgspec.Struct, frozen=True):
    """Metrics with the same observations, as (family, title); one count per column."""

    metrics: list[tuple[str, str]]
    observation: str
    span: str
    counts: list[str]


class BasisTable(msgspec.Struct, frozen=True):
    """The table; ``levels`` are headings with the number of columns below each."""

    levels: list[tuple[str, int]]
    columns: list[Column]
    rows: list[BasisRow]

    def row_of(self, family: str) -> str:
        """The family that names the row of ``family``."""
        return next(row.metrics[0][0] for row in self.rows if family in dict(row.metrics))


def basis_table(run: Run) -> BasisTable:
    """Count the observations behind every metric."""
    engines, levels = engines_of(run), levels_of(run)
    cells = [cell for level in levels for cell in level.cells]
    valid = [run.valid_trials_of(cell) for cell in cells]
    return BasisTable(
        levels=[(level.title, len(level.cells)) for level in levels],
        columns=[_column(cell, trials, engines) for cell, trials in zip(cells, valid, strict=True)],
        rows=_rows([_counts(trials) for trials in valid]),
    )


def _column(cell: Cell, trials: Sequence[Trial], engines: Sequence[str]) -> Column:
    return Column(
        engine=cell.engine,
        colour=engine_class(engines.index(cell.engine)),
        trials=str(len(trials)),
        window=duration_text(sum(trial.window.length_s for trial in trials)) if trials else ABSENT,
    )


def _counts(trials: Sequence[Trial]) -> dict[str, int]:
    counts = [observation_counts(trial.record, trial.requests, trial.telemetry) for trial in trials]
    return {name: sum(of_trial[name] for of_trial in counts) for name in FAMILIES}


def _rows(counts: Sequence[dict[str, int]]) -> list[BasisRow]:
    """One row for each group of families with the same observations and counts."""
    groups: dict[tuple[str, str, tuple[int, ...]], list[str]] = {}
    for name, metric in FAMILIES.items():
        key = (metric.observation, metric.span.value, tuple(of_cell[name] for of_cell in counts))
        groups.setdefault(key, []).append(name)
    titles = {definition.key: definition.title for definition in definitions()}
    return [
        BasisRow([(name, titles[name]) for name in names], observation, span, [f"{count:,}" for count in row])
        for (observation, span, row), names in groups.items()
    ]


SECTIONS = (
    Section(
        id="definitions",
        title="Definitions",
        shows="what each term means, and the numbers of observations",
        place=160,
        folded=True,
        build=lambda run: {
            "definitions": definitions(),
            "basis": basis_table(run),
            "engine_figures": list(ENGINE_FIGURES.values()),
            "uncalibrated": uncalibrated_text(run),
        },
    ),
)
