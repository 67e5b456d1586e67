"""What each engine is, what it was told, and what it reports to run with."""

import itertools
import shlex
from collections.abc import Sequence

import msgspec

from bakeoff.results.records import EngineDescription
from bakeoff.results.report.charts.svg import engine_class
from bakeoff.results.report.engine_settings import difference_text, setting_rows, starts_of
from bakeoff.results.report.section import Section
from bakeoff.results.report.sections.background import flattened
from bakeoff.results.run.levels import engines_of
from bakeoff.results.run.run import Run
from bakeoff.results.text.format import ABSENT


class EngineCard(msgspec.Struct, frozen=True):
    """One engine.

    Attributes:
        label: of the engine.
        colour: class of its colour.
        identity: what it is, as names and texts.
        command: words that started it; its address alone if it ran already; empty if no trial says.
        environment: variables that it was given.
        requests: what its requests carried besides prompt and length, as names and texts.
        reported: everything that it reports, as names and texts.
        changed: what differs between its starts.
    """

    label: str
    colour: str
    identity: list[tuple[str, str]]
    command: list[str]
    environment: list[str]
    requests: list[tuple[str, str]]
    reported: list[tuple[str, str]]
    changed: list[str]


def engine_cards(run: Run) -> list[EngineCard]:
    """Build one card per engine, from its first finished trial."""
    return [_card(engine, starts, i) for i, (engine, starts) in enumerate(starts_of(run).items())]


def _card(engine: str, starts: Sequence[EngineDescription], position: int) -> EngineCard:
    colour = engine_class(position)
    if not starts:
        return EngineCard(engine, colour, [], [], [], [], [], [])
    first = starts[0]
    return EngineCard(
        label=engine,
        colour=colour,
        identity=[
            ("engine", f"{first.adapter} {first.version or '(version not reported)'}"),
            ("model", first.model or "not reported"),
        ],
        command=[shlex.quote(word) for word in first.argv] or list(filter(None, [_place(first)])),
        environment=[f"{name}={value}" for name, value in first.env.items()],
        requests=list(flattened(first.request)),
        reported=list(flattened(first.details)),
        changed=_changed(starts),
    )


def _place(description: EngineDescription) -> str | None:
    """Where a running engine is: its address, or all of them with their roles and the rule that divides requests."""
    if not description.addresses:
        return description.url
    places = ", ".join(f"{address.url} ({address.role})" for address in description.addresses)
    return f"{places}; {description.balance}" if description.balance else places


def _changed(starts: Sequence[EngineDescription]) -> list[str]:
    """What differs between an engine's starts, with two of its values."""
    texts = {
        "version": [one.version or "not reported" for one in starts],
        "command": [shlex.join(_comparable(one)) for one in starts],
        "weights, SHA-256": [one.model_sha256 or "not known" for one in starts],
    }
    known = {name: list(dict.fromkeys(values)) for name, values in texts.items()}
    return [f"{name}: {values[0]}, then {values[1]}" for name, values in known.items() if len(values) > 1]


def _comparable(start: EngineDescription) -> list[str]:
    """The command without what is drawn for each start."""
    # Logs from before `drawn` existed: the launcher drew the port, which every adapter spells --port.
    drawn = start.drawn or [port for flag, port in itertools.pairwise(start.argv) if flag == "--port"]
    words = start.argv
    for part in drawn:
        words = [word.replace(part, ABSENT) for word in words]
    return words


SECTIONS = (
    Section(
        id="engines",
        title="Engines",
        shows=(
            "each engine: what it is, what it was told and what it reports to run with; shared settings side by side, "
            "those that differ first"
        ),
        place=19,
        build=lambda run: {
            "engines": engine_cards(run),
            "labels": engines_of(run),
            "difference": difference_text(run),
            "settings": sorted(setting_rows(run), key=lambda row: not row.differs),
        },
    ),
)
