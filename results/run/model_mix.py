"""Results by model, where a workload sends its sessions to several."""

from collections.abc import Sequence

import msgspec

from bakeoff.results.metrics import Value
from bakeoff.results.metrics.requests import has_failed
from bakeoff.results.metrics.trial import request_metrics
from bakeoff.results.records import Outcome, RequestRecord, Slo
from bakeoff.results.run.levels import levels_of
from bakeoff.results.run.run import Run

COLUMNS = ("ttft_p50_s", "ttft_p90_s", "tpot_p50_s", "e2e_p50_s", "right_share")
"""Metrics of a model's requests."""


class ModelRow(msgspec.Struct, frozen=True):
    """Requests to one model of one engine at one load, over its valid trials.

    Attributes:
        engine: label.
        level: title of the load.
        model: as requests name it.
        requests: planned inside the windows.
        failed: those of them that failed.
        output_tokens: of the answers.
        metrics: the metrics of :data:`COLUMNS` over these requests together.
    """

    engine: str
    level: str
    model: str
    requests: int
    failed: int
    output_tokens: int
    metrics: dict[str, Value]


def model_rows(run: Run) -> list[ModelRow]:
    """The rows of a run, by load, engine and model; none if no workload mixes models."""
    rows: list[ModelRow] = []
    for level in levels_of(run):
        for cell in level.cells:
            inside = [request for trial in run.valid_trials_of(cell) for request in trial.inside]
            names = sorted({request.model for request in inside if request.model is not None})
            rows += [_row(cell.engine, level.title, name, [r for r in inside if r.model == name]) for name in names]
    return rows


def _row(engine: str, level: str, model: str, requests: Sequence[RequestRecord]) -> ModelRow:
    counted = [request for request in requests if request.outcome is not Outcome.CANCELLED]
    metrics = request_metrics(counted, Slo())
    return ModelRow(
        engine,
        level,
        model,
        len(counted),
        sum(map(has_failed, counted)),
        sum(request.total_chunk_tokens for request in counted),
        {name: metrics[name] for name in COLUMNS},
    )
