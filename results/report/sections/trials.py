"""Single trials: verdict, medians and timeline."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from markupsafe import Markup

from bakeoff.results.metrics import CATALOGUE, Unit
from bakeoff.results.metrics.catalogue import LATENCIES
from bakeoff.results.metrics.memory import peak_gpu_bytes
from bakeoff.results.metrics.relaxation import relaxation_of
from bakeoff.results.records import Verdict
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.report.charts.timeline import Bar, Limits, timeline
from bakeoff.results.report.charts.tracks import MAX_POINTS
from bakeoff.results.report.quality import match_text
from bakeoff.results.report.section import Section
from bakeoff.results.report.sections.waterfalls import Waterfalls, waterfalls
from bakeoff.results.report.verdict import primary_level
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.levels import engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.statistics.within import own_interval
from bakeoff.results.text.findings import sentence
from bakeoff.results.text.format import ABSENT, duration_text, interval_text, value_text

MAX_BARS = 400
BAR_BUDGET = 4_800
POINT_BUDGET = 60_000
"""Bars, and points of telemetry tracks, over all timelines; they keep the page under 1 MB."""
_TRACKS, _FEWEST_BARS, _FEWEST_POINTS = 18, 60, 60


class TrialRow(msgspec.Struct, frozen=True):
    """One line of the trials table."""

    order: str
    engine: str
    colour: str
    load: str
    repeat: str
    verdict: str
    valid: bool
    window: str
    start: str
    requests: str
    ttft: str
    itl: str
    token_match: str
    foreign_load: str
    remarks: list[str]


class Timeline(msgspec.Struct, frozen=True):
    """Charts of one trial; ``key`` is safe in ids, ``primary`` is shown first, ``bars`` feeds the hover text.

    The text of a bar is empty if the waterfalls contain the request.
    """

    key: str
    title: str
    engine: str
    colour: str
    valid: bool
    primary: bool
    svg: Markup
    note: str
    bars: list[Bar]
    waterfalls: Waterfalls


def no_gpu(run: Run) -> str:
    """Why no timeline shows a GPU; empty if one does, or if nothing was sampled."""
    sampled = [trial.telemetry for trial in run.finished if trial.telemetry]
    peaks = [peak_gpu_bytes(telemetry) for telemetry in sampled]
    return next((peak.reason for peak in peaks if peak.reason), "") if all(peak.reason for peak in peaks) else ""


def trial_rows(run: Run) -> list[TrialRow]:
    """Finished trials in order of execution, then unfinished ones."""
    engines = engines_of(run)
    finished = [
        _row(trial, engines, run.torn.get(trial.record.id, []))
        for trial in sorted(run.finished, key=lambda trial: trial.record.order)
    ]
    rest = [
        TrialRow(
            order="–",
            engine=plan.engine,
            colour=engine_class(engines.index(plan.engine)),
            load=f"{plan.workload} · {plan.load.label}",
            repeat=str(plan.repeat),
            verdict="never ended",
            valid=False,
            window="–",
            start="–",
            requests="–",
            ttft=ABSENT,
            itl=ABSENT,
            token_match=ABSENT,
            foreign_load="–",
            remarks=["no end of it is in the log: it was not reached, or was cut off", *run.torn.get(plan.id, [])],
        )
        for plan in run.unfinished
    ]
    return finished + rest


def timelines(run: Run) -> list[Timeline]:
    """One chart per finished trial, in the order of the plan."""
    drawn = max(1, len(run.finished))
    limits = Limits(
        bars=min(MAX_BARS, max(_FEWEST_BARS, BAR_BUDGET // drawn)),
        points=min(MAX_POINTS, max(_FEWEST_POINTS, POINT_BUDGET // (drawn * _TRACKS))),
    )
    level = primary_level(levels_of(run))
    at_level = [trial for trial in run.finished if level and trial.record.load == level.load]
    valid = [trial for trial in at_level if trial.record.verdict is Verdict.VALID]
    example = next(iter(valid or at_level or run.finished), None)
    engines = engines_of(run)
    colours = [engine_class(_position(trial.record.engine, engines)) for trial in run.finished]
    falls = waterfalls(run, colours)
    return [
        _timeline(f"trial{i}", trial, colours[i], limits, falls[i], primary=trial is example)
        for i, trial in enumerate(run.finished)
    ]


def _row(trial: Trial, engines: list[str], torn: list[str]) -> TrialRow:
    record = trial.record
    return TrialRow(
        order=str(record.order),
        engine=record.engine,
        colour=engine_class(_position(record.engine, engines)),
        load=f"{record.workload} · {record.load.label}",
        repeat=str(record.repeat),
        verdict=record.verdict.value,
        valid=record.verdict is Verdict.VALID,
        window=duration_text(trial.window.length_s) if trial.window.length_s > 0 else "– (none)",
        start=duration_text(record.start_s) if record.start_s is not None else "– (not started by us)",
        requests=f"{record.planned_requests:,}",
        ttft=_own_median(trial, "ttft"),
        itl=_own_median(trial, "itl"),
        token_match=_token_match(trial),
        foreign_load=value_text(Unit.SHARE, trial.metrics["foreign_cpu_share"].value),
        remarks=[
            *map(sentence, record.invalidating),
            *torn,
            *(f"warning: {sentence(finding)}" for finding in record.warnings),
            *(f"note: {sentence(finding)}" for finding in record.notes),
        ],
    )


def _own_median(trial: Trial, latency: str) -> str:
    """Median of one latency, with its interval within this trial."""
    metric = CATALOGUE[f"{latency}_p50_s"]
    value = trial.metrics[metric.name].value
    if value is None:
        return ABSENT
    relaxed = relaxation_of(trial.record, trial.load)
    interval = own_interval(
        LATENCIES[latency].by_request(trial.load, trial.window), 0.5, states=relaxed.states if relaxed else math.inf
    )
    return value_text(metric.unit, value) if interval is None else interval_text(metric, interval)


def _token_match(trial: Trial) -> str:
    match = match_text(trial.quality.summary if trial.quality else None, "")
    return f"{match.text} {match.answers}".rstrip()


def _timeline(key: str, trial: Trial, colour: str, limits: Limits, falls: Waterfalls, *, primary: bool) -> Timeline:
    record = trial.record
    title = f"{record.workload} · {record.load.label} · repeat {record.repeat}"
    drawn = timeline(f"{record.engine}, {title}", trial, colour, limits)
    in_waterfalls = {request.index for request in falls.requests}
    notes: list[str] = []
    if not drawn.svg:
        notes.append("– no request was decoded, so there is nothing to draw")
    if drawn.every > 1:
        notes.append(f"one in {drawn.every} of {len(trial.requests):,} requests is drawn")
    if not trial.telemetry:
        notes.append("– nothing was sampled, so memory and processors are not shown")
    return Timeline(
        key=key,
        title=f"{title} · {record.verdict.value}",
        engine=record.engine,
        colour=colour,
        valid=record.verdict is Verdict.VALID,
        primary=primary,
        svg=drawn.svg,
        note="; ".join(notes),
        bars=[msgspec.structs.replace(bar, text="") if bar.index in in_waterfalls else bar for bar in drawn.bars],
        waterfalls=falls,
    )


def _position(engine: str, engines: list[str]) -> int:
    return engines.index(engine) if engine in engines else len(engines)


def _island(content: Mapping[str, Any]) -> dict[str, Any]:
    drawn: list[Timeline] = content["timelines"]
    return {
        "bars": {item.key: item.bars for item in drawn},
        "waterfalls": {item.key: {"shown": item.waterfalls.requests, "note": item.waterfalls.note} for item in drawn},
    }


SECTIONS = (
    Section(
        id="timelines",
        title="Timelines",
        shows=(
            "each trial: its requests, and on the same axis memory, CPU, the GPU's power, memory, clocks, temperature, "
            "throttling, links and busy units, and the engine's batch; the slowest requests chunk by chunk, and any "
            "other on request"
        ),
        place=100,
        build=lambda run: {
            "timelines": timelines(run),
            "no_gpu": no_gpu(run),
            "path": f"runs/{run.manifest.run_id}",
        },
        island=_island,
    ),
    Section(
        id="trials",
        title="Trials",
        shows="verdicts with their reasons",
        place=110,
        build=lambda run: {"trials": trial_rows(run)},
    ),
)
