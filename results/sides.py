"""The sides of a comparison: one engine's trials, of one run or of several.

A run is its folder, or what :mod:`results.benchmark_json` has kept of it: the same verdict follows from both. Trials
that were measured in one run belong to one session; those that a run has taken over from an earlier one belong to that.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from results.benchmark_json import StoredRun, StoredTrial, stored_run
from results.errors import NoEvidence, NotComparable
from results.floor import FloorCell, stored_floors
from results.metrics import Absence
from results.records import EngineFailure, Load, TrialRecord, Verdict
from results.reliability import failure_mode_of
from results.run import Run, Trial, load
from results.text.findings import sentence

AnyTrial = Trial | StoredTrial
AnyRun = Run | StoredRun
"""Read from a folder, or from a file."""


class Side(msgspec.Struct, frozen=True):
    """One side of a comparison.

    Attributes:
        engine: label of the engine.
        runs: where it comes from, oldest first.
        sessions: its finished trials, by the id of the run in which they were measured, oldest first.
        floors: what is known of the noise of the machine; None for what is stored beside the newest run.
    """

    engine: str
    runs: Sequence[AnyRun]
    sessions: dict[str, list[AnyTrial]]
    floors: Sequence[FloorCell] | None = None

    @property
    def run(self) -> AnyRun:
        """The newest."""
        return self.runs[-1]

    @property
    def trials(self) -> list[AnyTrial]:
        """Finished trials, INVALID ones among them."""
        return [trial for session in self.sessions.values() for trial in session]

    @property
    def records(self) -> list[TrialRecord]:
        """Of the finished trials."""
        return [trial.record for trial in self.trials]

    @property
    def failures(self) -> list[EngineFailure]:
        """Starts of the engine that failed."""
        return [
            failure for run in self.runs for failure in run.manifest.engine_failures if failure.engine == self.engine
        ]

    @property
    def loads(self) -> list[Load]:
        """Load levels that were planned."""
        plans = (plan for run in self.runs for plan in run.manifest.trials if plan.engine == self.engine)
        return list({plan.load.label: plan.load for plan in plans}.values())

    def at(self, level: str) -> list[AnyTrial]:
        """The valid trials at one load level."""
        return [trial for session in self.valid_sessions(level).values() for trial in session]

    def known_floors(self) -> Sequence[FloorCell]:
        """The noise floors; read only where they are needed.

        Raises:
            RunUnreadable: the file is damaged.
        """
        return stored_floors(root_of(self.run)) if self.floors is None else self.floors

    def valid_sessions(self, level: str) -> dict[str, list[AnyTrial]]:
        """The valid trials at one load level by session; sessions without one are left out."""
        found = {name: [t for t in trials if _is_valid_at(t, level)] for name, trials in self.sessions.items()}
        return {name: trials for name, trials in found.items() if trials}


def _is_valid_at(trial: AnyTrial, level: str) -> bool:
    return trial.record.verdict is Verdict.VALID and trial.record.load.label == level


def select(text: str, engine: str | None = None, title: str | None = None) -> Side:
    """Read ``RUN`` or ``RUN@ENGINE``.

    ``RUN`` is a folder, a file of :mod:`results.benchmark_json`, or ``FILE/RUN_ID`` where that holds several runs.

    Args:
        text: what is meant.
        engine: which, where the text names none and the run has it.
        title: of the run, where the text names a file with several.

    Raises:
        RunNotFound, RunUnreadable: as :func:`results.load`.
        NotImportable: as :func:`~results.benchmark_json.stored_run`.
        NotComparable, NoEvidence: as :func:`only_side` and :func:`side_of`.
    """
    place, _, wanted = text.partition("@")
    path = Path(place)
    is_file = path.is_file() or path.parent.is_file()
    run = stored_run(path, title) if is_file else load(place)
    return side_of(run, wanted) if wanted else only_side(run, engine)


def only_side(run: AnyRun, engine: str | None = None) -> Side:
    """The only engine of a run, or the one that is meant.

    Args:
        run: which run.
        engine: which engine; one that the run does not have is not meant.

    Raises:
        NotComparable: the run has several engines and none is meant.
        NoEvidence: as :func:`side_of`.
    """
    engines = _engines(run)
    if engine in engines:
        return side_of(run, engine)
    if len(engines) > 1:
        known = ", ".join(f"{run.path}@{label}" for label in engines)
        raise NotComparable(f"{run.path} holds several engines; name one: {known}")
    return side_of(run, engines[0])


def side_of(run: AnyRun, engine: str) -> Side:
    """One engine of a run.

    Raises:
        NotComparable: the run has no such engine.
        NoEvidence: it has no valid trial of it, and none that says anything against the engine.
    """
    if engine not in _engines(run):
        raise NotComparable(f"{run.path} has no engine '{engine}'; it has {', '.join(_engines(run))}")
    finished: list[AnyTrial] = [trial for trial in run.finished if trial.record.engine == engine]
    sessions: dict[str, list[AnyTrial]] = {}
    for trial in sorted(finished, key=lambda trial: trial.record.adopted_from is None):
        sessions.setdefault(trial.record.adopted_from or run.manifest.run_id, []).append(trial)
    side = Side(engine, [run], sessions)
    says_something = any(t.record.verdict is Verdict.VALID or failure_mode_of(t.record) for t in finished)
    if not says_something and not side.failures:
        raise NoEvidence(f"{run.path} has no valid trial of {engine}{_why_not(run, finished)}")
    return side


def together(sides: Sequence[Side]) -> Side:
    """Several runs of one engine as one side.

    Args:
        sides: at least one.

    Raises:
        NotComparable: they are of several engines.
    """
    first, *others = sorted(sides, key=lambda side: side.run.manifest.created_utc)
    sessions = dict(first.sessions)
    for other in others:
        if other.engine != first.engine:
            raise NotComparable(f"a side is one engine, not {first.engine} and {other.engine}")
        sessions |= {name: trials for name, trials in other.sessions.items() if name not in sessions}
    return msgspec.structs.replace(first, runs=[side.run for side in (first, *others)], sessions=sessions)


def compared_value(trial: AnyTrial, metric: str) -> float | None:
    """A metric of a trial as it is compared; None where the trial lacks it.

    Failures are a share of the requests. A percentile that lies among failures is worse than any number: infinity.
    """
    found = trial.metrics[metric]
    if found.absence is Absence.AMONG_FAILURES:
        return math.inf
    value = found.value
    return value if value is None or metric != "failures" else value / max(1, measured_requests(trial))


def measured_requests(trial: AnyTrial) -> int:
    """How many requests its metrics count; those planned where its log is not known."""
    return trial.work.requests or trial.record.planned_requests


def root_of(run: AnyRun) -> Path:
    """The folder of the runs among which a run lies, or in which its file does."""
    if not isinstance(run, StoredRun):
        return run.path.parent
    place = Path(run.file)
    return place if place.is_dir() else place.parent


def labels(a: Side, b: Side) -> tuple[str, str]:
    """Headings of two sides: the engines where they differ, else the engines with their runs."""
    if a.engine != b.engine:
        return a.engine, b.engine
    return _with_run(a), _with_run(b)


def _with_run(side: Side) -> str:
    more = f" and {len(side.runs) - 1} before it" if len(side.runs) > 1 else ""
    return f"{side.engine} ({side.run.path.name}{more})"


def _why_not(run: AnyRun, finished: Sequence[AnyTrial]) -> str:
    found = (finding for trial in finished for finding in trial.record.invalidating)
    why = next(map(sentence, found), run.manifest.failure)
    return f": {why}" if why else "; none of them ended"


def _engines(run: AnyRun) -> list[str]:
    return list(dict.fromkeys(plan.engine for plan in run.manifest.trials))
