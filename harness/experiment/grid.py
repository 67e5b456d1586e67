"""Grids over an engine's settings: one engine of an experiment becomes one for each combination of their values."""

import copy
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from bakeoff.engines.secrets import names_secret
from bakeoff.harness.errors import BadExperiment

MAX_COMBINATIONS = 256
"""Each is launched in every repeat."""
MAX_LABEL = 150
"""Characters of a label, which names folders."""
_TABLES = ("spec", "options", "request", "env")
"""Tables of an engine that a grid may set."""
_HELP = 'write it like grid = { "spec.max_num_seqs" = [16, 64] }'


def with_grids(data: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """An experiment as plain data, in which no engine has a grid.

    Args:
        data: as in the TOML file.
        owner: names the data in error messages.

    Raises:
        BadExperiment: a grid is malformed.
    """
    engines = data.get("engines")
    if not isinstance(engines, list):
        return dict(data)
    bases = [_base(engine) for engine in engines if isinstance(engine, Mapping) and engine.get("grid")]
    if twice := [base for base in bases if bases.count(base) > 1]:
        raise BadExperiment(f"{owner}: two engines with a grid are called '{twice[0]}'; set label")
    return {**data, "engines": [each for engine in engines for each in _expanded(engine, owner)]}


def _expanded(engine: object, owner: str) -> Iterator[object]:
    if not isinstance(engine, Mapping) or not (grid := engine.get("grid")):
        yield engine
        return
    base = _base(engine)
    _check(grid, f"{owner}: the grid of engine '{base}'")
    for table in dict.fromkeys(setting.partition(".")[0] for setting in grid):
        if not isinstance(engine.get(table, {}), Mapping):
            raise BadExperiment(f"{owner}: {table} of engine '{base}' is no table")
    plain = {name: value for name, value in engine.items() if name != "grid"}
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        combination = copy.deepcopy(plain)
        for setting, value in settings.items():
            table, _, name = setting.partition(".")
            combination.setdefault(table, {})[name] = value
        label = "-".join([base, *(f"{_last(setting)}-{_as_name(value)}" for setting, value in settings.items())])
        if len(label) > MAX_LABEL:
            raise BadExperiment(f"{owner}: the label '{label[:40]}…' is too long; give shorter values, or fewer")
        yield {**combination, "label": label, "point": {"base": base, "values": settings}}


def _base(engine: Mapping[Any, Any]) -> str:
    """Name of an engine without its settings."""
    return str(engine.get("label") or engine.get("adapter"))


def _check(grid: object, owner: str) -> None:
    """Raises BadExperiment for a grid that is no table of settings and their values."""
    if not isinstance(grid, Mapping):
        raise BadExperiment(f"{owner} is no table; {_HELP}")
    for setting, values in grid.items():
        table, _, name = setting.partition(".")
        if table not in _TABLES or not name:
            raise BadExperiment(f"{owner} has '{setting}', which is not in {', '.join(_TABLES)}; {_HELP}")
        if not isinstance(values, list) or not values:
            raise BadExperiment(f"{owner} has no list of values for '{setting}'; {_HELP}")
        if any(isinstance(value, dict | list) for value in values):
            raise BadExperiment(f"{owner} has a value of '{setting}' that is no number, text or truth value")
        if table == "env" and names_secret(name):
            raise BadExperiment(f"{owner} has '{setting}', whose values would be written into labels; set it in env")
        if any(a == b or _as_name(a) == _as_name(b) for a, b in itertools.combinations(values, 2)):
            raise BadExperiment(f"{owner} has a value of '{setting}' twice; remove one")
    if (count := math.prod(len(values) for values in grid.values())) > MAX_COMBINATIONS:
        raise BadExperiment(f"{owner} has {count:,} combinations, and {MAX_COMBINATIONS} is the most; remove values")


def _last(setting: str) -> str:
    return setting.rpartition(".")[2]


def _as_name(value: object) -> str:
    """A value as part of a label, which has letters, digits and ``.-_`` only."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "".join(c if c.isalnum() or c in "._-" else "." for c in text)
