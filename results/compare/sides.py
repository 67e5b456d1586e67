"""A side of a comparison: one engine's trials from one or several runs.

A run is read from its folder or from a file of :mod:`bakeoff.results.export.benchmark_json`, with the same verdict, or
from reports of llm-d (:mod:`bakeoff.results.views.import_llmd`). Trials measured in one run form a session; reused
trials belong to the session of the run that measured them.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from bakeoff.results.compare.floor import FloorCell, moment_of, stored_floors
from bakeoff.results.compare.reliability import failure_mode_of
from bakeoff.results.errors import NoEvidence, NotComparable
from bakeoff.results.export.benchmark_json import StoredRun, StoredTrial, stored_run
from bakeoff.results.log.run_log import EngineFailure
from bakeoff.results.metrics import Absence
from bakeoff.results.records import Load, TrialRecord, Verdict
from bakeoff.results.run.cells import Trial
from bakeoff.results.run.run import Run, load
from bakeoff.results.statistics.between_runs import NoiseFloor
from bakeoff.results.statistics.unseen import NoiseSource, Unseen
from bakeoff.results.text.findings import main_reason
from bakeoff.results.views.import_llmd import read_reports

AnyTrial = Trial | StoredTrial
AnyRun = Run | StoredRun
"""A run read from a folder or from a file."""


class Side(msgspec.Struct, frozen=True):
    """One side of a comparison.

    Attributes:
        engine: label of the engine.
        runs: the runs, oldest first.
        sessions: id of the run that measured them → finished trials, oldest first.
        floors: noise floors of the machine; None to read those stored next to the newest run.
    """

    engine: str
    runs: Sequence[AnyRun]
    sessions: dict[str, list[AnyTrial]]
    floors: Sequence[FloorCell] | None = None

    @property
    def run(self) -> AnyRun:
        """The newest run."""
        return self.runs[-1]

    @property
    def places(self) -> list[tuple[Path, str, str]]:
        """Folder, id and engine of each run, the same however the folder was spelt."""
        return [(Path(run.path).resolve(), run.manifest.run_id, self.engine) for run in self.runs]

    @property
    def trials(self) -> list[AnyTrial]:
        """Finished trials, including INVALID ones."""
        return [trial for session in self.sessions.values() for trial in session]

    @property
    def records(self) -> list[TrialRecord]:
        """Records of the finished trials."""
        return [trial.record for trial in self.trials]

    @property
    def failures(self) -> list[EngineFailure]:
        """Failed starts of the engine."""
        return [
            failure for run in self.runs for failure in run.manifest.engine_failures if failure.engine == self.engine
        ]

    @property
    def loads(self) -> list[Load]:
        """Planned load levels."""
        plans = (plan for run in self.runs for plan in run.manifest.trials if plan.engine == self.engine)
        return list({plan.load.label: plan.load for plan in plans}.values())

    def at(self, level: str) -> list[AnyTrial]:
        """Valid trials at one load level."""
        return [trial for session in self.valid_sessions(level).values() for trial in session]

    def known_floors(self) -> Sequence[FloorCell]:
        """Noise floors; read from disk only when needed.

        Raises:
            RunUnreadable: the file is damaged.
        """
        return stored_floors(root_of(self.run)) if self.floors is None else self.floors

    def valid_sessions(self, level: str) -> dict[str, list[AnyTrial]]:
        """Valid trials at one load level by session; sessions without any are omitted."""
        valid = {name: [t for t in trials if _is_valid_at(t, level)] for name, trials in self.sessions.items()}
        return {name: trials for name, trials in valid.items() if trials}


def _is_valid_at(trial: AnyTrial, level: str) -> bool:
    return trial.record.verdict is Verdict.VALID and trial.record.load.label == level


def select(text: str, engine: str | None = None, title: str | None = None) -> Side:
    """Read the side named by ``RUN`` or ``RUN@ENGINE``.

    ``RUN`` is a folder, a file of :mod:`bakeoff.results.export.benchmark_json`, or ``FILE/RUN_ID`` if the file holds
    several runs; or reports of :mod:`bakeoff.results.views.import_llmd`, whose runs form one side.

    Args:
        text: ``RUN`` or ``RUN@ENGINE``.
        engine: default engine, used if the run has it.
        title: title of the run, for a file that holds several.

    Raises:
        RunNotFound, RunUnreadable: as for :func:`bakeoff.results.load`.
        NotImportable: as for :func:`~bakeoff.results.export.benchmark_json.stored_run`, or for
            :func:`~bakeoff.results.views.import_llmd.read_reports`.
        NotComparable: no engine follows the @; or as for :func:`only_side` and :func:`side_of`.
        NoEvidence: as for these.
    """
    location, at, named_engine = text.partition("@")
    if at and not named_engine:
        raise NotComparable(f"'{text}' names no engine after the @")
    path = Path(location)
    runs: Sequence[AnyRun] = read_reports(path)
    if not runs:
        is_file = path.is_file() or path.parent.is_file()
        runs = [stored_run(path, title) if is_file else load(location)]
        path = runs[0].path
    chosen = named_engine or _only_engine(runs, engine, path)
    having = [run for run in runs if chosen in _engines(run)]
    return together([side_of(run, chosen) for run in having or runs[:1]])


def only_side(run: AnyRun, engine: str | None = None) -> Side:
    """Return the side of ``engine``, or of the run's only engine.

    Args:
        run: the run.
        engine: label; ignored if the run does not have it.

    Raises:
        NotComparable: the run has several engines and ``engine`` is none of them.
        NoEvidence: as for :func:`side_of`.
    """
    return side_of(run, _only_engine([run], engine, run.path))


def _only_engine(runs: Sequence[AnyRun], engine: str | None, place: Path) -> str:
    labels = list(dict.fromkeys(label for run in runs for label in _engines(run)))
    if engine in labels:
        return engine
    if len(labels) > 1:
        choices = ", ".join(f"{place}@{label}" for label in labels)
        raise NotComparable(f"{place} holds several engines; name one: {choices}")
    return labels[0]


def side_of(run: AnyRun, engine: str) -> Side:
    """Return the side of one engine of a run.

    Raises:
        NotComparable: the run does not have the engine.
        NoEvidence: the engine has no valid trial, and no trial that is evidence against it.
    """
    if engine not in _engines(run):
        raise NotComparable(f"{run.path} has no engine '{engine}'; it has {', '.join(_engines(run))}")
    finished: list[AnyTrial] = [trial for trial in run.finished if trial.record.engine == engine]
    sessions: dict[str, list[AnyTrial]] = {}
    for trial in sorted(finished, key=lambda trial: trial.record.reused_from is None):
        sessions.setdefault(trial.record.reused_from or run.manifest.run_id, []).append(trial)
    side = Side(engine, [run], sessions)
    has_evidence = any(t.record.verdict is Verdict.VALID or failure_mode_of(t.record) for t in finished)
    if not has_evidence and not side.failures:
        raise NoEvidence(f"{run.path} has no valid trial of {engine}{_why_not(run, finished)}")
    return side


def together(sides: Sequence[Side]) -> Side:
    """Combine several runs of one engine into one side.

    Args:
        sides: at least one.

    Raises:
        NotComparable: they are of different engines, or one is named twice.
    """
    named = [place for side in sides for place in side.places]
    if twice := [place for place in named if named.count(place) > 1]:
        raise NotComparable(f"{twice[0][0]} is named twice on one side, where it counts once; name another run")
    first, *others = sorted(sides, key=lambda side: side.run.manifest.created_utc)
    sessions = dict(first.sessions)
    for other in others:
        if other.engine != first.engine:
            raise NotComparable(f"a side must be one engine, not {first.engine} and {other.engine}")
        sessions |= {name: trials for name, trials in other.sessions.items() if name not in sessions}
    return msgspec.structs.replace(first, runs=[side.run for side in (first, *others)], sessions=sessions)


def compared_value(trial: AnyTrial, metric: str) -> float | None:
    """Return a trial's value of a metric for comparison; None if the trial lacks it.

    Failures are a fraction of the requests. A percentile among failures is infinity: worse than any number.
    """
    measured = trial.metrics[metric]
    if measured.absence is Absence.AMONG_FAILURES:
        return math.inf
    value = measured.value
    return value if value is None or metric != "failures" else value / max(1, measured_requests(trial))


def measured_requests(trial: AnyTrial) -> int:
    """Number of requests that a trial's metrics count; the planned ones if its log is unknown."""
    return trial.work.requests or trial.record.planned_requests


def root_of(run: AnyRun) -> Path:
    """Return the folder of runs that contains a run or its file."""
    if not isinstance(run, StoredRun):
        return run.path.parent
    path = Path(run.file)
    return path if path.is_dir() else path.parent


def labels(a: Side, b: Side) -> tuple[str, str]:
    """Return headings of two sides: the engines, with their runs if the engines are the same."""
    if a.engine != b.engine:
        return a.engine, b.engine
    return _with_run(a), _with_run(b)


def apart_s(sides: Sequence[Side]) -> float | None:
    """Time between the first and the last run of several sides; None if there is one run, or a moment is not known."""
    created = {run.manifest.run_id: run.manifest.created_utc for side in sides for run in side.runs}
    try:
        moments = [moment_of(text) for text in created.values()]
    except ValueError:  # of another tool
        return None
    return (max(moments) - min(moments)).total_seconds() if len(moments) > 1 else None


def starts_unseen(
    sides: Iterable[Mapping[str, Sequence[AnyTrial]]], sd: float | None, floor: Callable[[], NoiseFloor | None]
) -> Unseen | None:
    """The noise between starts of servers that stayed up through their trials; None if each trial had its own start.

    Args:
        sides: session → trials, of A and of B.
        sd: assumed standard deviation, where the machine has no floor; None to count none.
        floor: reads the floor.
    """
    weight = sum(  # of one start a side, since a server may have stayed up through several sessions
        1.0
        for sessions in sides
        if sessions and all(trial.record.start_s is None for trials in sessions.values() for trial in trials)
    )
    if not weight:
        return None
    if (known := floor()) is not None:
        return Unseen(NoiseSource.STARTS, weight, known.bound, is_measured=True)
    return Unseen(NoiseSource.STARTS, weight, sd)


def absent_levels(a: Side, b: Side) -> dict[str, str]:
    """Load levels that were planned for one side alone, with the other side, A or B."""
    return _lacking(*([load.label for load in side.loads] for side in (a, b)))


def absent_addresses(a: Side, b: Side) -> dict[str, str]:
    """Addresses that one side alone used, with the other side; none if they have no address in common."""
    of_a, of_b = (_addresses(side) for side in (a, b))
    return _lacking(of_a, of_b) if set(of_a) & set(of_b) else {}


def _addresses(side: Side) -> list[str]:
    """``host:port`` of each address of the side; a description lists them only where there are several."""
    described = [record.engine_description for record in side.records if record.engine_description]
    labels = (
        [address.label for address in each.addresses] or [urlsplit(each.url or "").netloc.rpartition("@")[2]]
        for each in described
    )
    return list(dict.fromkeys(filter(None, itertools.chain.from_iterable(labels))))


def _lacking(of_a: Sequence[str], of_b: Sequence[str]) -> dict[str, str]:
    return {name: "B" for name in of_a if name not in of_b} | {name: "A" for name in of_b if name not in of_a}


def _with_run(side: Side) -> str:
    more = f" and {len(side.runs) - 1} before it" if len(side.runs) > 1 else ""
    return f"{side.engine} ({side.run.path.name}{more})"


def _why_not(run: AnyRun, finished: Sequence[AnyTrial]) -> str:
    why = main_reason(trial.record for trial in finished) or run.manifest.failure
    return f": {why}" if why else "; none of them ended"


def _engines(run: AnyRun) -> list[str]:
    return list(dict.fromkeys(plan.engine for plan in run.manifest.trials))
