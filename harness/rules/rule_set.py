"""Sets of rules, read from files, and what breaks them."""

import math
import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.harness.errors import BadExperiment
from bakeoff.workloads.options import nearest, typed_options

STEADY = "steady"
"""The default."""
_FOLDER = resources.files("bakeoff.harness.rules")


class Start(StrEnum):
    """Where sessions are when the measured load begins."""

    LONG_RUN = "long-run"
    """Where a load that has run for long would find them; see :mod:`bakeoff.harness.traffic.session_law`."""
    MID_SESSION = "mid-session"
    """At a uniform point of a part of their recorded time."""
    FIRST_CALL = "first-call"
    """At their first call."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a trial must fulfil after the fact; None for no limit."""

    min_duration_s: float | None = None
    """Least ``trial.duration_s``."""
    max_refused_share: float | None = None
    """Largest share of requests that the server refuses because the prompt is longer than its context."""
    min_answer_span: float | None = None
    """Tokens arrive until at least this share of ``trial.duration_s``."""


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A set of rules."""

    name: str
    """With its version."""
    summary: str
    source: str
    """Where the rules are stated."""
    start: Start
    start_share: tuple[float, float] = (0.0, 1.0)
    """``mid-session``: the part of the recorded time, from the first to the last call's start."""
    start_seed: int | None = None
    """``mid-session``: seed of the points; None for the experiment's."""
    first_at_once: bool = False
    """``mid-session``: whether the load begins with the first call, instead of at the sessions' points."""
    has_primers: bool = False
    """Whether the last call of each agent before the session's point is sent first, for one token of answer."""
    warm_up_calls: int = 0
    """Further calls of each session that are sent first, for one token of answer and without pauses."""
    idle_cap_s: float | None = None
    """Longest time in which no session has a request in flight; all pauses are then shortened alike."""
    session_idle_cap_s: float | None = None
    """The same for each session, sub-agents included."""
    by_count: bool = False
    """Whether the load ends with the workload's sessions instead of after ``trial.duration_s``; the window then closes
    when a slot finds no further session."""
    grace_s: float | None = None
    """Seconds after the end in which answers still count; None until the last has ended."""
    limits: Limits = Limits()
    trace: dict[str, Any] = {}
    """Options of the workload ``trace``; None for one that must not be set."""
    experiment: dict[str, Any] = {}
    """Values of the experiment. Another ``trial.duration_s`` is by the rules if there is a least one."""
    remarks: tuple[str, ...] = ()
    """What the rules say that is not checked or done otherwise."""

    def __post_init__(self) -> None:
        low, high = self.start_share
        if not 0 <= low <= high <= 1:
            raise ValueError(f"start_share must be two numbers between 0 and 1, the lower first, not {low}, {high}")
        is_own = self.has_primers or self.warm_up_calls or self.caps_idle_time or self.by_count
        if self.start is Start.LONG_RUN and (is_own or self.grace_s is not None):
            raise ValueError("rules that start in the long run have no warm-up, no caps and no end of their own")

    @property
    def caps_idle_time(self) -> bool:
        """Whether pauses are shortened while nothing is in flight."""
        return self.idle_cap_s is not None or self.session_idle_cap_s is not None


def rule_sets() -> tuple[Rules, ...]:
    """The built-in sets by name, the default first."""
    files = (file for file in _FOLDER.iterdir() if file.name.endswith(".toml"))
    sets = (_parsed(file.read_text(encoding="utf-8"), file.name) for file in files)
    return tuple(sorted(sets, key=lambda rules: (rules.name != STEADY, rules.name)))


def rules_named(name: str) -> Rules:
    """A built-in set, or the one of a file whose name ends in ``.toml``.

    Raises:
        BadExperiment: there is no such set, or the file cannot be read or has a mistake.
    """
    if name.endswith(".toml"):
        try:
            return _parsed(Path(name).read_text(encoding="utf-8"), name)
        except (OSError, UnicodeDecodeError) as error:
            raise BadExperiment(f"rules {name} cannot be read: {error}") from error
    known = {rules.name: rules for rules in rule_sets()}
    if name not in known:
        raise BadExperiment(f"unknown rules '{name}'; {nearest(name, known)}")
    return known[name]


def with_rules(data: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment as plain data, with the values that its rules set where it has none of its own.

    Raises:
        BadExperiment: as :func:`rules_named`.
    """
    name = data.get("rules", STEADY)
    if not isinstance(name, str):
        return dict(data)
    rules = rules_named(name)
    filled = _filled(data, rules.experiment)
    request = data.get("request")
    if isinstance(request, dict) and "temperature" in request:  # a field is either set or left out
        filled["request"] = request
    workload = filled.get("workload")
    if isinstance(workload, dict) and workload.get("name") == "trace" and rules.trace:
        given = {option: value for option, value in rules.trace.items() if value is not None}
        filled["workload"] = _filled(workload, {"options": given})
    return filled


def broken(experiment: msgspec.Struct, rules: Rules) -> Iterator[str]:
    """What of an experiment breaks the rules."""
    for path, wanted in _leaves(rules.experiment):
        value = _at(experiment, path)
        is_default = path == "trial.max_window_s" or (path == "trial.duration_s" and rules.limits.min_duration_s)
        if value != wanted and not is_default:
            yield f"{path} is {_text(value)}, not {_text(wanted)}"
    workload = _at(experiment, "workload.name")
    options = _at(experiment, "workload.options") or {}
    for option, wanted in rules.trace.items():
        if workload == "trace" and options.get(option) != wanted:
            yield f"workload.options.{option} is {_text(options.get(option))}, not {_text(wanted)}"
    least_s, duration_s = rules.limits.min_duration_s, _at(experiment, "trial.duration_s")
    if least_s is not None and not rules.by_count and duration_s < least_s:
        yield f"trial.duration_s is {duration_s:g}, less than {least_s:g}"
    workers = _at(experiment, "client.workers")
    if rules.idle_cap_s is not None and workers != 1:
        yield f"client.workers is {workers}: each worker caps the idle time of its own sessions"


def _parsed(text: str, owner: str) -> Rules:
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadExperiment(f"rules {owner} are not TOML: {error}") from error
    return typed_options(Rules, data | {"trace": _unset(data.get("trace", {}))}, f"rules {owner}", BadExperiment)


def _unset(options: Any) -> Any:  # noqa: ANN401  (checked by the caller)
    """Options with ``unset``, as TOML has no null, replaced by None."""
    if not isinstance(options, dict):
        return options
    return {name: None if value == "unset" else value for name, value in options.items()}


def _filled(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` with the defaults that it lacks, table by table."""
    filled = dict(data)
    for name, value in defaults.items():
        own = filled.get(name)
        if name not in filled:
            filled[name] = value
        elif isinstance(own, Mapping) and isinstance(value, Mapping):
            filled[name] = _filled(own, value)
    return filled


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value


def _at(data: Any, path: str) -> Any:  # noqa: ANN401  (plain data)
    for name in path.split("."):
        data = data.get(name) if isinstance(data, Mapping) else getattr(data, name, None)
    return data


def _text(value: Any) -> str:  # noqa: ANN401  (plain data)
    if value is None:
        return "unset"
    return f"{value:g}" if isinstance(value, float) and math.isfinite(value) else str(value).lower()
