"""Reports of llm-d's benchmark, version 0.2: what their writer and their reader share.

Source: ``llmdbenchmark/analysis/benchmark_report`` of https://github.com/llm-d/llm-d-benchmark, commit 8bc9f1d.
A report holds the aggregates of one benchmark at one stage, and no single request.
"""

from typing import Any

import msgspec

from bakeoff.results.findings import Finding
from bakeoff.results.records import Load, Slo, Verdict

VERSION = "0.2"
"""Version that is written."""
TOOL = "bakeoff"
"""Name of the tool in the reports that Bakeoff writes."""
STATED = "stated by the report"
"""Table in the experiment of a run that was read from reports: the conditions that only they state."""
LATENCIES = {
    "time_to_first_token": ("ttft", "s"),
    "time_per_output_token": ("tpot", "s/token"),
    "inter_token_latency": ("itl", "s/token"),
    "normalized_time_per_output_token": ("normalized_latency", "s/token"),
    "request_latency": ("e2e", "s"),
}
"""Latency of a report → key of :data:`bakeoff.results.metrics.catalogue.LATENCIES`, and the unit that is written."""
RATES = {
    "input_token_rate": ("prompt_tokens_per_s", "tokens/s"),
    "output_token_rate": ("output_tokens_per_s", "tokens/s"),
    "request_rate": ("requests_per_s", "queries/s"),
}
"""Rate of a report → name in :data:`bakeoff.results.metrics.CATALOGUE`, and its unit."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What a report of Bakeoff holds besides llm-d's fields, as ``scenario.load.native.config``.

    Attributes:
        definitions: version of the metrics' definitions.
        environment: machine of the run.
        experiment: of the run.
        slo: of the run.
        engine: label.
        workload: name.
        load: of the trial.
        repeat: of the trial.
        verdict: of the trial.
        findings: of the trial.
        adapter: of the engine.
        model_sha256: of the weights.
        request: what requests carried besides the workload's prompt and length.
    """

    definitions: int
    environment: dict[str, Any]
    experiment: dict[str, Any]
    slo: Slo
    engine: str
    workload: str
    load: Load
    repeat: int
    verdict: Verdict
    findings: list[Finding] = []
    adapter: str = ""
    model_sha256: str | None = None
    request: dict[str, Any] = {}
