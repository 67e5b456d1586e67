"""Answers compared with a float32 reference: where they diverge, and at what regret."""

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from markupsafe import Markup

from bakeoff.results.metrics.quality import EARLY, Difference, QualitySample
from bakeoff.results.report.charts.frontier import MEMORY_GIB, MISMATCH, Point, Series, frontier
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.report.engine_cell import engine_cells
from bakeoff.results.report.quality import match_of, nats, quality_warnings, unchecked_text
from bakeoff.results.report.section import Section
from bakeoff.results.run.cells import Cell as MeasuredCell
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.levels import engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Cell, Column, Table, Tone, figures, names
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text.format import ABSENT, plain

RANGES = ((0, EARLY), (EARLY, 32), (32, 128), (128, None))
"""Ranges of token positions (half-open) in which first divergences are counted."""
_MAX_CHARACTERS = 40
_MIN_POINTS = 2
_GIB = 1 << 30


class Worst(msgspec.Struct, frozen=True):
    """The token with the highest regret of one engine, and the reference's token in its place."""

    engine: str
    colour: str
    location: str
    actual: str
    expected: str
    regret: str


class AnswersView(msgspec.Struct, frozen=True):
    """The section; ``picture`` is empty unless two engines have both of its quantities and one answers differently."""

    picture: Markup
    table: Table
    worst: list[Worst]
    warnings: list[str]
    left_out: list[str]


def answers_view(run: Run) -> AnswersView:
    """Build the section from a run's comparisons with the reference."""
    engines = engines_of(run)
    colours = {engine: engine_class(i) for i, engine in enumerate(engines)}
    return AnswersView(
        picture=_quality_against_memory(run),
        table=_table(run),
        worst=[worst for engine in engines if (worst := _worst(run, engine, colours[engine]))],
        warnings=quality_warnings(run),
        left_out=_left_out(run),
    )


def _quality_against_memory(run: Run) -> Markup:
    """Each engine at the last load with both quantities: what fewer bits save, and what they cost."""
    series: list[Series] = []
    for position, engine in enumerate(engines_of(run)):
        cells = [cell for level in levels_of(run) for cell in level.cells if cell.engine == engine]
        points = [point for cell in cells if (point := _point(cell))]
        series.append(Series(engine, position, points[-1:]))
    points = [point for line in series for point in line.points]
    if len(points) < _MIN_POINTS or all(point.y.centre == 0 for point in points):
        return Markup("")
    return frontier("Token match against peak memory", series, MEMORY_GIB, MISMATCH)


def _point(cell: MeasuredCell) -> Point | None:
    """Memory of the GPU if the engine uses one."""
    memory = cell.intervals.get("peak_gpu_bytes") or cell.intervals.get("peak_host_bytes")
    if cell.quality is None or memory is None:
        return None
    low, high = (None if bound is None else bound / _GIB for bound in (memory.low, memory.high))
    mismatch = Interval(1 - cell.quality.agreement, None, None, cell.quality.answers)
    return Point("", Interval(memory.centre / _GIB, low, high, memory.n), mismatch)


def _table(run: Run) -> Table:
    ranges = (
        f"before {end}" if not start else f"{start}–{end - 1}" if end else f"from {start}" for start, end in RANGES
    )
    engine_cell = engine_cells(run)
    return Table(
        "Answers compared with the reference",
        [
            *names("load", "engine"),
            *figures(["token match", "answers", "tokens"]),
            *(Column(title, group="first divergence") for title in ("never", *ranges)),
            *figures(["mean regret", "max regret", "near ties", "log-prob. error"]),
            *names("remarks"),
        ],
        [
            [Cell(level.title), engine_cell(cell.engine), *_figures(cell, run.trials_of(cell))]
            for level in levels_of(run)
            for cell in level.cells
        ],
    )


def _figures(cell: MeasuredCell, trials: Sequence[Trial]) -> Iterator[Cell]:
    match, summary = match_of(cell), cell.quality
    yield Cell(match.text, tone=Tone.BAD if match.differs else None)
    if summary is None:
        yield from [Cell(ABSENT)] * (len(RANGES) + 7)
    else:
        samples = _samples(trials)
        counts = [_diverged(samples, *bounds) for bounds in RANGES]
        yield from (Cell(f"{count:,}") for count in (summary.answers, summary.tokens, summary.identical))
        yield from (Cell(f"{count:,}", tone=None if count else Tone.ZERO) for count in counts)
        yield from (Cell(nats(summary.mean_regret)), Cell(nats(summary.max_regret)), Cell(f"{summary.near_ties:,}"))
        yield Cell(_logprobs(summary.mean_abs_logprob_diff, summary.max_abs_logprob_diff))
    yield Cell(match.why or match.note)


def _samples(trials: Sequence[Trial]) -> list[QualitySample]:
    return [sample for trial in trials if trial.quality for sample in trial.quality.samples]


def _diverged(samples: Sequence[QualitySample], start: int, end: int | None) -> int:
    """Number of answers whose first divergence is in [start, end)."""
    positions = [sample.first_divergence for sample in samples if sample.first_divergence is not None]
    return sum(start <= position and (end is None or position < end) for position in positions)


def _logprobs(mean: float | None, largest: float | None) -> str:
    return ABSENT if mean is None or largest is None else f"{nats(mean)}, at most {nats(largest)}"


def _worst(run: Run, engine: str, colour: str) -> Worst | None:
    differences = [
        (difference, sample, trial)
        for trial in run.finished
        if trial.record.engine == engine
        for sample in _samples([trial])
        if (difference := sample.worst)
    ]
    if not differences:
        return None
    difference, sample, trial = max(differences, key=lambda item: item[0].regret)
    return Worst(
        engine=engine,
        colour=colour,
        location=_location(difference, sample, trial),
        actual=_quoted(difference.token_text, difference.token),
        expected=_quoted(difference.expected_text, difference.expected),
        regret=nats(difference.regret),
    )


def _location(difference: Difference, sample: QualitySample, trial: Trial) -> str:
    record = trial.record
    turn = f" turn {sample.turn + 1}" if sample.turn else ""
    return (
        f"{record.load.label}, repeat {record.repeat}, session {sample.session}{turn} (request {sample.index}), "
        f"token {difference.position + 1:,} of {sample.tokens:,}"
    )


def _quoted(text: str, token: int) -> str:
    """A token's text with its spaces and line breaks visible."""
    visible = plain(text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r"))
    return f"“{visible[:_MAX_CHARACTERS]}” ({token})"


def _left_out(run: Run) -> list[str]:
    """Count the answers that could not be compared, by engine and reason."""
    reasons = Counter(
        (trial.record.engine, sample.why) for trial in run.finished for sample in _samples([trial]) if sample.why
    )
    return [
        f"{engine}: {count} {'answer' if count == 1 else 'answers'}: {why}" for (engine, why), count in reasons.items()
    ]


SECTIONS = (
    Section(
        id="answers",
        title="Answers compared with the reference",
        shows="sampled answers compared with the same weights in float32; token match against peak memory",
        place=90,
        build=lambda run: {} if unchecked_text(run) else {"view": answers_view(run)},
    ),
)
