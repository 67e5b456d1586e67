"""Where the latency came from: the profiled trials as stacked bars, a roofline, and one table each."""

from typing import Any

import msgspec
from markupsafe import Markup

from bakeoff.results.attribution import PARTS, Latency, Part
from bakeoff.results.attribution.roofline import Ceiling, Roofline
from bakeoff.results.report.attribution import ProfiledTrial, profiled_trials
from bakeoff.results.report.charts.roofline import Point, roofline
from bakeoff.results.report.charts.stacks import Group, Segment, Stack, stacks
from bakeoff.results.report.section import Section
from bakeoff.results.report.sections.engine_view import engine_view
from bakeoff.results.report.sections.speculation import speculation_view
from bakeoff.results.run.run import Run
from bakeoff.results.text.attribution import part_title
from bakeoff.results.text.roofline import ceiling_text

_KINDS = {
    Part.CLIENT: "outside", Part.NETWORK_IN: "outside", Part.FRONT_END: "other", Part.QUEUE: "queue",
    Part.PREFILL: "prefill", Part.STALL: "queue", Part.DECODE: "decode", Part.INTERFERENCE: "interference",
    Part.BUBBLES: "bubbles", Part.COLLECT: "bubbles", Part.DETOKENISE: "other", Part.NETWORK_OUT: "outside",
    Part.UNATTRIBUTED: "rest",
    Part.ARRIVAL: "outside", Part.HANDOVER: "other", Part.PREFILL_PHASE: "prefill", Part.DECODE_PHASE: "decode",
    Part.DELIVERY: "outside",
}  # fmt: skip
"""CSS class of each part."""
_BARS = ((Latency.E2E, "mean E2E"), (Latency.TTFT, "mean TTFT"))


class AttributionView(msgspec.Struct, frozen=True):
    """The section.

    Attributes:
        trials: profiled trials.
        charts: of E2E and of TTFT, one bar per trial.
        rooflines: one for each device and data type; empty without ceilings.
        meanings: title and definition of each part of these trials.
    """

    trials: list[ProfiledTrial]
    charts: list[Markup]
    rooflines: list[Markup]
    meanings: list[tuple[str, str]]


def attribution_view(run: Run) -> AttributionView:
    """Build the section of a run."""
    trials = profiled_trials(run)
    charts = [svg for latency, name in _BARS if (svg := _chart(trials, latency, name))]
    used = {part for trial in trials for part in trial.attribution.parts}
    meanings = [(info.title, info.meaning) for part, info in PARTS.items() if part in used]
    return AttributionView(trials, charts, rooflines(trials), meanings)


def rooflines(trials: list[ProfiledTrial]) -> list[Markup]:
    """One chart for each device and data type whose limits are known."""
    by_ceiling: dict[Ceiling, list[tuple[ProfiledTrial, Roofline]]] = {}
    for trial in trials:
        roof = trial.attribution.roofline
        if isinstance(roof, Roofline) and isinstance(roof.ceiling, Ceiling):
            by_ceiling.setdefault(roof.ceiling, []).append((trial, roof))
    return [_roofline(ceiling, group) for ceiling, group in by_ceiling.items()]


def _roofline(ceiling: Ceiling, group: list[tuple[ProfiledTrial, Roofline]]) -> Markup:
    points = [
        Point(trial.attribution.record.engine, trial.position, trial.attribution.record.load.label, phase, work)
        for trial, roof in group
        for phase, work in roof.phases.items()
    ]
    batches = sorted({roof.critical_batch for _, roof in group if roof.critical_batch is not None})
    if not batches:
        critical = "no batch of decodes gets here"
    else:
        critical = f"critical batch {batches[0]:,}" + (f" to {batches[-1]:,}" if len(batches) > 1 else "")
    return roofline(f"Distance from the limit, {ceiling_text(ceiling)}", ceiling, points, critical)


def _chart(trials: list[ProfiledTrial], latency: Latency, name: str) -> Markup:
    by_load: dict[str, list[Stack]] = {}
    for trial in trials:
        if trial.attribution.means:
            record, means = trial.attribution.record, trial.attribution.means[latency]
            segments = [
                Segment(_KINDS[part], part_title(trial.attribution, part), value)
                for part, value in means.items()
                if value > 0
            ]
            by_load.setdefault(record.load.label, []).append(Stack(record.engine, trial.position, segments))
    groups = [Group(load, bars) for load, bars in by_load.items()]
    return stacks(f"Where the time goes: {name}", groups, f"{name} of profiled trials")


def _build(run: Run) -> dict[str, Any]:
    profile, seen = attribution_view(run), engine_view(run)
    if not (profile.trials or seen.has_data):
        return {}
    return {"profile": profile, "view": seen, "speculation": speculation_view(run)}


SECTIONS = (
    Section(
        id="attribution",
        title="Where the latency comes from",
        shows=(
            "of measured trials, queue, prefill, decode and the rest as the engine's own metrics split them, with "
            "speculation also its drafts; of profiled trials ([profile.md](profile.md)), bars, a table and the "
            "bottleneck of each, and a roofline of their prefill and decode"
        ),
        place=60,
        build=_build,
    ),
)
