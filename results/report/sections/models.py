"""Results by model, of workloads that mix several."""

from collections.abc import Mapping
from typing import Any

from bakeoff.results.report.group_rows import titles_of, with_figures
from bakeoff.results.report.section import Section
from bakeoff.results.run.groups import by_model
from bakeoff.results.run.run import Run

COLUMNS = ("ttft_p50_s", "ttft_p90_s", "tpot_p50_s", "e2e_p50_s", "right_share")
"""Metrics of a model's requests."""


def _build(run: Run) -> Mapping[str, Any]:
    groups = by_model(run)
    if not groups:
        return {}
    return {"model_columns": titles_of(groups, COLUMNS), "model_rows": with_figures(run, groups, COLUMNS)}


SECTIONS = (
    Section(
        id="models",
        title="Models",
        shows="latencies and failures of each model, if the workload mixes several",
        place=15,
        build=_build,
    ),
)
