"""Summary table: headline metrics of each engine at each load, with intervals and trials as dots."""

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from bakeoff.results.compare.comparison import compare_sides
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.sides import side_of
from bakeoff.results.metrics import CATALOGUE, Metric
from bakeoff.results.records import Verdict
from bakeoff.results.report.charts.scales import Axis
from bakeoff.results.report.charts.strips import dot_strip, strip_axis
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.report.clients import WITH_ERROR, ErrorText, error_of, uncalibrated_text
from bakeoff.results.report.engine_settings import difference_text
from bakeoff.results.report.quality import MatchText, match_of, unchecked_text
from bakeoff.results.report.section import Section
from bakeoff.results.report.sections.background import metric_tables
from bakeoff.results.report.standing import UNJUDGED
from bakeoff.results.run.cells import Cell, Trial
from bakeoff.results.run.levels import Level, engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.statistics import COMPARE_ALPHA, Judgement
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text.format import ABSENT, interval_parts, share_text, value_text


def columns_of(run: Run) -> list[Metric]:
    """Metrics of the table's columns; failures have a separate column."""
    return [CATALOGUE[name] for name in run.headline if name != "failures"]


class Figure(msgspec.Struct, frozen=True):
    """One value of the table.

    Attributes:
        key: family of the metric, for the link to its definition.
        title: heading of the column, repeated on narrow screens.
        centre: with unit, or the mark of absence.
        bounds: 95 % interval; empty if absent.
        error: the client's own error, ``± 0.13 ms``; empty if the metric has none or no engine was calibrated.
        note: why the value, its bounds, its error or some trials are missing; empty otherwise.
        strip: trials as dots.
        best: whether ``bakeoff compare`` judges it better than that of every other engine.
        unjudged: whether it is of INVALID trials.
    """

    key: str
    title: str
    centre: str
    bounds: str
    error: str
    note: str
    strip: Markup
    best: bool
    unjudged: bool


class Row(msgspec.Struct, frozen=True):
    """One engine at one load."""

    engine: str
    colour: str
    runs: str
    in_flight: str
    """Mean requests in flight where sessions pause; empty elsewhere."""
    failures: str
    failed: bool
    failed_share: str
    token_match: MatchText
    figures: list[Figure]


class Group(msgspec.Struct, frozen=True):
    """One load level."""

    title: str
    rows: list[Row]


def summary(run: Run) -> list[Group]:
    """Groups of the table, one per level."""
    engines = engines_of(run)
    judgements = _Judgements(run)
    return [Group(level.heading, _rows(run, level, engines, judgements)) for level in levels_of(run)]


def _rows(run: Run, level: Level, engines: Sequence[str], judgements: "_Judgements") -> list[Row]:
    trials = [(cell, run.trials_of(cell)) for cell in level.cells]
    colours = {engine: engine_class(i) for i, engine in enumerate(engines)}
    columns = columns_of(run)
    axes = {metric.name: _axis(metric, trials) for metric in columns}
    return [
        Row(
            engine=cell.engine,
            colour=colours[cell.engine],
            runs=f"{cell.valid} of {cell.planned}",
            in_flight="" if (mean := level.pausing(cell)) is None else f"{mean:.3g} in flight",
            failures=f"{cell.failures[0]:,}/{cell.failures[1]:,}" if cell.failures[1] else f"{ABSENT} none in a window",
            failed=cell.failures[0] > 0,
            failed_share=share_text(*cell.failures) if cell.failures[0] else "",
            token_match=match_of(cell),
            figures=[
                _figure(
                    metric,
                    level,
                    cell,
                    done=done,
                    axis=axes[metric.name],
                    colour=colours[cell.engine],
                    judgements=judgements,
                )
                for metric in columns
            ],
        )
        for cell, done in trials
    ]


def _axis(metric: Metric, trials: Sequence[tuple[Cell, list[Trial]]]) -> Axis:
    values = [value for _, done in trials for verdict in Verdict for value in _values(done, metric, verdict)]
    return strip_axis(values)


def _values(trials: Sequence[Trial], metric: Metric, verdict: Verdict) -> list[float]:
    return [
        value
        for trial in trials
        if trial.record.verdict is verdict and (value := trial.metrics[metric.name].value) is not None
    ]


def _figure(
    metric: Metric,
    level: Level,
    cell: Cell,
    *,
    done: Sequence[Trial],
    axis: Axis,
    colour: str,
    judgements: "_Judgements",
) -> Figure:
    interval = cell.intervals.get(metric.name)
    centre, bounds = interval_parts(metric, interval)
    unjudged = cell.unjudged.get(metric.name) if interval is None else None
    if unjudged is not None:
        centre = f"({value_text(metric.unit, unjudged)})"
    valid = _values(done, metric, Verdict.VALID)
    invalid = _values(done, metric, Verdict.INVALID)
    values = ", ".join(value_text(metric.unit, value) for value in valid) or ABSENT
    if invalid:
        values += f"; INVALID: {', '.join(value_text(metric.unit, value) for value in invalid)}"
    title = f"{metric.title} of each trial: {values}"
    error = _error(metric, level, cell) if interval is not None else None
    notes = (_note(metric, cell, interval), error.why if error else "")
    return Figure(
        key=metric.family,
        title=metric.title,
        centre=centre,
        bounds=bounds,
        error=error.text if error else "",
        note="; ".join(note for note in notes if note),
        strip=dot_strip(title, axis, valid, invalid=invalid, interval=interval, colour=colour),
        unjudged=unjudged is not None,
        best=interval is not None and judgements.is_best(metric, level, cell),
    )


def _error(metric: Metric, level: Level, cell: Cell) -> ErrorText | None:
    """The client's own error; None if the metric has none or no engine at this level was calibrated."""
    is_calibrated = metric.name in WITH_ERROR and any(other.client_error for other in level.cells)
    return error_of(cell, metric.name) if is_calibrated else None


def _note(metric: Metric, cell: Cell, interval: Interval | None) -> str:
    if interval is None:
        return UNJUDGED if metric.name in cell.unjudged else cell.reasons[metric.name]
    if interval.reason:
        return "one trial: no interval" if interval.n == 1 else interval.reason
    return f"{interval.n} of {cell.valid} valid trials have it" if interval.n < cell.valid else ""


class _Judgements:
    """The judgements of ``bakeoff compare`` between the engines of a run, each pair compared once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._compared: dict[tuple[str, str], dict[tuple[str, str], Judgement]] = {}

    def is_best(self, metric: Metric, level: Level, cell: Cell) -> bool:
        """Whether this engine is better than every other one that has the metric, of which there is at least one."""
        others = [
            other.engine for other in level.cells if other.engine != cell.engine and metric.name in other.intervals
        ]
        at = (level.load.label, metric.name)
        return bool(others) and all(self._of(cell.engine, other).get(at) is Judgement.BETTER for other in others)

    def _of(self, engine: str, other: str) -> dict[tuple[str, str], Judgement]:
        pair = (engine, other)
        if pair not in self._compared:
            sides = side_of(self._run, other), side_of(self._run, engine)
            compared = compare_sides(*sides, ComparisonConfig(alpha=COMPARE_ALPHA), check=False)
            self._compared[pair] = {
                (one.level, one.metric): one.judgement for one in compared.comparisons if one.traffic_class is None
            }
        return self._compared[pair]


SECTIONS = (
    Section(
        id="summary",
        title="Summary",
        shows=(
            "each engine at each load: geometric mean, 95 % interval, every trial as a dot, ± of the client, token "
            "match; every metric, and the reason for each missing one"
        ),
        place=10,
        build=lambda run: {
            "columns": [(metric.family, metric.title) for metric in columns_of(run)],
            "uncalibrated": uncalibrated_text(run),
            "unchecked": unchecked_text(run),
            "difference": difference_text(run),
            "groups": summary(run),
            "metric_tables": metric_tables(run),
        },
    ),
)
