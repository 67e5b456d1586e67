"""``run.jsonl``: the events of a run, one per line, append-only. Everything else about a run is folded from it.

Every event has ``t_ns``, nanoseconds of the monotonic clock of the process that measured. The log begins with
:class:`RunStarted`, which holds everything known beforehand; a run that crashed has no :class:`RunEnded`.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.results.errors import RunUnreadable
from bakeoff.results.files.chain import Chain
from bakeoff.results.files.jsonl import Appender, read_log
from bakeoff.results.log.search import Attempt, SearchConfig
from bakeoff.results.machine.ceilings import Ceilings
from bakeoff.results.prices import Prices, TokenPrices
from bakeoff.results.records import GridPoint, RunStatus, Slo, StoredFile, TrialPlan, TrialRecord
from bakeoff.results.schema import schema_of_run


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """Version of the measured code: the checkout in which the run was started, or the commit that CI states."""

    commit: str
    """Ends in ``+`` if the checkout had changes."""
    branch: str | None = None


class EngineFate(StrEnum):
    """Why a start of an engine ended before its trials did."""

    NOT_READY = "not_ready"
    """It was launched and did not become ready."""
    DIED = "died"


class RunHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is measured, and where."""

    run_id: str
    name: str
    created_utc: str
    """ISO 8601; a label only, durations never come from it."""
    host: str
    bakeoff_version: str
    git_commit: str | None
    experiment: dict[str, Any]
    environment: dict[str, Any]
    slo: Slo = Slo()
    objectives: list[str] = []
    """Bounds of each trial, as written."""
    prices: dict[str, Prices] = {}
    """What each engine costs, by label."""
    api_prices: TokenPrices = TokenPrices()
    classes: dict[str, Slo] = {}
    """The SLO of each class of the traffic, by name."""
    grid: dict[str, GridPoint] = {}
    """The settings of each engine that comes from a grid, by label."""
    notes: list[str] = []
    """Declarations that the report prints, such as the scale of a workload."""
    source: Source | None = None
    """None outside a checkout and outside CI."""
    resumed_from: str | None = None
    """The earlier run whose finished trials are reused."""
    ceilings: list[Ceilings] = []
    """Limits of the machine's devices, as ``bakeoff lab machine`` stored them before the run."""


class _Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    t_ns: int = 0


class RunStarted(RunHeader, frozen=True, tag="run_started", kw_only=True, omit_defaults=True):
    """The first event."""

    schema_version: int
    pid: int
    plan: list[TrialPlan]
    """The trials that are known beforehand, in order; empty for a search."""
    t_ns: int = 0
    search: SearchConfig | None = None
    """None if the run is no capacity search."""


class TrialPlanned(_Event, frozen=True, tag="trial_planned", kw_only=True, omit_defaults=True):
    """A policy chose the next trial."""

    plan: TrialPlan
    turn: int
    """Trials of one engine with the same turn share a start of it, unless it dies."""
    ends_turn: bool = False
    """Whether this is known to be the last trial of its turn."""
    tier: str = ""
    """The tier of a search for which it was chosen."""


class EngineStarting(_Event, frozen=True, tag="engine_starting", kw_only=True, omit_defaults=True):
    """An engine is being launched, or its address is about to be used."""

    engine: str
    turn: int
    start: int
    """Counts the engine's starts from 1: its output is in ``engines/<engine>-<start>.log``."""


class EngineStarted(_Event, frozen=True, tag="engine_started", kw_only=True, omit_defaults=True):
    """An engine is ready and warm."""

    engine: str
    turn: int
    start_s: float | None = None
    """From launch to ready; None for a server that was already running."""
    warm_up_requests: int = 0
    is_warm: bool | None = None
    """Whether it had stopped getting faster; None if it was not warmed up."""


class TrialFinished(_Event, frozen=True, tag="trial_finished", kw_only=True, omit_defaults=True):
    """A trial has ended and its files are stored; from now on it counts."""

    record: TrialRecord


class FileAdded(_Event, frozen=True, tag="file_added", kw_only=True, omit_defaults=True):
    """A file was added to a finished trial, such as the comparison of its answers with a reference's."""

    trial: str
    name: str
    file: StoredFile


class EngineLost(_Event, frozen=True, tag="engine_lost", kw_only=True, omit_defaults=True):
    """An engine did not start, died, or stayed busy with abandoned requests."""

    engine: str
    turn: int
    reason: str
    """One line, followed by the engine's last lines if they add something."""
    fate: EngineFate | None = None
    """None if the engine is not to blame: a port in use, a package that is missing."""
    given_up: bool = False
    """Whether it will not be started again."""


class LevelJudged(_Event, frozen=True, tag="level_judged", kw_only=True, omit_defaults=True):
    """A capacity search judged a trial by the objectives of one tier."""

    engine: str
    attempt: Attempt
    tier: str = ""


class LevelsSkipped(_Event, frozen=True, tag="levels_skipped", kw_only=True, omit_defaults=True):
    """A capacity search leaves out rates at which a trial would plan too few requests for its objectives."""

    engine: str
    up_to: float
    planned_requests: int
    needed_requests: int
    tier: str = ""


class RunEnded(_Event, frozen=True, tag="run_ended", kw_only=True, omit_defaults=True):
    """The last event."""

    status: RunStatus
    ended_utc: str
    failure: str | None = None
    notes: list[str] = []


Event = (
    RunStarted
    | TrialPlanned
    | EngineStarting
    | EngineStarted
    | TrialFinished
    | FileAdded
    | EngineLost
    | LevelJudged
    | LevelsSkipped
    | RunEnded
)


class EngineFailure(msgspec.Struct, frozen=True):
    """One start of an engine that failed, and neither the user nor the machine is to blame."""

    engine: str
    repeat: int
    fate: EngineFate


class Manifest(RunHeader, frozen=True, kw_only=True, omit_defaults=True):
    """Summary of the run log: its header, and how the run ended."""

    status: RunStatus
    trials: list[TrialPlan]
    """The plan as currently known, without profiled trials; for a complete run, the trials that were run."""
    profiled: list[TrialPlan] = []
    """The profiled trials of the plan."""
    failure: str | None = None
    engine_failures: list[EngineFailure] = []
    """Evidence against the engines that they name; ``failure`` has them as text, among others."""
    ended_utc: str | None = None


class RunLog:
    """The events of one run, and values folded from them for policies and readers.

    Args:
        events: the log so far.

    Attributes:
        events: all of them, oldest first.
        planned: trials that a policy chose, oldest first.
        finished: records of finished trials by id, oldest first.
        lost: losses of engines, oldest first.
        ended: None while the run continues, and for ever if it crashed.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events: list[Event] = []
        self.planned: list[TrialPlanned] = []
        self.finished: dict[str, TrialRecord] = {}
        self.lost: list[EngineLost] = []
        self.ended: RunEnded | None = None
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        """Fold one more event."""
        self.events.append(event)
        match event:
            case TrialPlanned():
                self.planned.append(event)
            case TrialFinished():
                self.finished[event.record.id] = event.record
            case FileAdded() if event.trial in self.finished:
                record = self.finished[event.trial]
                files = {**record.files, event.name: event.file}
                self.finished[event.trial] = msgspec.structs.replace(record, files=files)
            case EngineLost():
                self.lost.append(event)
            case RunEnded():
                self.ended = event
            case _:
                pass

    @property
    def started(self) -> RunStarted | None:
        """The first event; None if a crash tore even that."""
        first = self.events[0] if self.events else None
        return first if isinstance(first, RunStarted) else None

    @property
    def search(self) -> SearchConfig | None:
        """Configuration of the capacity search; None if the run is not one."""
        return self.started.search if self.started else None

    @property
    def why_lost(self) -> str | None:
        """Why engines were lost; None if none was."""
        return "; ".join(event.reason for event in self.lost) or None

    @property
    def plans(self) -> list[TrialPlan]:
        """The plan as currently known, in order.

        The plan of a complete run is what it ran: it excludes trials that a gate skipped once its verdict was clear.
        """
        chosen = {event.plan.id: event.plan for event in self.planned}
        if self.started is None or (self.ended and self.ended.status is RunStatus.COMPLETE and chosen):
            return list(chosen.values())
        return list(({plan.id: plan for plan in self.started.plan} | chosen).values())

    @property
    def given_up(self) -> set[str]:
        """Engines that will not be started again."""
        return {event.engine for event in self.lost if event.given_up}

    @property
    def under_way(self) -> TrialPlan | None:
        """The trial that was chosen last, if it has not finished."""
        last = self.planned[-1].plan if self.planned else None
        return last if last and last.id not in self.finished and self.ended is None else None

    def manifest(self, started: RunStarted, status: RunStatus) -> Manifest:
        """Summary of the log.

        Args:
            started: its first event.
            status: of the run; the log does not know whether its process lives.
        """
        ended = self.ended
        header: dict[str, Any] = {name: getattr(started, name) for name in RunHeader.__struct_fields__}
        header["notes"] = [*started.notes, *(ended.notes if ended else [])]
        return Manifest(
            **header,
            status=status,
            trials=[plan for plan in self.plans if not plan.profiled],
            profiled=[plan for plan in self.plans if plan.profiled],
            failure=ended.failure if ended else None,
            engine_failures=[
                EngineFailure(event.engine, event.turn, event.fate) for event in self.lost if event.fate is not None
            ],
            ended_utc=ended.ended_utc if ended else None,
        )


class RunLogWriter:
    """Appends events to a run's log, each durable when :meth:`append` returns.

    Args:
        path: of the log, which begins with :class:`RunStarted`.
        now_ns: stamps events.

    Attributes:
        log: the events so far.

    Raises:
        NotWritable: the file cannot be opened.
    """

    def __init__(self, path: Path, now_ns: Callable[[], int]) -> None:
        self.log, self._chain = _read(path)
        self._appender = Appender(path)
        self._encode = msgspec.json.Encoder().encode
        self._now_ns = now_ns

    def append(self, event: Event) -> None:
        """Stamp an event, store it, and fold it into :attr:`log`.

        Raises:
            NotWritable: the disk is full; earlier events are safe.
        """
        stamped = msgspec.structs.replace(event, t_ns=self._now_ns())
        self._appender.write(self._chain.link(self._encode(stamped)) + b"\n")
        self._appender.sync()
        self.log.add(stamped)

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        self._appender.close()


def encoded(events: Sequence[Event]) -> bytes:
    """A whole log."""
    encode, chain = msgspec.json.Encoder().encode, Chain()
    return b"".join(chain.link(encode(event)) + b"\n" for event in events)


def read_run_log(path: Path) -> RunLog:
    """Read a log; a torn last line is skipped.

    Raises:
        RunUnreadable: it is damaged before its last line, a line was changed or removed, or it has another schema.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[RunLog, Chain]:
    try:
        schema = schema_of_run(path)
    except OSError as error:
        raise RunUnreadable(f"{path} cannot be read ({error}); restore it from a copy") from error
    chain = Chain()
    return RunLog(read_log(path, Event, follows=chain.holds, schema=schema).records), chain  # type: ignore[type-var]  (a union of structs)
