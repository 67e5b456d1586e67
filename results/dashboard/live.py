"""What a run that goes on looks like now: read from its folder, as everything else is.

Answers are decoded when a trial has ended; until then the raw log says how many exchanges have ended, how, and when
the first bytes came. That is what is shown of the trial under way, under those names.

The dashboard may run on the machine that is measured, so each look reads only what was appended since the last one.
"""

import statistics
import threading
from collections import Counter
from operator import attrgetter
from pathlib import Path

import msgspec

from results.jsonl import read_after
from results.records import RunStatus, TelemetryRecord, TrialPlan
from results.run_log import Event, RunLog
from results.store import RunFolder, TrialFolder
from results.text.findings import sentences
from results.units import NS_PER_S

_RECENT = 200
_SECONDS = 60


class Step(msgspec.Struct, frozen=True):
    """One trial of the plan.

    Attributes:
        id: as in the manifest.
        engine: label.
        load: label.
        repeat: counted from 1.
        state: ``planned``, ``running``, or the verdict.
        why: of an INVALID one, the first reason.
    """

    id: str
    engine: str
    load: str
    repeat: int
    state: str
    why: str = ""


class Current(msgspec.Struct, frozen=True):
    """The trial under way.

    Attributes:
        id: as in the manifest.
        ends: how many exchanges ended in which way, warm-up included.
        per_second: exchanges that ended in each of the last seconds, oldest first.
        first_byte_p50_s: median over the last exchanges, from the planned start; None before the first.
        telemetry: the last sample of each source.
    """

    id: str
    ends: dict[str, int]
    per_second: list[int]
    first_byte_p50_s: float | None
    telemetry: dict[str, dict[str, float | int | str | None]]


class Live(msgspec.Struct, frozen=True):
    """A run now.

    Attributes:
        run: its id.
        name: of the experiment.
        status: how far it got.
        steps: the plan.
        current: None between trials, and where the run does not go on.
        failure: why it failed.
    """

    run: str
    name: str
    status: RunStatus
    steps: list[Step]
    current: Current | None
    failure: str | None = None

    @property
    def done(self) -> int:
        """Trials that ended."""
        return sum(step.state not in {"planned", "running"} for step in self.steps)


class LiveRuns:
    """The runs that are looked at while they go on. Its method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[Path, _LiveRun] = {}

    def look(self, folder: RunFolder) -> Live:
        """Look at a run.

        Raises:
            RunUnreadable: its manifest or a log is damaged.
        """
        with self._lock:
            now = self._runs.setdefault(folder.path, _LiveRun()).look(folder)
            if now.status is not RunStatus.RUNNING:
                del self._runs[folder.path]
            return now


class _LiveRun:
    """The run log as far as it has been read, and the trial under way."""

    def __init__(self) -> None:
        self._log = RunLog()
        self._read_bytes = 0
        self._trial: _LiveTrial | None = None

    def look(self, folder: RunFolder) -> Live:
        events, self._read_bytes = read_after(folder.log_path, Event, self._read_bytes)  # type: ignore[arg-type]  (a union of structs)
        for event in events:
            self._log.add(event)
        manifest = folder.read_manifest(self._log)
        under_way = self._log.under_way if manifest.status is RunStatus.RUNNING else None
        if under_way is None or not folder.trial(under_way.id).path.is_dir():
            self._trial = None
        elif self._trial is None or self._trial.id != under_way.id:
            self._trial = _LiveTrial(under_way.id)
        steps = [self._step(plan) for plan in manifest.trials]
        current = self._trial.look(folder.trial(self._trial.id)) if self._trial else None
        return Live(folder.path.name, manifest.name, manifest.status, steps, current, manifest.failure)

    def _step(self, plan: TrialPlan) -> Step:
        record = self._log.finished.get(plan.id)
        state, why = "running" if self._trial and self._trial.id == plan.id else "planned", ""
        if record is not None:
            state, why = record.verdict.value, sentences(record.invalidating[:1])
        return Step(plan.id, plan.engine, plan.load.label, plan.repeat, state, why)


class _Ended(msgspec.Struct, frozen=True):
    """When an exchange ended, and how long after its planned start its first byte came; None for never."""

    ended_ns: int
    first_byte_s: float | None


class _LiveTrial:
    """The trial under way, as far as its logs have been read."""

    def __init__(self, trial_id: str) -> None:
        self.id = trial_id
        self._read_bytes: dict[Path, int] = {}
        self._ends: Counter[str] = Counter()
        self._first_ended_ns: int | None = None
        self._recent: list[_Ended] = []
        self._telemetry: dict[str, dict[str, float | int | str | None]] = {}

    def look(self, folder: TrialFolder) -> Current:
        """Read what was appended to its logs."""
        for log in folder.stream_logs():
            for stream, end in log.after(self._read_bytes.get(log.path, 0)):
                self._read_bytes[log.path] = end
                self._ends[stream.end] += 1
                first_byte_s = (stream.read_ns[0] - stream.planned_ns) / NS_PER_S if stream.read_ns else None
                self._recent.append(_Ended(stream.ended_ns, first_byte_s))
        path = folder.telemetry_log
        samples, self._read_bytes[path] = read_after(path, TelemetryRecord, self._read_bytes.get(path, 0))
        self._telemetry |= {sample.source: sample.values for sample in samples}
        per_second = self._per_second()
        first_bytes_s = [one.first_byte_s for one in self._recent[-_RECENT:] if one.first_byte_s is not None]
        return Current(
            self.id,
            ends=dict(self._ends),
            per_second=per_second,
            first_byte_p50_s=statistics.median(first_bytes_s) if first_bytes_s else None,
            telemetry=dict(self._telemetry),
        )

    def _per_second(self) -> list[int]:
        """Exchanges by the second in which they ended; the last bin ends with the last of them. Older ones go."""
        if not self._recent:
            return []
        self._recent.sort(key=attrgetter("ended_ns"))  # each worker has a log of its own
        earliest_ns, last_ns = self._recent[0].ended_ns, self._recent[-1].ended_ns
        self._first_ended_ns = min(self._first_ended_ns or earliest_ns, earliest_ns)
        first_ns = max(self._first_ended_ns, last_ns - (_SECONDS - 1) * NS_PER_S)
        shown = [one for one in self._recent if one.ended_ns >= first_ns]
        counts = Counter((last_ns - one.ended_ns) // NS_PER_S for one in shown)
        self._recent = self._recent[-max(_RECENT, len(shown)) :]
        return [counts[ago] for ago in range((last_ns - first_ns) // NS_PER_S, -1, -1)]
