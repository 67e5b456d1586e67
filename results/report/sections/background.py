"""Background of the numbers: machine, definitions, configuration and reproduction."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from bakeoff.results.metrics import CATALOGUE, Metric, Unit
from bakeoff.results.metrics.catalogue import LATENCIES
from bakeoff.results.metrics.declaration import QUANTILES
from bakeoff.results.report.clients import client_table
from bakeoff.results.report.quality import match_of, unchecked_text
from bakeoff.results.report.section import Section
from bakeoff.results.run.cells import Cell as MeasuredCell
from bakeoff.results.run.levels import Level, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.show.table import Cell, Table, names
from bakeoff.results.text.format import ABSENT, interval_text, value_text


class Definition(msgspec.Struct, frozen=True):
    """One row of the definitions.

    Attributes:
        key: metric family, for links.
        title: without the percentile.
        unit: of the value.
        better: direction of improvement.
        definition: definition in one clause.
        names: columns in data frames, keys in JSON.
        observation: what one observation is.
        span: part of the trial over which observations are counted.
    """

    key: str
    title: str
    unit: str
    better: str
    definition: str
    names: list[str]
    observation: str
    span: str


def metric_tables(run: Run) -> list[Table]:
    """Every metric at each level: a row for each and one for the token match, a column for each engine."""
    return [_metric_table(level, has_answers=not unchecked_text(run)) for level in levels_of(run)]


def _metric_table(level: Level, *, has_answers: bool) -> Table:
    rows = [
        [Cell(metric.title, link=f"#metric-{metric.family}"), *(_entry(cell, metric) for cell in level.cells)]
        for metric in CATALOGUE.values()
    ]
    match = [Cell("token match with the reference", link="#answers"), *map(_token_match, level.cells)]
    columns = names("metric", *(cell.engine for cell in level.cells))
    return Table(f"Every metric at {level.title}", columns, [*rows, *([match] if has_answers else [])], level.title)


def definitions() -> list[Definition]:
    """Return the definition of every metric; the percentiles of one latency share a row."""
    labels = ", ".join(label for label, _ in QUANTILES)
    latencies = [_defined(one.metrics(), one.title, f"{labels} of {one.definition}") for one in LATENCIES.values()]
    singles = [metric for metric in CATALOGUE.values() if metric.family not in LATENCIES]
    return latencies + [_defined([metric], metric.title, metric.definition) for metric in singles]


def environment(run: Run) -> list[tuple[str, str]]:
    """The environment as dotted names and values."""
    return list(flattened(run.manifest.environment))


def configuration(run: Run) -> str:
    """The experiment as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(run.manifest.experiment), indent=2).decode()


def reproduction(run: Run) -> list[str]:
    """Commands that repeat the run."""
    manifest = run.manifest
    commit = manifest.git_commit
    return [
        f"git checkout {commit}" if commit else "# the run was not made from a git checkout",
        f"pip install .            # bakeoff {manifest.bakeoff_version}",
        f"bakeoff run runs/{manifest.run_id}    # the same experiment; the same seed sends the same bytes",
    ]


def flattened(value: Any, name: str = "") -> Iterator[tuple[str, str]]:  # noqa: ANN401  (any JSON)
    """Nested JSON as (dotted name, text)."""
    if not value and isinstance(value, dict | list):
        yield from [(name, f"{ABSENT} (none)")] if name else []
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from flattened(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for i, inner in enumerate(value):
            yield from flattened(inner, f"{name}[{i}]")
    elif isinstance(value, list):
        yield name, " ".join(str(item) for item in value)
    elif value is None:
        yield name, f"{ABSENT} (not known)"
    elif name.endswith("_bytes") and isinstance(value, int):
        yield name, value_text(Unit.BYTES, value)
    else:
        yield name, str(value)


def _defined(metrics: Sequence[Metric], title: str, definition: str) -> Definition:
    return Definition(
        key=metrics[0].family,
        title=title,
        unit=metrics[0].unit.value or "count",
        better=metrics[0].better.value,
        definition=definition,
        names=[metric.name for metric in metrics],
        observation=metrics[0].observation,
        span=metrics[0].span.value,
    )


def _entry(cell: MeasuredCell, metric: Metric) -> Cell:
    interval = cell.intervals.get(metric.name)
    if interval is None:
        return Cell(f"{ABSENT} {cell.reasons[metric.name]}")
    return Cell(interval_text(metric, interval), link=f"#metric-{metric.family}")


def _token_match(cell: MeasuredCell) -> Cell:
    match = match_of(cell)
    return Cell(f"{match.text} {match.why or f'{match.answers} answers'}", link="#answers")


SECTIONS = (
    Section(
        id="environment",
        title="Environment",
        shows="the machine and the client workers",
        place=150,
        folded=True,
        build=lambda run: {"environment": environment(run), "clients": client_table(run)},
    ),
    Section(
        id="configuration",
        title="Experiment",
        shows="the experiment as it was run",
        place=170,
        folded=True,
        build=lambda run: {"configuration": configuration(run)},
    ),
    Section(
        id="reproduce",
        title="How to reproduce",
        shows="the commands that repeat it",
        place=180,
        folded=True,
        build=lambda run: {"reproduction": reproduction(run)},
    ),
)
