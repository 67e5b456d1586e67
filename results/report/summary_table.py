"""The summary of a run as tables, for the terminal, the page and Markdown alike.

One engine has a row a metric, with the metric's name in words. Of several, each has a row, and each metric a column.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto

import msgspec
from markupsafe import Markup

from bakeoff.results.compare.comparison import compare_sides
from bakeoff.results.compare.config import ComparisonConfig
from bakeoff.results.compare.primary import primary_load
from bakeoff.results.compare.sides import side_of
from bakeoff.results.metrics import CATALOGUE, Metric
from bakeoff.results.metrics.catalogue import LATENCIES
from bakeoff.results.records import Verdict
from bakeoff.results.report.charts.scales import Axis
from bakeoff.results.report.charts.strips import dot_strip, strip_axis
from bakeoff.results.report.clients import WITH_ERROR, error_of, uncalibrated_text
from bakeoff.results.report.engine_cell import engine_cells
from bakeoff.results.report.quality import match_of, unchecked_text
from bakeoff.results.report.standing import UNJUDGED
from bakeoff.results.run.cells import Cell as MeasuredCell
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.levels import Level, engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Cell, Column, Kind, Table, Tone, figures, names
from bakeoff.results.statistics import COMPARE_ALPHA, Judgement
from bakeoff.results.text.format import (
    ABSENT,
    bounds_text,
    listed,
    percent_text,
    scale_beside,
    unit_beside,
    value_text,
)

MAX_LOADS = 4
"""Loads of one engine that stand side by side, a column each."""
_WIDE = frozenset({"tpot_p50_s", "requests_per_s", "peak_host_bytes", "peak_gpu_bytes"})
"""Metrics for which a terminal has no room beside several engines, unless each has a row."""
VALID_TRIALS = "valid trials"
_UNITS_IN_FULL = {"tok/s": "tokens/s", "/s": "per second", "/h": "per hour"}
_MAX_REASONS = 4
_INTERVALS = "[low, high]: 95 % interval over the valid trials"
_SINGLE = "one trial: no interval; three or more give one"
_Place = tuple[Level, MeasuredCell]


class Layout(Enum):
    """Which way a summary runs."""

    BY_METRIC = auto()
    BY_ENGINE = auto()


def layout_of(run: Run) -> Layout:
    """The layout of a summary that has room for either."""
    is_one = len(engines_of(run)) == 1 and len(levels_of(run)) <= MAX_LOADS
    return Layout.BY_METRIC if is_one else Layout.BY_ENGINE


def summary_metrics(run: Run) -> list[Metric]:
    """The metrics of the summary, in order; failed requests are counted beside them."""
    return [CATALOGUE[name] for name in run.summarised if name != "failures"]


def summary_tables(run: Run, layout: Layout) -> list[Table]:
    """The tables of one layout: one by engine; by metric one of the only engine, or of several one for each load."""
    levels = [(level, level.cells) for level in levels_of(run) if level.cells]
    places = [(level, cell) for level, cells in levels for cell in cells]
    judgements = _Judgements(run)
    if layout is Layout.BY_ENGINE:
        return [_by_engine(_Figures(run, places, judgements))]
    if len(engines_of(run)) == 1:
        (engine,) = engines_of(run)
        if len(places) == 1:
            return [_of_one(_Figures(run, places, judgements))]
        return [_by_metric(_Figures(run, places, judgements), [level.heading for level, _ in places], engine)]
    main = primary_load(level.load for level, _ in levels)
    levels.sort(key=lambda pair: pair[0].load != main)  # that of the verdict first
    tables = [
        _by_metric(
            _Figures(run, [(level, cell) for cell in cells], judgements),
            [cell.engine for cell in cells],
            level.heading,
        )
        for level, cells in levels
    ]
    earlier = [{note for table in tables[:place] for note in table.notes} for place in range(len(tables))]
    return [
        msgspec.structs.replace(table, notes=[note for note in table.notes if note not in repeated])
        for table, repeated in zip(tables, earlier, strict=True)
    ]


def _of_one(drawn: "_Figures") -> Table:
    """Of one engine at one load: interval and client error have columns of their own."""
    ((level, cell),) = drawn.places

    def row(metric: Metric) -> list[Cell]:
        figure = drawn.figure(metric, level, cell)
        error = error_of(cell, metric.name).text if metric.name in WITH_ERROR and cell.client_error else ""
        name = Cell(drawn.title(metric, in_full=True), link=f"#metric-{metric.family}")
        value = msgspec.structs.replace(figure, detail="", picture=None)
        return [name, value, Cell(figure.detail), Cell(error), msgspec.structs.replace(figure, text="", detail="")]

    rows = [row(metric) for metric in drawn.metrics]
    counts = [[*_capital(row), Cell(""), Cell(""), Cell("")] for row in drawn.counts()]
    bounds = "two trials" if any(each.pair for each in cell.intervals.values()) else "95 % interval"
    columns = [*names("metric"), *figures(["value", bounds, "client error"]), Column("trials", Kind.PICTURE)]
    single = {2, 4} if cell.planned == 1 else set[int]()
    shown = [number for number in range(len(columns)) if number not in single]
    return Table(
        "Summary",
        [columns[number] for number in shown],
        [[row[number] for number in shown] for row in [*rows, *counts]],
        f"{level.heading}, {cell.engine}",
        notes=drawn.notes(is_alone=True),
    )


def _by_metric(drawn: "_Figures", heads: Sequence[str], title: str) -> Table:
    rows = [
        [
            Cell(drawn.title(metric, in_full=True), link=f"#metric-{metric.family}"),
            *(drawn.figure(metric, level, cell) for level, cell in drawn.places),
        ]
        for metric in drawn.metrics
    ]
    return Table(
        "Summary",
        [*names("metric"), *figures(heads)],
        [*rows, *map(_capital, drawn.counts())],
        title,
        notes=drawn.notes(),
    )


def _by_engine(drawn: "_Figures") -> Table:
    counts = [row for row in drawn.counts() if row[0].text != VALID_TRIALS]
    columns = [
        Column("load", Kind.GROUP),
        *names("engine"),
        *(
            Column(drawn.title(metric), is_wide=metric.name in _WIDE, anchor=f"metric-{metric.family}")
            for metric in drawn.metrics
        ),
        *(Column(name.text, anchor=name.link[1:]) for name, *_ in counts),
    ]
    rows = [
        [
            Cell(level.heading),
            msgspec.structs.replace(drawn.engine_cell(cell.engine), detail=f"{cell.valid}/{cell.planned} valid"),
            *(drawn.figure(metric, level, cell) for metric in drawn.metrics),
            *(row[number + 1] for row in counts),
        ]
        for number, (level, cell) in enumerate(drawn.places)
    ]
    return Table("Summary", columns, rows, notes=drawn.notes())


class _Figures:
    """The cells of a summary, and the notes on what they lack."""

    def __init__(self, run: Run, places: Sequence[_Place], judgements: "_Judgements") -> None:
        self.places: Sequence[_Place] = places
        self.engine_cell: Callable[[str], Cell] = engine_cells(run)
        self._run, self._judgements = run, judgements
        self._lacks: dict[str, list[str]] = {}
        self.metrics: list[Metric] = [metric for metric in summary_metrics(run) if self._has(metric)]
        self._like = {metric.name: _smallest(metric, [cell for _, cell in places]) for metric in self.metrics}

    def _has(self, metric: Metric) -> bool:
        """Whether any place has the metric; one that none has is only noted."""
        if any(metric.name in {**cell.intervals, **cell.unjudged} for _, cell in self.places):
            return True
        self._lack(_subject(metric), self.places[0][1].reasons[metric.name])
        return False

    def title(self, metric: Metric, *, in_full: bool = False) -> str:
        """``TTFT p50, ms``, or ``Time to first token (TTFT) p50, ms``."""
        name = (metric.in_full or metric.title) if in_full else metric.title
        unit = unit_beside(metric.unit, self._like[metric.name])
        if in_full:
            name, unit = f"{name[:1].upper()}{name[1:]}", _UNITS_IN_FULL.get(unit, unit)
        return f"{name}, {unit}" if unit else name

    def figure(self, metric: Metric, level: Level, cell: MeasuredCell) -> Cell:
        """Centre, bounds and the strip of its trials."""
        interval = cell.intervals.get(metric.name)
        link, picture = f"#metric-{metric.family}", lambda: self._strip(metric, level, cell)
        like = self._like[metric.name]
        if interval is None and (value := cell.unjudged.get(metric.name)) is not None:
            self._lack("in parentheses", UNJUDGED)
            text = f"({scale_beside(metric.unit, value, like).number(value)})"
            return Cell(text, tone=Tone.ZERO, picture=picture, link=link)
        if interval is None:
            self._lack(_subject(metric), cell.reasons[metric.name])
            return Cell(ABSENT, tone=Tone.ZERO, picture=picture)
        if interval.reason:
            self._lack("", _SINGLE if interval.n == 1 else interval.reason)
        elif interval.n < cell.valid:
            self._lack(metric.title, f"{interval.n} of {cell.valid} valid trials have it")
        scale = scale_beside(metric.unit, interval.centre, like)
        tone = Tone.BETTER if self._judgements.is_best(metric, level, cell) else None
        bounds = bounds_text(interval, scale)
        detail = f"({bounds})" if interval.pair else bounds
        return Cell(scale.number(interval.centre), detail, tone, "", picture, link)

    def counts(self) -> list[list[Cell]]:
        """Rows of what is counted rather than timed: a name, then a figure for each place."""
        failed = [Cell("failed requests", link="#failures"), *(_failures(cell) for _, cell in self.places)]
        valid = [
            Cell(VALID_TRIALS, link="#trials"),
            *(Cell(f"{cell.valid} of {cell.planned}", link="#trials") for _, cell in self.places),
        ]
        flights = [level.pausing(cell) for level, cell in self.places]
        in_flight = [Cell("requests in flight", link="#metric-requests_in_flight")]
        in_flight += [Cell(ABSENT if mean is None else f"{mean:.3g}", link=in_flight[0].link) for mean in flights]
        rows = [failed, valid, *([in_flight] if any(mean is not None for mean in flights) else [])]
        if not unchecked_text(self._run):
            rows.append([Cell("token match", link="#answers"), *(self._match(cell) for _, cell in self.places)])
        return rows

    def notes(self, *, is_alone: bool = False) -> list[str]:
        """What the table lacks and why, and what its marks mean."""
        reasons = [
            f"{listed([subject for subject in subjects if subject])}: {reason}" if any(subjects) else reason
            for reason, subjects in self._lacks.items()
        ]
        if len(reasons) > _MAX_REASONS:
            left = len(reasons) - _MAX_REASONS + 1
            reasons = [*reasons[: _MAX_REASONS - 1], f"{left} more reasons of missing figures are on the report's page"]
        has_bounds = not is_alone and any(
            each.low is not None for _, cell in self.places for each in cell.intervals.values()
        )
        legend = [_INTERVALS] if has_bounds else []
        return [*reasons, *legend, *self._error_notes(is_alone=is_alone), *self._match_notes()]

    def _lack(self, subject: str, reason: str) -> None:
        subjects = self._lacks.setdefault(reason, [])
        if subject not in subjects:
            subjects.append(subject)

    def _match(self, cell: MeasuredCell) -> Cell:
        match = match_of(cell)
        if match.why:
            self._lack("token match", match.why)
        elif match.note:
            self._lack("token match", match.note)
        return Cell(
            match.text,
            f"{match.answers} answers" if match.answers else "",
            Tone.BAD if match.differs else None,
            link="#answers",
        )

    def _error_notes(self, *, is_alone: bool) -> Iterator[str]:
        """The client's own error, where it has no column of its own, or why it is unknown."""
        if why := uncalibrated_text(self._run):
            yield f"client error unknown: {why}"
            return
        known = {
            CATALOGUE[name].title: max(errors, key=lambda pair: pair[0])[1]
            for name in WITH_ERROR
            if (errors := [(cell.error_s(name) or 0.0, error_of(cell, name).text) for _, cell in self.places
                           if cell.error_s(name) is not None])
        }  # fmt: skip
        if known and not is_alone:
            yield f"client error: at most {', '.join(f'{text} in {title}' for title, text in known.items())}"
        whys: dict[str, list[str]] = {}
        for level, cell in self.places:
            if cell.client_error is None:
                whys.setdefault(error_of(cell, WITH_ERROR[0]).why, []).append(f"{cell.engine}, {level.title}")
        yield from (f"client error of {listed(of)}: {why}" for why, of in whys.items())

    def _match_notes(self) -> Iterator[str]:
        if why := unchecked_text(self._run):
            yield f"no token match: {why}"
        else:
            yield "token match: share of sampled output tokens that the same weights find likeliest in float32"

    def _strip(self, metric: Metric, level: Level, cell: MeasuredCell) -> Markup:
        trials = [(each, self._run.trials_of(each)) for each in level.cells]
        axis = _axis(metric, trials)
        done = next(own for each, own in trials if each is cell)
        valid, invalid = (_values(done, metric, verdict) for verdict in (Verdict.VALID, Verdict.INVALID))
        values = ", ".join(value_text(metric.unit, value) for value in valid) or ABSENT
        if invalid:
            values += f"; INVALID: {', '.join(value_text(metric.unit, value) for value in invalid)}"
        title, colour = f"{metric.title} of each trial: {values}", self.engine_cell(cell.engine).colour
        return dot_strip(title, axis, valid, invalid=invalid, interval=cell.intervals.get(metric.name), colour=colour)


def _subject(metric: Metric) -> str:
    """What a reason is said of: the latency, since the reason names the percentile."""
    return LATENCIES[metric.latency].title if metric.latency else metric.title


def _capital(row: list[Cell]) -> list[Cell]:
    """A row whose first cell, the name, stands among names in words."""
    name = row[0].text
    return [msgspec.structs.replace(row[0], text=f"{name[:1].upper()}{name[1:]}"), *row[1:]]


def _failures(cell: MeasuredCell) -> Cell:
    failed, planned = cell.failures
    text = f"{failed:,} of {planned:,}" if planned else f"{ABSENT} none in a window"
    share = f"({percent_text(failed / planned, 1)})" if failed else ""
    return Cell(text, share, Tone.BAD if failed else None, link="#failures")


def _smallest(metric: Metric, cells: Sequence[MeasuredCell]) -> float:
    """The magnitude whose unit the metric's figures share; 0 if there is none."""
    centres = [cell.intervals[metric.name].centre for cell in cells if metric.name in cell.intervals]
    centres += [cell.unjudged[metric.name] for cell in cells if metric.name in cell.unjudged]
    return min((abs(centre) for centre in centres if centre), default=0.0)


def _axis(metric: Metric, trials: Sequence[tuple[MeasuredCell, list[Trial]]]) -> Axis:
    return strip_axis([value for _, done in trials for verdict in Verdict for value in _values(done, metric, verdict)])


def _values(trials: Sequence[Trial], metric: Metric, verdict: Verdict) -> list[float]:
    return [
        value
        for trial in trials
        if trial.record.verdict is verdict and (value := trial.metrics[metric.name].value) is not None
    ]


class _Judgements:
    """The judgements of ``bakeoff compare`` between the engines of a run, each pair compared once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._compared: dict[tuple[str, str], dict[tuple[str, str], Judgement]] = {}

    def is_best(self, metric: Metric, level: Level, cell: MeasuredCell) -> bool:
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
