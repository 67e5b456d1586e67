"""Results by model, of workloads that mix several."""

from collections.abc import Sequence

from bakeoff.results.report.group_tables import group_table
from bakeoff.results.report.section import Section
from bakeoff.results.run.groups import by_model
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Table

_METRICS = ("ttft_p50_s", "ttft_p90_s", "tpot_p50_s", "e2e_p50_s", "right_share")
"""Metrics of a model's requests."""


def model_tables(run: Run) -> Sequence[Table]:
    """One table, of a run with several models."""
    groups = by_model(run)
    lead = "Requests planned inside the windows of valid trials, by the model that they were sent to."
    return [group_table(run, groups, _METRICS, heading="model", label="Results by model", lead=lead)] if groups else []


SECTIONS = (
    Section(
        id="models",
        title="Models",
        shows="latencies and failures of each model, if the workload mixes several",
        place=15,
        tables=model_tables,
    ),
)
