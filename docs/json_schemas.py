"""JSON Schema of what each command prints with ``--json``: ``make docs`` writes docs/json-schemas.json.

What a command prints as a dict is declared here as a type; the rest are types of the product.
"""

from typing import Any, TypedDict

import msgspec

from bakeoff.engines.doctor import Finding
from bakeoff.engines.machine import Machine
from bakeoff.harness.host.doctor import Check
from bakeoff.harness.rules.rule_set import Rules
from bakeoff.harness.sizing.plan import Plan
from bakeoff.harness.traffic.profile import ShownProfile
from bakeoff.results.attribution.difference import Difference
from bakeoff.results.compare.comparison import EngineComparison
from bakeoff.results.compare.evaluation import Evaluation
from bakeoff.results.compare.floor import FloorCell
from bakeoff.results.compare.gate import GateVerdict
from bakeoff.results.compare.series import Series
from bakeoff.results.log.search import SearchRecord
from bakeoff.results.machine.calibration import Calibration
from bakeoff.results.machine.ceilings import Ceilings
from bakeoff.results.records import RunStatus
from bakeoff.results.run.address_pages import AddressPage
from bakeoff.results.run.capacity import Capacity
from bakeoff.results.run.cells import Cell
from bakeoff.results.run.frontier import FrontierPoint
from bakeoff.results.run.groups import RequestGroup

Row = dict[str, Any]
"""A row of a table: its cells by column."""


class Addresses(TypedDict):
    """Requests by address, and the metrics pages of addresses."""

    requests: list[RequestGroup]
    pages: list[AddressPage]


class ShownRun(TypedDict):
    """A run: its table, and where its page is."""

    run: str
    report: str
    traces: list[str]
    attribution: list[Row]
    status: RunStatus
    search: SearchRecord | None
    capacities: list[Capacity]
    cells: list[Cell]
    addresses: Addresses
    objectives: list[Row]
    warnings: list[str]
    invalid: dict[str, list[str]]


class ShownSearch(TypedDict):
    """A capacity search."""

    run: str
    report: str
    answer: str | None
    search: SearchRecord | None
    capacities: list[Capacity]
    frontier: list[FrontierPoint]


class Adapter(TypedDict):
    """An adapter, the names of its options and the settings that it spells."""

    name: str
    options: list[str]
    spec: list[str]
    problem: str | None


class Catalogue(TypedDict):
    """Adapters and environments."""

    engines: list[Adapter]
    environments_folder: str
    environments: list[Row]


class EnginesHere(TypedDict):
    """Which engines can run here."""

    machine: Machine
    engines: list[Finding]


class Named(TypedDict):
    """What was fetched or installed, and where it is."""

    name: str
    folder: str


class KnownModel(TypedDict):
    """A model that can be fetched; ``folder`` is null until then."""

    name: str
    licence: str | None
    folder: str | None


class Served(TypedDict):
    """A server that is ready."""

    url: str
    model: str
    pid: int | None
    log: str
    version: str | None
    argv: list[str]
    env: dict[str, str]
    start_s: float | None


class Figure(TypedDict):
    """A figure of a trace beside that of its preset."""

    name: str
    trace: float
    preset: float
    difference: float
    tolerance: float
    is_within: bool


class Fitted(TypedDict):
    """A preset that was fitted to a trace."""

    path: str
    requests: int
    sessions: int
    figures: list[Figure]
    arrivals: str
    poor: list[str]
    notes: list[str]


class Rehearsed(TypedDict):
    """A dry run that found everything in place."""

    dry_run: bool


class Undecided(TypedDict):
    """A gate without evidence."""

    sentence: str
    outcome: str


MEASURED = (ShownRun, Rehearsed)
PRINTED: dict[str, tuple[Any, ...]] = {
    "demo": MEASURED,
    "bench": MEASURED,
    "run": MEASURED,
    "profile": MEASURED,
    "report": (ShownRun,),
    "import": (ShownRun,),
    "search": (ShownSearch, Rehearsed),
    "compare": (EngineComparison, list[Difference]),
    "gate": (GateVerdict, Undecided),
    "history": (list[Series],),
    "doctor": (list[Check], EnginesHere),
    "plan": (Plan,),
    "engines list": (Catalogue,),
    "engines install": (Named,),
    "models list": (list[KnownModel],),
    "models pull": (Named,),
    "models eval": (Evaluation,),
    "export": (list[str],),
    "serve": (Served,),
    "workloads list": (dict[str, Any],),
    "workloads rules": (list[Rules],),
    "workloads show": (ShownProfile,),
    "workloads fit": (Fitted,),
    "lab calibrate": (Calibration,),
    "lab floor": (list[FloorCell],),
    "lab machine": (list[Ceilings],),
}
"""What each command prints: one of these types. ``compare`` and ``gate`` add ``tables``, the rows of a terminal."""


def schemas() -> dict[str, Any]:
    """The schemas of all commands, and the definitions that they share."""
    types = [each for given in PRINTED.values() for each in given]
    made, components = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    left = iter(made)
    commands = {name: {"anyOf": [next(left) for _ in given]} for name, given in PRINTED.items()}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "commands": commands, "$defs": components}


def text() -> str:
    """The file."""
    return msgspec.json.format(msgspec.json.encode(schemas()), indent=1).decode() + "\n"
