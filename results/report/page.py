"""Content of the report page as one typed object; the template only lays it out."""

from typing import Any

import msgspec

from bakeoff.results.records import RunStatus
from bakeoff.results.report import clients
from bakeoff.results.report.charts.scatter import MAX_DOTS
from bakeoff.results.report.foreign_load import foreign_load_text
from bakeoff.results.report.sections import (
    answers,
    attribution,
    background,
    basis,
    batches,
    curves,
    engine_view,
    failures,
    instrument,
    lengths,
    over_time,
    speculation,
    summary,
    trials,
    views,
)
from bakeoff.results.report.verdict import VerdictLine, verdict
from bakeoff.results.run.levels import engines_of
from bakeoff.results.run.run import Run
from bakeoff.results.server_view import ENGINE_FIGURES, EngineFigure
from bakeoff.results.text.format import listed, machine_text, moment_text

_STATUS = {
    RunStatus.COMPLETE: "Every planned trial ended.",
    RunStatus.RUNNING: "The run is still running; this report may change.",
    RunStatus.INTERRUPTED: "The run was interrupted; trials that ended are complete, the others are missing.",
    RunStatus.FAILED: "The run failed; trials that ended are complete, the others are missing.",
    RunStatus.INCOMPLETE: "The run's process disappeared before it finished; some trials are missing.",
}

CONTENTS = (
    ("summary", "Summary"),
    ("frontier", "Frontier"),
    ("distributions", "Distributions"),
    ("over-time", "Over time"),
    ("dependence", "Dependence"),
    ("attribution", "Attribution"),
    ("engine-view", "Engine’s view"),
    ("views", "Other tools"),
    ("answers", "Answers"),
    ("timelines", "Timelines"),
    ("trials", "Trials"),
    ("failures", "Failures"),
    ("instrument", "Client error"),
    ("engines", "Engines"),
    ("environment", "Environment"),
    ("definitions", "Definitions"),
    ("configuration", "Experiment"),
    ("reproduce", "Reproduce"),
)
"""Id and short name of each section, in order."""


class Page(msgspec.Struct, frozen=True):
    """Everything on the page, in order."""

    name: str
    status: str
    complete: bool
    status_meaning: str
    failure: str | None
    verdict: VerdictLine
    facts: list[tuple[str, str]]
    notes: list[str]
    contents: tuple[tuple[str, str], ...]
    columns: list[tuple[str, str]]
    uncalibrated: str
    summary: list[summary.Group]
    metric_tables: list[background.MetricTable]
    frontiers: list[curves.Frontier]
    goodputs: list[curves.Frontier]
    panels: list[curves.Panel]
    time_panels: list[over_time.TimePanel]
    length_panels: list[lengths.LengthPanel]
    batch_figures: list[batches.BatchFigure]
    max_dots: int
    min_batch_tokens: int
    attribution: attribution.AttributionView
    engine_view: engine_view.EngineView
    speculation: speculation.SpeculationView
    views: views.Views
    answers: answers.AnswersView
    path: str
    timelines: list[trials.Timeline]
    no_gpu: str
    trials: list[trials.TrialRow]
    outcomes: list[str]
    outcome_rows: list[failures.OutcomeRow]
    messages: list[failures.Message]
    lag_rows: list[instrument.LagRow]
    engines: list[background.EngineCard]
    environment: list[tuple[str, str]]
    clients: list[clients.ClientRow]
    definitions: list[background.Definition]
    basis: basis.BasisTable
    engine_figures: list[EngineFigure]
    configuration: str
    reproduction: list[str]
    island: dict[str, Any]


def page_of(run: Run) -> Page:
    """Build the page of a run."""
    manifest = run.manifest
    drawn = trials.timelines(run)
    return Page(
        name=manifest.name,
        status=_banner(run.status),
        complete=run.status is RunStatus.COMPLETE,
        status_meaning=_STATUS[run.status],
        failure=manifest.failure,
        verdict=verdict(run),
        facts=_facts(run),
        notes=run.declared,
        contents=CONTENTS,
        columns=[(metric.family, metric.title) for metric in summary.columns_of(run)],
        uncalibrated=clients.uncalibrated_text(run),
        summary=summary.summary(run),
        metric_tables=background.metric_tables(run),
        frontiers=curves.frontiers(run),
        goodputs=curves.goodputs(run),
        panels=curves.panels(run),
        time_panels=over_time.time_panels(run),
        length_panels=lengths.length_panels(run),
        batch_figures=batches.batch_figures(run),
        max_dots=MAX_DOTS,
        min_batch_tokens=batches.MIN_TOKENS,
        attribution=attribution.attribution_view(run),
        engine_view=engine_view.engine_view(run),
        speculation=speculation.speculation_view(run),
        views=views.views_section(run),
        answers=answers.answers_view(run),
        path=f"runs/{manifest.run_id}",
        timelines=drawn,
        no_gpu=trials.no_gpu(run),
        trials=trials.trial_rows(run),
        outcomes=[outcome.value.replace("_", " ") for outcome in failures.OUTCOMES],
        outcome_rows=failures.outcome_rows(run),
        messages=failures.messages(run),
        lag_rows=instrument.lag_rows(run),
        engines=background.engine_cards(run),
        environment=background.environment(run),
        clients=clients.client_rows(run),
        definitions=background.definitions(),
        basis=basis.basis_table(run),
        engine_figures=list(ENGINE_FIGURES.values()),
        configuration=background.configuration(run),
        reproduction=background.reproduction(run),
        island=_island(run, drawn),
    )


def _island(run: Run, drawn: list[trials.Timeline]) -> dict[str, Any]:
    """Data for the script, and the cells as JSON for readers of the page's source."""
    waterfalls = {item.key: {"shown": item.waterfalls.requests, "note": item.waterfalls.note} for item in drawn}
    return {"bars": {item.key: item.bars for item in drawn}, "waterfalls": waterfalls, "cells": run.cells}


def _banner(status: RunStatus) -> str:
    if status in {RunStatus.COMPLETE, RunStatus.INCOMPLETE}:
        return status.value.upper()
    return f"INCOMPLETE ({status.value})"


def _facts(run: Run) -> list[tuple[str, str]]:
    manifest = run.manifest
    return [
        ("engines", listed(engines_of(run))),
        ("machine", machine_text(manifest)),
        ("commit", manifest.git_commit or "– (not in a git checkout)"),
        ("started", moment_text(manifest.created_utc)),
        ("ended", moment_text(manifest.ended_utc) if manifest.ended_utc else "– (not recorded)"),
        ("foreign load", foreign_load_text(run) or "– (nothing was sampled)"),
        ("trials", f"{len(run.finished)} of {len(manifest.trials)} ended"),
        ("bakeoff", manifest.bakeoff_version),
    ]
