"""Present state of running runs, read from their folders.

Responses are decoded after the trial. During it, the raw log gives the number of exchanges that ended, how they ended,
and the times of first bytes.

The dashboard may run on the machine under test, so each read covers only what was appended since the last.
"""

import statistics
import threading
from collections import Counter
from operator import attrgetter
from pathlib import Path

import msgspec

from bakeoff.results.files.jsonl import read_after
from bakeoff.results.log.run_log import Event, RunLog
from bakeoff.results.log.store import RunFolder, TrialFolder
from bakeoff.results.records import RunStatus, TelemetryRecord, TrialPlan
from bakeoff.results.text.findings import sentences
from bakeoff.results.units import NS_PER_S

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
        why: first reason why it is INVALID.
    """

    id: str
    engine: str
    load: str
    repeat: int
    state: str
    why: str = ""


class Current(msgspec.Struct, frozen=True):
    """The trial in progress.

    Attributes:
        id: as in the manifest.
        ends: number of exchanges by how they ended, warm-up included.
        per_second: exchanges that ended in each of the last 60 seconds, oldest first.
        first_byte_p50_s: median over the last 200 exchanges, from the planned time; None before the first.
        telemetry: last sample of each source.
    """

    id: str
    ends: dict[str, int]
    per_second: list[int]
    first_byte_p50_s: float | None
    telemetry: dict[str, dict[str, float | int | str | None]]


class Live(msgspec.Struct, frozen=True):
    """Present state of a run.

    Attributes:
        run: id.
        name: of the experiment.
        status: of the run.
        steps: planned trials.
        current: None between trials, and if the run is not running.
        failure: why the run failed.
    """

    run: str
    name: str
    status: RunStatus
    steps: list[Step]
    current: Current | None
    failure: str | None = None

    @property
    def done(self) -> int:
        """Number of finished trials."""
        return sum(step.state not in {"planned", "running"} for step in self.steps)


class LiveRuns:
    """Incremental readers of running runs. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[Path, _LiveRun] = {}

    def read(self, folder: RunFolder) -> Live:
        """Read the present state of a run.

        Raises:
            RunUnreadable: the manifest or a log is damaged.
        """
        with self._lock:
            state = self._runs.setdefault(folder.path, _LiveRun()).read(folder)
            if state.status is not RunStatus.RUNNING:
                del self._runs[folder.path]
            return state


class _LiveRun:
    """Incremental reader of one run: its log so far, and the trial in progress."""

    def __init__(self) -> None:
        self._log = RunLog()
        self._read_bytes = 0
        self._trial: _LiveTrial | None = None

    def read(self, folder: RunFolder) -> Live:
        events, self._read_bytes = read_after(folder.log_path, Event, self._read_bytes)  # type: ignore[arg-type]  (a union of structs)
        for event in events:
            self._log.add(event)
        manifest = folder.read_manifest(self._log)
        under_way = self._log.under_way if manifest.status is RunStatus.RUNNING else None
        if under_way is None or not folder.trial(under_way.id).path.is_dir():
            self._trial = None
        elif self._trial is None or self._trial.id != under_way.id:
            self._trial = _LiveTrial(under_way.id)
        steps = [self._step(plan) for plan in self._log.plans]
        current = self._trial.read(folder.trial(self._trial.id)) if self._trial else None
        return Live(folder.path.name, manifest.name, manifest.status, steps, current, manifest.failure)

    def _step(self, plan: TrialPlan) -> Step:
        record = self._log.finished.get(plan.id)
        state, why = "running" if self._trial and self._trial.id == plan.id else "planned", ""
        if record is not None:
            state, why = record.verdict.value, sentences(record.invalidating[:1])
        return Step(plan.id, plan.engine, plan.load.label, plan.repeat, state, why)


class _Ended(msgspec.Struct, frozen=True):
    """End of an exchange, and the time from its planned start to the first byte; None without a first byte."""

    ended_ns: int
    first_byte_s: float | None


class _LiveTrial:
    """Incremental reader of the logs of the trial in progress."""

    def __init__(self, trial_id: str) -> None:
        self.id = trial_id
        self._read_bytes: dict[Path, int] = {}
        self._ends: Counter[str] = Counter()
        self._first_ended_ns: int | None = None
        self._recent: list[_Ended] = []
        self._telemetry: dict[str, dict[str, float | int | str | None]] = {}

    def read(self, folder: TrialFolder) -> Current:
        """Read what was appended to the logs."""
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
        first_bytes_s = [ended.first_byte_s for ended in self._recent[-_RECENT:] if ended.first_byte_s is not None]
        return Current(
            self.id,
            ends=dict(self._ends),
            per_second=per_second,
            first_byte_p50_s=statistics.median(first_bytes_s) if first_bytes_s else None,
            telemetry=dict(self._telemetry),
        )

    def _per_second(self) -> list[int]:
        """Exchanges per second; the last bin ends with the last exchange. Discards exchanges no longer needed."""
        if not self._recent:
            return []
        self._recent.sort(key=attrgetter("ended_ns"))  # each worker has its own log
        earliest_ns, last_ns = self._recent[0].ended_ns, self._recent[-1].ended_ns
        self._first_ended_ns = min(self._first_ended_ns or earliest_ns, earliest_ns)
        first_ns = max(self._first_ended_ns, last_ns - (_SECONDS - 1) * NS_PER_S)
        recent = [ended for ended in self._recent if ended.ended_ns >= first_ns]
        counts = Counter((last_ns - ended.ended_ns) // NS_PER_S for ended in recent)
        self._recent = self._recent[-max(_RECENT, len(recent)) :]
        return [counts[ago] for ago in range((last_ns - first_ns) // NS_PER_S, -1, -1)]
