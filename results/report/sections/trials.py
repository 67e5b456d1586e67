"""Every trial on its own: its verdict and its timeline."""

import msgspec
from markupsafe import Markup

from results.records import Verdict
from results.report.charts.svg import engine_class
from results.report.charts.timeline import Bar, timeline
from results.report.format import duration_text
from results.report.levels import engines_of, levels_of
from results.report.quality import agrees
from results.report.verdict import primary_level
from results.run import Run, Trial

MOST_BARS = 400
BAR_BUDGET = 4_800
"""Bars over all timelines together: with them the page stays under 1 MB."""


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
    agrees: str
    remarks: list[str]


class Timeline(msgspec.Struct, frozen=True):
    """One trial's chart; ``key`` is safe in ids, ``primary`` is shown first, ``bars`` feeds the hover read-out."""

    key: str
    title: str
    engine: str
    colour: str
    valid: bool
    primary: bool
    svg: Markup
    note: str
    bars: list[Bar]


def trial_rows(run: Run) -> list[TrialRow]:
    """Finished trials in the order in which they ran, then those that never ended."""
    engines = engines_of(run)
    done = [
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
            agrees="–",
            remarks=["the trial has no trial.json: it was not reached, or was cut off", *run.torn.get(plan.id, [])],
        )
        for plan in run.unfinished
    ]
    return done + rest


def timelines(run: Run) -> list[Timeline]:
    """One chart per finished trial, in the order of the plan."""
    max_bars = min(MOST_BARS, max(60, BAR_BUDGET // max(1, len(run.finished))))
    level = primary_level(levels_of(run))
    at_level = [trial for trial in run.finished if level and trial.record.load == level.load]
    valid = [trial for trial in at_level if trial.record.verdict is Verdict.VALID]
    shown = next(iter(valid or at_level or run.finished), None)
    return [
        _timeline(f"trial{i}", trial, engines_of(run), max_bars, primary=trial is shown)
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
        agrees=_agrees(trial),
        remarks=[*record.reasons, *torn, *(f"warning: {warning}" for warning in record.warnings)],
    )


def _agrees(trial: Trial) -> str:
    shown = agrees(trial.quality.summary if trial.quality else None, "")
    return f"{shown.text} {shown.answers}".rstrip()


def _timeline(key: str, trial: Trial, engines: list[str], max_bars: int, *, primary: bool) -> Timeline:
    record = trial.record
    title = f"{record.workload} · {record.load.label} · repeat {record.repeat}"
    colour = engine_class(_position(record.engine, engines))
    drawn = timeline(f"{record.engine}, {title}", trial, colour, max_bars)
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
        bars=drawn.bars,
    )


def _position(engine: str, engines: list[str]) -> int:
    return engines.index(engine) if engine in engines else len(engines)
