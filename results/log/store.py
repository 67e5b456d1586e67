"""The run folder: one folder per run, one inside it per trial.

::

    <root>/<run_id>/
        run.jsonl                events of the run                         (append-only)
        engines/<label>-<n>.log  output of the engine's n-th start
        trials/<trial_id>/
            streams-<n>.frames   raw reads with timestamps, by worker      (append-only: the raw data)
            telemetry.jsonl      samples of host, engine, client and GPU   (append-only)
            requests.jsonl       the streams decoded                       (derived, atomic)
            requests-<n>.jsonl,  the same, and its verdict, by rules that
            recount.json         are newer than the run                    (derived, atomic)
            quality.json         its answers compared with a reference's   (derived, atomic)
            steps-<n>.frames     of a profiled trial: the engine's steps, by replica, and
            front-end-0.frames   its HTTP process (:mod:`bakeoff.results.log.step_log`), or
            spans.frames         the spans that it exported (:mod:`bakeoff.results.log.spans`)
            step-costs.json      bytes and operations of these steps         (derived, atomic)

A trial is finished when the run's log has its :class:`~bakeoff.results.log.run_log.TrialFinished`, which describes its
files (see :mod:`bakeoff.results.files.integrity`); a run is complete when its log says so. After any crash, records
appended before it remain readable (see :mod:`bakeoff.results.files.jsonl` and :mod:`bakeoff.results.files.frames`).
Runs of another schema are refused.

Runs from other machines are untrusted, so no path may leave the run's folder: trial ids are plain names, and a run or
trial that is or contains a symbolic link is refused before anything in it is read.
"""

import contextlib
import fnmatch
import functools
import itertools
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import psutil

from bakeoff.results.errors import UNDECODABLE, NotWritable, RunNotFound, RunUnreadable
from bakeoff.results.files.atomic import write_atomic
from bakeoff.results.files.frames import FrameLog, count_frames
from bakeoff.results.files.integrity import RESTORE, read_stored, stored_file, verify
from bakeoff.results.files.jsonl import Log, read_log, whole_records
from bakeoff.results.findings import Finding
from bakeoff.results.log.consistency import ImpossibleError, possible, span_problem, telemetry_problem
from bakeoff.results.log.recount import DECODED_NOW, RECOUNTED, REQUESTS, Recount
from bakeoff.results.log.run_log import Event, Manifest, RunLog, RunStarted, encoded, read_run_log
from bakeoff.results.log.spans import SpanFrame
from bakeoff.results.log.step_costs import TrialCosts
from bakeoff.results.log.step_log import EngineEvent, HttpRecord
from bakeoff.results.metrics.quality import QualityRecord
from bakeoff.results.ranges import within_range
from bakeoff.results.records import (
    DECODER,
    RequestRecord,
    RunStatus,
    StoredFile,
    StreamRecord,
    TelemetryRecord,
    TrialRecord,
    Verdict,
)
from bakeoff.results.requests import Requests
from bakeoff.results.schema import SCHEMA_VERSION, decoder_of, schema_of, schema_of_run

LOG_NAME = "run.jsonl"
RUNS, LATEST = Path("runs"), "latest"
"""Where runs are looked for that are not named by a path, and the name of the newest."""
_TRIAL_ID = re.compile(r"[\w-][\w.-]*")
_MAX_NAME_BYTES = 255
_BLOCK_BYTES = 1 << 20
QUICK_BYTES = 2 << 20
"""Raw logs that are decoded and shown within a second, when the user waits for the end of an interrupted run."""
_Record = TypeVar("_Record", bound=msgspec.Struct)


class TrialFolder:
    """The files of one trial.

    Args:
        path: the folder.
        files: what they were when they were stored, by relative path; readers refuse those that are no longer so.
        requests: name of the file of the decoded requests.
        schema: the run's; None for today's.
    """

    def __init__(
        self,
        path: Path,
        files: Mapping[str, StoredFile] | None = None,
        requests: str = REQUESTS,
        schema: int | None = None,
    ) -> None:
        self.path = path
        self._schema = schema
        self._files = files or {}
        self.telemetry_log: Path = path / "telemetry.jsonl"
        self.span_log: Path = path / "spans.frames"
        if requests == REQUESTS and schema not in {None, SCHEMA_VERSION}:
            are_there = requests in self._files or (path / requests).exists()
            requests = requests if are_there else DECODED_NOW
        self._requests = path / requests
        self._recount = path / "recount.json"
        self._quality = path / "quality.json"
        self._step_costs = path / "step-costs.json"

    def create(self) -> None:
        """Create the folder."""
        _make_folder(self.path)

    def require(self) -> None:
        """Refuse a finished trial without its folder.

        Raises:
            RunUnreadable: it is missing.
        """
        if self._files and not self.path.is_dir():
            raise RunUnreadable(f"{self.path} is missing; restore the folder from a copy")

    @property
    def kernels(self) -> "TrialFolder":
        """Folder of the moment after a profiled trial in which kernels were recorded."""
        prefix = "kernels/"
        files = {name.removeprefix(prefix): file for name, file in self._files.items() if name.startswith(prefix)}
        return TrialFolder(self.path / prefix, files, schema=self._schema)

    @property
    def clock(self) -> Path:
        """File with the wall clock's time minus that of the monotonic clock, in nanoseconds."""
        return self.path / "clock-offset"

    def kernel_logs(self) -> list[Path]:
        """Traces of torch's profiler, by engine process."""
        return self._named("kernels-*.json.gz")

    def stream_log(self, worker: int) -> Path:
        """Path of the raw log of one client worker."""
        return self.path / f"streams-{worker}.frames"

    def stream_logs(self) -> list[FrameLog[StreamRecord]]:
        """Raw logs by worker: every exchange that ended, in order of its end."""
        return [
            FrameLog(path, StreamRecord, self.stored(path), self._schema) for path in self._named("streams-*.frames")
        ]

    @property
    def stream_bytes(self) -> int:
        """Size of all raw logs."""
        return sum(log.path.stat().st_size for log in self.stream_logs() if log.path.exists())

    def read_streams(self) -> Iterator[StreamRecord]:
        """Iterate over all exchanges that ended."""
        return itertools.chain.from_iterable(self.stream_logs())

    def read_steps(self) -> list[list[EngineEvent]]:
        """Read the record of the engine's steps, by replica; empty unless the trial was profiled."""
        logs = (FrameLog(path, EngineEvent, self.stored(path), self._schema) for path in self._named("steps-*.frames"))  # type: ignore[type-var]  (a union)
        return [list(log) for log in logs]

    def read_front_end(self) -> list[HttpRecord]:
        """Read the record of the engine's HTTP process; empty unless the trial was profiled."""
        logs = (
            FrameLog(path, HttpRecord, self.stored(path), self._schema) for path in self._named("front-end-*.frames")
        )
        return list(itertools.chain.from_iterable(logs))

    def read_spans(self) -> list[SpanFrame]:
        """Read the spans that the engine exported; empty unless the trial was profiled by spans."""
        return list(FrameLog(self.span_log, SpanFrame, self.stored(self.span_log), self._schema))  # type: ignore[type-var]  (a union)

    def read_telemetry(self) -> Log[TelemetryRecord]:
        """Read the telemetry samples.

        Raises:
            RunUnreadable: the file is damaged before its last line, or holds what cannot be.
        """
        log = read_log(self.telemetry_log, TelemetryRecord, self.stored(self.telemetry_log), schema=self._schema)
        if problem := telemetry_problem(log.records):
            raise RunUnreadable(f"{self.telemetry_log} is damaged: {problem}; {RESTORE}")
        return msgspec.structs.replace(log, records=[within_range(record) for record in log.records])

    def torn(self) -> dict[str, int]:
        """Logs with a torn last record: file name → bytes that readers ignore."""
        logs = {log.path.name: log.torn_bytes for log in self.stream_logs()}
        logs[self.telemetry_log.name] = self.read_telemetry().torn_bytes
        return {name: torn_bytes for name, torn_bytes in logs.items() if torn_bytes}

    def write_requests(self, records: Iterable[RequestRecord]) -> None:
        """Replace the decoded requests."""
        encode = msgspec.json.Encoder().encode
        write_atomic(self._requests, (encode(record) + b"\n" for record in records))

    def join_requests(self, parts: Iterable[Path]) -> None:
        """Replace the decoded requests by those of several files, one after another."""
        write_atomic(self._requests, itertools.chain.from_iterable(map(_blocks, parts)))

    def decoded_part(self, number: int) -> Path:
        """Path of a part of the decoded requests, until all of them are joined."""
        return self.path / f".requests-{number}.jsonl"

    def remove_parts(self) -> None:
        """Remove parts of the decoded requests, those that a crash has left as well."""
        for part in self.path.glob(".requests-*.jsonl"):
            part.unlink(missing_ok=True)

    def read_decoded(self, check: Callable[[], None] = lambda: None) -> Requests:
        """The requests that this process has just decoded, in the order of the raw log, whatever is wrong with them.

        Args:
            check: called before each of them; raises if nobody waits for them any more.
        """
        return Requests(record for record in whole_records(self._requests, RequestRecord, None) if check() is None)

    def remove_requests(self) -> None:
        """Remove the decoded requests."""
        self._requests.unlink(missing_ok=True)

    def has_requests(self) -> bool:
        """Whether the raw log has been decoded."""
        return self._requests.exists()

    def read_requests(self) -> Requests:
        """Read the decoded requests, in planned order; empty if the trial was interrupted before decoding.

        Raises:
            RunUnreadable: the file is damaged, or holds what cannot be.
        """
        self.require()
        remedy = RESTORE
        if self.stream_logs():
            again = f"bakeoff report {self.path.parents[1]} decodes the raw log again"
            remedy = f"move it away, and {again}" if self.has_requests() else again
        schema = self._requests_schema()
        records = whole_records(self._requests, RequestRecord, self.stored(self._requests), remedy, schema)
        are_judged = self.stored(self._requests) is not None
        try:
            requests = Requests(possible(records, are_judged=are_judged))
        except (ImpossibleError, OverflowError) as problem:  # a column holds integers of 64 bits
            raise RunUnreadable(f"{self._requests} is damaged: {problem}; {remedy}") from problem
        if problem := span_problem(requests):
            raise RunUnreadable(f"{self._requests} is damaged: {problem}; {remedy}")
        return requests.take(np.argsort(requests.ints("index"), kind="stable"))

    def _requests_schema(self) -> int | None:
        """That of the version that decoded them."""
        if self._requests.name == REQUESTS:
            return self._schema
        recount = self.read_recount() if self._requests.name == RECOUNTED else None
        return recount.schema_version if recount else None

    def write_recount(self, verdict: Verdict, findings: list[Finding]) -> None:
        """Say that the requests of this folder, as decoded last, and this verdict replace those that were stored."""
        file = stored_file(self._requests, _count(self._requests))
        write_atomic(self._recount, _pretty(Recount(DECODER, verdict, findings, file)))

    def read_recount(self) -> Recount | None:
        """What the trial is by the rules of a later version; None if it was not decoded again, or that is damaged."""
        try:
            return _read(self._recount, Recount, None)
        except RunUnreadable:  # derived, so it is derived again
            return None

    def write_quality(self, record: QualityRecord) -> None:
        """Replace the comparison of answers with a reference's."""
        write_atomic(self._quality, _pretty(record))

    def read_quality(self) -> QualityRecord | None:
        """Read the comparison of answers with a reference's; None if there is none.

        Raises:
            RunUnreadable: the file is damaged.
        """
        return _read(self._quality, QualityRecord, self.stored(self._quality))

    def write_step_costs(self, costs: TrialCosts) -> None:
        """Replace the bytes and operations of the engine's steps."""
        write_atomic(self._step_costs, msgspec.json.encode(costs) + b"\n")

    def read_step_costs(self) -> TrialCosts | None:
        """Read the bytes and operations of the engine's steps; None if there are none.

        Raises:
            RunUnreadable: the file is damaged.
        """
        return _read(self._step_costs, TrialCosts, self.stored(self._step_costs))

    def stored(self, path: Path) -> StoredFile | None:
        """What a file of this folder was when it was stored; None if that is not known."""
        return self._files.get(path.name)

    def stored_files(self) -> dict[str, StoredFile]:
        """Describe the files that are not described yet, by relative path.

        Raises:
            RunUnreadable: one cannot be read.
        """
        paths = [path for path in sorted(self.path.rglob("*")) if path.is_file() and not path.name.startswith(".")]
        named = {path.relative_to(self.path).as_posix(): path for path in paths}
        return {name: stored_file(path, _count(path)) for name, path in named.items() if name not in self._files}

    def verify(self) -> None:
        """Read every stored file.

        Raises:
            RunUnreadable: one is missing or was changed.
        """
        for name, file in self._files.items():
            verify(self.path / name, file)

    def _named(self, pattern: str) -> list[Path]:
        """Files by a pattern of their names, missing ones included."""
        names = {path.name for path in self.path.glob(pattern)} | set(fnmatch.filter(self._files, pattern))
        return [self.path / name for name in sorted(names)]


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log_path: Path = path / LOG_NAME

    @classmethod
    def create(cls, root: Path, *events: Event) -> "RunFolder":
        """Create the folder of a run, with its log.

        Args:
            root: parent folder.
            events: the first is :class:`~bakeoff.results.log.run_log.RunStarted`, whose run id names the folder.

        Raises:
            NotWritable: the folder cannot be created, or exists already.
        """
        started = events[0]
        assert isinstance(started, RunStarted)
        path = root / started.run_id
        _make_folder(root)
        _make_folder(path, exist_ok=False)
        run = cls(path)
        try:
            run.write_log(events)
        except NotWritable:
            with contextlib.suppress(OSError):
                path.rmdir()  # do not leave an empty folder
            raise
        return run

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open an existing run.

        Raises:
            RunNotFound: ``path`` has no log.
            RunUnreadable: ``path`` is or contains a symbolic link.
        """
        if not (path / LOG_NAME).is_file():
            raise RunNotFound(f"{path} is not a run folder (it holds no {LOG_NAME}); see the paths under runs/")
        _refuse_links(path, path)
        return cls(path)

    def write_log(self, events: Sequence[Event]) -> None:
        """Replace the log. To append to a running run, use :class:`~bakeoff.results.log.run_log.RunLogWriter`."""
        write_atomic(self.log_path, encoded(events))

    @functools.cached_property
    def _schema(self) -> int | None:
        try:
            return schema_of_run(self.log_path)
        except OSError:  # it has no log yet
            return None

    def read_log(self) -> RunLog:
        """Read the log.

        Raises:
            RunUnreadable: the log is damaged before its last line, or of another schema.
        """
        log = read_run_log(self.log_path)
        for record in [each for each in log.finished.values() if each.decoder < DECODER]:
            if recount := self.trial(record.id).read_recount():
                log.finished[record.id] = recount.applied(record)
        return log

    def read_manifest(self, log: RunLog | None = None) -> Manifest:
        """Summarise the log.

        Args:
            log: the log, if already read.

        Raises:
            RunUnreadable: as :meth:`read_log`, or the log has no complete event.
        """
        log = log or self.read_log()
        if log.started is None:
            raise RunUnreadable(f"{self.log_path} holds no whole event: the run crashed as it began; measure again")
        return log.manifest(log.started, self.status(log))

    def status(self, log: RunLog | None = None) -> RunStatus:
        """Final status of the run; ``incomplete`` if the log has no end and no process of this machine measures it.

        Args:
            log: the log, if already read.
        """
        log = log or self.read_log()
        if log.ended is not None:
            return log.ended.status
        is_ours = log.started is not None and log.started.host == socket.gethostname()
        alive = log.started is not None and is_ours and _alive(log.started.pid, self.log_path)
        return RunStatus.RUNNING if alive else RunStatus.INCOMPLETE

    def trial_of(self, record: TrialRecord) -> TrialFolder:
        """Folder of a finished trial, whose files must be what was stored.

        Raises:
            RunUnreadable: as for :meth:`trial`.
        """
        requests = RECOUNTED if RECOUNTED in record.files else REQUESTS
        return TrialFolder(self.trial(record.id).path, record.files, requests, self._schema)

    def trial(self, trial_id: str, requests: str = REQUESTS) -> TrialFolder:
        """Folder of one trial, which need not exist, and of whose files nothing is known.

        Args:
            trial_id: of the trial.
            requests: as for :class:`TrialFolder`.

        Raises:
            RunUnreadable: the id is not a plain name, or the folder is or contains a symbolic link.
        """
        if not _TRIAL_ID.fullmatch(trial_id) or len(trial_id.encode()) > _MAX_NAME_BYTES:
            raise RunUnreadable(
                f"{self.path} is refused: the trial id {trial_id[:_MAX_NAME_BYTES]!r} is not a plain name "
                "(letters, digits, '_', '-' and '.', not beginning with '.')"
            )
        path = self.path / "trials" / trial_id
        if path.is_dir():
            _refuse_links(self.path, path.parent, path)
        return TrialFolder(path, requests=requests, schema=self._schema)

    def reuse(self, trial_id: str, source: TrialFolder) -> None:
        """Hard-link the files of a finished trial of another run; copy them across file systems."""
        target = self.trial(trial_id)
        target.create()
        for file in source.path.iterdir():
            if file.is_file() and not file.name.startswith("."):  # a part that a crash has left
                _link(file, target.path / file.name)

    def engine_log(self, label: str, start: int) -> Path:
        """Path of the output of the engine's ``start``-th start; creates its folder."""
        folder = self.path / "engines"
        _make_folder(folder)
        return folder / f"{label}-{start}.log"


def earlier_run(root: Path, name: str, run: str, notify: Callable[[str], object] = lambda _: None) -> RunFolder:
    """Run to resume.

    Args:
        root: folder of runs.
        name: of the experiment.
        run: path of the run's folder, or ``latest`` for the newest run of ``name`` that can be read.
        notify: called with one line for each run that cannot be read and is left out.

    Raises:
        RunNotFound: there is no such run.
    """
    if run != LATEST:
        return RunFolder.open(Path(run))
    newest = next(runs_named(root, name, notify), None)
    if newest is not None:
        return newest
    raise RunNotFound(f"there is no run of '{name}' in {root} to resume; leave --resume out to begin one")


def newest_run(root: Path = RUNS) -> Path:
    """Folder of the newest run.

    Raises:
        RunNotFound: there is none.
    """
    found = runs_below(root)
    if not found:
        raise RunNotFound(f"there is no run in {root}/ that could be the latest; name a run's folder")
    return found[-1].path


def runs_below(root: Path) -> list[RunFolder]:
    """All runs in a folder, oldest first, except symbolic links."""
    folders = (path.parent for path in sorted(root.glob(f"*/{LOG_NAME}")))
    return [RunFolder.open(folder) for folder in folders if not folder.is_symlink()]


def runs_named(root: Path, name: str, notify: Callable[[str], object] = lambda _: None) -> Iterator[RunFolder]:
    """Runs of an experiment that can be read, newest first; ``notify`` as for :func:`readable_runs`."""
    for folder, log in readable_runs(reversed(runs_below(root)), notify):
        if log.started is not None and log.started.name == name:
            yield folder


def readable_runs(
    folders: Iterable[RunFolder], notify: Callable[[str], object] = lambda _: None
) -> Iterator[tuple[RunFolder, RunLog]]:
    """Runs with their logs; ``notify`` is called with one line for each that cannot be read and is left out."""
    for folder in folders:
        try:
            yield folder, folder.read_log()
        except RunUnreadable as error:
            notify(f"{folder.path.name} is left out: {error}")


def new_run_id(name: str) -> str:
    """Unique run id that sorts by time: ``20261120-101500-demo-3f9a81c2``."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{name}-{secrets.token_hex(4)}"


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def _refuse_links(run: Path, *folders: Path) -> None:
    """Refuse symbolic links among ``folders``, and anything but files and folders in the last one.

    Raises:
        RunUnreadable: names the run and the entry.
    """
    try:
        with os.scandir(folders[-1]) as entries:
            odd = [e.path for e in entries if not (e.is_file(follow_symlinks=False) or e.is_dir(follow_symlinks=False))]
    except OSError as error:
        raise RunUnreadable(f"{run} is refused: {folders[-1]} cannot be read ({error.strerror})") from error
    odd = [str(folder) for folder in folders if folder.is_symlink()] + odd
    if odd:
        raise RunUnreadable(
            f"{run} is refused: {odd[0]} is a symbolic link or no regular file; put a copy in its place"
        )


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copy2(source, target)


def _count(path: Path) -> int:
    """Number of records in a file; 1 for files that are one record."""
    if path.suffix == ".frames":
        return count_frames(path)
    return sum(block.count(b"\n") for block in _blocks(path)) if path.suffix == ".jsonl" else 1


def _alive(pid: int, log: Path) -> bool:
    """Whether process ``pid`` runs and started before the last write to the log (pids are reused)."""
    try:
        return psutil.Process(pid).create_time() <= log.stat().st_mtime
    except psutil.NoSuchProcess:
        return False


def _make_folder(path: Path, *, exist_ok: bool = True) -> None:
    try:
        path.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError as error:
        raise NotWritable(f"cannot make the folder {path}: something is there already") from error
    except OSError as error:
        raise NotWritable(f"cannot make the folder {path}: {error.strerror}") from error


def _read(path: Path, kind: type[_Record], stored: StoredFile | None) -> _Record | None:
    """One record that is a file; None if there is no file."""
    data = read_stored(path, stored)
    if data is None:
        return None
    try:
        return decoder_of(kind, path, schema_of(path, data))(data)
    except UNDECODABLE as error:
        raise RunUnreadable(f"{path} cannot be read ({error}); {RESTORE}") from error


def _pretty(record: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
