"""Results by model, of workloads that mix several."""

from collections.abc import Mapping
from typing import Any

import msgspec

from bakeoff.results.metrics import CATALOGUE
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.report.section import Section
from bakeoff.results.run.levels import engines_of
from bakeoff.results.run.model_mix import ModelRow, model_rows
from bakeoff.results.run.run import Run
from bakeoff.results.text.format import ABSENT, value_text


class ShownRow(msgspec.Struct, frozen=True):
    """A row of the table, with the engine's colour and the texts of its metrics."""

    row: ModelRow
    colour: str
    figures: list[str]


def shown_columns(rows: list[ModelRow]) -> list[str]:
    """The metrics that any row has."""
    return [name for name in rows[0].metrics if any(row.metrics[name].value is not None for row in rows)]


def figures_of(row: ModelRow, columns: list[str]) -> list[str]:
    """Texts of a row's metrics."""
    values = ((CATALOGUE[name].unit, row.metrics[name].value) for name in columns)
    return [ABSENT if value is None else value_text(unit, value) for unit, value in values]


def _build(run: Run) -> Mapping[str, Any]:
    rows, engines = model_rows(run), engines_of(run)
    if not rows:
        return {}
    columns = shown_columns(rows)
    return {
        "model_columns": [CATALOGUE[name].title for name in columns],
        "model_rows": [
            ShownRow(row, engine_class(engines.index(row.engine)), figures_of(row, columns)) for row in rows
        ],
    }


SECTIONS = (
    Section(
        id="models",
        title="Models",
        shows="latencies and failures of each model, if the workload mixes several",
        place=15,
        build=_build,
    ),
)
