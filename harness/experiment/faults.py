"""Faults that an experiment causes under load."""

import itertools
from collections.abc import Sequence
from typing import Annotated

import msgspec

from bakeoff.engines.deployment import Deployment
from bakeoff.results.records import FaultAction

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A fault of one replica, or of an engine that is one server."""

    action: FaultAction
    """``kill``, ``restart``, ``start``, ``stop`` or ``slow``."""
    at_s: Seconds
    """Seconds after the window opens."""
    for_s: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None
    """Seconds until it ends; at a restart, until the replica is started again."""
    engine: str | None = None
    """Name of the engine. Default: every engine."""
    replica: str | None = None
    """Label of the address that it befalls, or ``replica-N`` of those that Bakeoff starts. Default: the only one."""
    share: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.5
    """For ``slow``: share of the time in which its processes stand still."""
    begin: list[str] = []
    """Command that causes it, in place of signals to processes of this machine, as for a server on another host."""
    end: list[str] = []
    """Command that ends it. A restart of a server that ran already needs one, which may be the server itself."""

    @property
    def ends_s(self) -> float:
        """Seconds after the window opens at which it has ended."""
        return self.at_s + (self.for_s or 0.0)


def problem_of_engine(fault: Fault, name: str, engine: Deployment, trials: int) -> str | None:
    """Why a fault cannot befall an engine; None if it can.

    Args:
        fault: of the experiment.
        name: of the engine.
        engine: where it runs.
        trials: of the engine in the experiment.
    """
    labels, action = engine.replica_labels, fault.action.value
    is_launched, has_commands = not engine.addresses, bool(fault.begin or fault.end)
    is_away = engine.ssh is not None or engine.container is not None
    checks = (
        (
            fault.replica is None or fault.replica in labels,
            f"has no replica '{fault.replica}'{'; choose from ' if labels else ''}{', '.join(labels)}",
        ),
        (fault.replica is not None or len(labels) < 2, f"has several replicas; give replica: {', '.join(labels)}"),
        (
            fault.action is not FaultAction.START or (is_launched and len(labels) > 1),
            "runs already, or has no other server; give it replicas, 2 or more, which Bakeoff starts",
        ),
        (
            fault.action is not FaultAction.RESTART or is_launched or bool(fault.end),
            "was not started by Bakeoff; give end, the command that starts it again",
        ),
        (
            fault.action is not FaultAction.KILL or is_launched or trials == 1,
            "would be dead in its next trial; use restart, or one trial",
        ),
        (not (is_launched and has_commands), "is started by Bakeoff, which needs no begin and end; leave them out"),
        (not (is_launched and is_away), "has processes out of reach; start it yourself, and give url, begin and end"),
    )
    return next((f"faults, {action}: engine '{name}' {text}" for is_ok, text in checks if not is_ok), None)


def problem_of_fault(fault: Fault, duration_s: float) -> str | None:
    """The first contradiction within a fault, or with the length of the window; None if there is none."""
    has_end = fault.action not in {FaultAction.KILL, FaultAction.START}
    checks = (
        (fault.for_s is not None or not has_end, "give for_s, the seconds until it ends"),
        (fault.for_s is None or has_end, "it has no end; leave out for_s"),
        (not fault.end or has_end, "it has no end; leave out end"),
        (
            fault.action is not FaultAction.SLOW or not (fault.begin or fault.end),
            "it sends signals; leave out begin and end",
        ),
        (not fault.begin or bool(fault.end) or not has_end, "begin needs end, the command that ends it"),
        (
            fault.action is not FaultAction.STOP or not fault.end or bool(fault.begin),
            "end needs begin, the command that causes it",
        ),
        (all([*fault.begin[:1], *fault.end[:1]]), "the first word of begin and end is a program"),
        (
            fault.ends_s < duration_s or has_end,
            f"it begins after the window of {duration_s:g} s; lower at_s, or raise trial.duration_s",
        ),
        (fault.ends_s < duration_s, f"it ends after the window of {duration_s:g} s; raise trial.duration_s"),
    )
    return next((f"faults, {fault.action.value}: {text}" for is_ok, text in checks if not is_ok), None)


def problem_of_starts(faults: Sequence[Fault], name: str, engine: Deployment) -> str | None:
    """Why the faults of an engine cannot start the replicas that they name; None if they can."""
    starts = {fault.replica: fault for fault in faults if fault.action is FaultAction.START}
    if len(starts) < sum(fault.action is FaultAction.START for fault in faults):
        return f"faults, start: a replica of engine '{name}' is started twice; leave one of them out"
    if starts and len(starts) == len(engine.replica_labels):
        return f"faults, start: engine '{name}' would have no server before; leave one of its replicas out"
    for fault in faults:
        start = starts.get(fault.replica)
        if start is not None and fault is not start and fault.at_s <= start.at_s:
            return f"faults, {fault.action.value}: {fault.replica} is not started before; raise at_s"
    return None


def overlap_of(faults: Sequence[Fault]) -> str | None:
    """Two faults of one engine at a time, whose effects cannot be told apart; None if there are none."""
    for earlier, later in itertools.pairwise(sorted(faults, key=lambda fault: fault.at_s)):
        if earlier.action is FaultAction.KILL or earlier.ends_s >= later.at_s:
            return f"faults: {earlier.action.value} has not ended when {later.action.value} begins; change at_s"
    return None
