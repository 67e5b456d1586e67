"""Background of the numbers: engines, machine, definitions, configuration and reproduction."""

import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from bakeoff.results.metrics import CATALOGUE, Metric, Unit
from bakeoff.results.metrics.catalogue import LATENCIES
from bakeoff.results.metrics.declaration import QUANTILES
from bakeoff.results.records import EngineDescription
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.report.clients import client_rows
from bakeoff.results.report.quality import match_of
from bakeoff.results.report.section import Section
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.levels import engines_of, levels_of
from bakeoff.results.run.run import Run
from bakeoff.results.text.format import ABSENT, interval_text, value_text


class EngineCard(msgspec.Struct, frozen=True):
    """One engine's description of itself.

    Attributes:
        label: of the engine.
        colour: class of its colour.
        facts: names and texts.
        unknown: facts that it does not report.
        changed: what differs between its starts.
    """

    label: str
    colour: str
    facts: list[tuple[str, str]]
    unknown: list[str]
    changed: list[str]


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


class Entry(msgspec.Struct, frozen=True):
    """One value of the table; the text of an absent value is its reason."""

    text: str
    known: bool


class MetricTable(msgspec.Struct, frozen=True):
    """Every metric at one level: a row per metric and one for the token match, a column per engine."""

    level: str
    engines: list[str]
    rows: list[tuple[str, Metric, list[Entry]]]
    token_match: list[str]


def engine_cards(run: Run) -> list[EngineCard]:
    """Build one card per engine, from its first finished trial."""
    return [_card(run, engine, i) for i, engine in enumerate(engines_of(run))]


def metric_tables(run: Run) -> list[MetricTable]:
    """Build the tables of all metrics, absent ones with their reason."""
    return [
        MetricTable(
            level.title,
            [cell.engine for cell in level.cells],
            [(metric.family, metric, [_entry(cell, metric) for cell in level.cells]) for metric in CATALOGUE.values()],
            [_token_match(cell) for cell in level.cells],
        )
        for level in levels_of(run)
    ]


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


def _card(run: Run, engine: str, position: int) -> EngineCard:
    described = [
        trial.record.engine_description
        for trial in run.finished
        if trial.record.engine == engine and trial.record.engine_description is not None
    ]
    colour = engine_class(position)
    if not described:
        return EngineCard(engine, colour, [], ["description (no trial of this engine ended with one)"], [])
    first = described[0]
    fields: list[tuple[str, str | None]] = [
        ("adapter", first.adapter),
        ("version", first.version),
        ("command", " ".join(first.argv) or None),
        ("address", first.url),
        ("model", first.model),
        ("model SHA-256", first.model_sha256),
        *flattened(first.details),
    ]
    facts = [(name, text) for name, text in fields if text is not None]
    absent = [name for name, text in fields if text is None]
    return EngineCard(engine, colour, facts, absent, _changed(described))


def _changed(described: Sequence[EngineDescription]) -> list[str]:
    """What differs between an engine's starts; the port that the launcher chose does not count."""
    known = {
        "version": {one.version for one in described},
        "command": {tuple(_without_port(one)) for one in described},
        "model": {one.model_sha256 for one in described},
    }
    return [name for name, values in known.items() if len(values) > 1]


def _without_port(described: EngineDescription) -> list[str]:
    port = urllib.parse.urlsplit(described.url or "").port
    return [part.replace(str(port), "PORT") if port else part for part in described.argv]


def _entry(cell: Cell, metric: Metric) -> Entry:
    interval = cell.intervals.get(metric.name)
    if interval is None:
        return Entry(f"{ABSENT} {cell.reasons[metric.name]}", known=False)
    return Entry(interval_text(metric, interval), known=True)


def _token_match(cell: Cell) -> str:
    match = match_of(cell)
    return f"{match.text} {match.why or f'{match.answers} answers'}"


SECTIONS = (
    Section(
        id="engines",
        title="Engines",
        shows="version, command and model of each engine",
        place=140,
        build=lambda run: {"engines": engine_cards(run)},
    ),
    Section(
        id="environment",
        title="Environment",
        shows="the machine and the client workers",
        place=150,
        build=lambda run: {"environment": environment(run), "clients": client_rows(run)},
    ),
    Section(
        id="configuration",
        title="Experiment",
        shows="the experiment as it was run",
        place=170,
        build=lambda run: {"configuration": configuration(run)},
    ),
    Section(
        id="reproduce",
        title="Reproduce",
        shows="the commands that repeat it",
        place=180,
        build=lambda run: {"reproduction": reproduction(run)},
    ),
)
