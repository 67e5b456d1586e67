"""Profiled trials for the terminal and the page."""

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.text import Text

from bakeoff.results.attribution import Attribution, Latency
from bakeoff.results.metrics import Unit
from bakeoff.results.records import Verdict
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.deviation import deviation_of
from bakeoff.results.run.levels import engines_of
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Table, text_table
from bakeoff.results.show.terminal import print_table
from bakeoff.results.text.attribution import (
    bottleneck_sentence,
    clock_line,
    cost_line,
    coverage_line,
    deviation_sentence,
    energy_line,
    kernel_line,
    overhead_line,
    part_rows,
    span_lines,
    what_if_text,
)
from bakeoff.results.text.findings import sentence, sentences
from bakeoff.results.text.format import plain, value_text
from bakeoff.results.text.roofline import limit_lines
from bakeoff.results.trace.kernels import read_kernels


class ProfiledTrial(msgspec.Struct, frozen=True):
    """One profiled trial.

    Attributes:
        title: load and engine.
        position: of the engine, which determines its colour.
        attribution: of its requests.
        sentence: from :func:`profile_sentence`.
        table: mean and share of each part in E2E and TTFT; None without parts.
        what_if: the largest savings.
        notes: coverage, clock, cost of decodes, distance from the limits, energy, overhead.
    """

    title: str
    position: int
    attribution: Attribution
    sentence: str
    table: Table | None
    what_if: str
    notes: list[str]


def profiled_trials(run: Run) -> list[ProfiledTrial]:
    """The profiled trials of a run, in planned order."""
    engines = engines_of(run)
    pairs = zip(run.profiled, run.attributions, strict=True)
    return [_view(run, trial, attribution, engines.index(trial.record.engine)) for trial, attribution in pairs]


def profile_sentence(run: Run, trial: Trial, attribution: Attribution) -> str:
    """Names the bottleneck, and what casts doubt on it, without a full stop.

    Args:
        run: with the measured trials.
        trial: a profiled one.
        attribution: of its requests.
    """
    record, deviation = trial.record, deviation_of(trial, run.finished)
    invalid = f"INVALID: {sentences(record.invalidating)}" if record.verdict is Verdict.INVALID else ""
    doubt = deviation_sentence(deviation) if deviation and attribution.unknown is None else ""
    return ". ".join(filter(None, [invalid, bottleneck_sentence(attribution), doubt]))


def print_attribution(trials: Sequence[ProfiledTrial], console: Console) -> None:
    """Print each profiled trial: the bottleneck, the parts, and what would change without them."""
    for trial in trials:
        console.print(Text(f"\nWhere the time goes, {plain(trial.title)}", "bold"))
        console.print(Text(f"{trial.sentence}.", "bold"))
        if trial.table:
            print_table(trial.table, console)
            console.print(Text(trial.what_if))
        for note in trial.notes:
            console.print(Text(plain(note), "dim"))


def _table(attribution: Attribution) -> Table | None:
    rows = part_rows(attribution)
    if not rows:
        return None
    e2e, ttft = (value_text(Unit.SECONDS, attribution.mean_s(latency)) for latency in (Latency.E2E, Latency.TTFT))
    headings = ("part", "mean E2E", "share", "mean TTFT", "share")
    texts = ((title, *texts) for _, title, texts in rows)
    return text_table("Parts of the latency", headings, texts, total=("sum", e2e, "", ttft, ""))


def _view(run: Run, trial: Trial, attribution: Attribution, position: int) -> ProfiledTrial:
    record = trial.record
    plain_trial = next(
        (
            other
            for other in run.finished
            if (other.record.engine, other.record.load, other.record.repeat)
            == (record.engine, record.load, record.repeat)
        ),
        None,
    )
    kernels = read_kernels(run.folder.trial_of(record))
    return ProfiledTrial(
        title=f"{record.load.label}, {record.engine}",
        position=position,
        attribution=attribution,
        sentence=profile_sentence(run, trial, attribution),
        table=_table(attribution),
        what_if=what_if_text(attribution),
        notes=[
            coverage_line(attribution),
            clock_line(attribution.clock),
            *span_lines(attribution),
            *filter(None, [cost_line(attribution)]),
            *limit_lines(attribution.roofline),
            *filter(None, [energy_line(attribution.energy), kernel_line(kernels, record.kernels_missing)]),
            *map(sentence, record.warnings),
            overhead_line(plain_trial, trial),
        ]
        if attribution.requests
        else [],
    )
