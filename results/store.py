"""The run folder: one folder per run, one inside it per trial.

::

    <root>/<run_id>/
        manifest.json            the plan, the machine, the status         (atomic)
        search.json              of a search: levels, answers, the end     (atomic)
        engines/<label>-<n>.log  what the engine printed after its n-th start
        trials/<trial_id>/
            streams-<n>.frames   raw reads with their times, by worker     (append-only: the truth)
            telemetry.jsonl      samples of host, engine, client and GPU   (append-only)
            requests.jsonl       the streams decoded                       (derived, atomic)
            trial.json           verdict, counts, engine description       (atomic, last)
            quality.json         its answers beside a reference's          (derived, atomic)

A trial counts as finished when ``trial.json`` is there; a run is complete when the manifest says so. Whatever the
crash, records already appended stay readable (see :mod:`results.jsonl` and :mod:`results.frames`). Runs of another
schema are refused.

A run may come from elsewhere (a CI artifact, a store), so nothing in it may lead out of its folder: trial ids are plain
names, and a run or a trial that is a symbolic link, or holds one, is refused before anything in it is read.
"""

import contextlib
import itertools
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from results.atomic import write_atomic
from results.errors import NotWritable, RunNotFound, RunUnreadable
from results.frames import FrameLog
from results.jsonl import Log, read_log
from results.quality import QualityRecord
from results.records import (
    SCHEMA_VERSION,
    Manifest,
    RequestRecord,
    RunStatus,
    StreamRecord,
    TelemetryRecord,
    TrialRecord,
    schema_problem,
)
from results.search import SearchRecord

S = TypeVar("S", bound=msgspec.Struct)
_TRIAL_ID = re.compile(r"[\w-][\w.-]*")
_MAX_NAME_BYTES = 255


class _Versioned(msgspec.Struct):
    """The one field that is read before the rest, whatever the rest looks like."""

    schema_version: int = SCHEMA_VERSION


class TrialFolder:
    """The files of one trial."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.telemetry_log = path / "telemetry.jsonl"
        self._requests = path / "requests.jsonl"
        self._record = path / "trial.json"
        self._quality = path / "quality.json"

    def create(self) -> None:
        """Make the folder."""
        _make_folder(self.path)

    def stream_log(self, worker: int) -> Path:
        """The raw log of one worker of the client."""
        return self.path / f"streams-{worker}.frames"

    def stream_logs(self) -> list[FrameLog[StreamRecord]]:
        """The raw logs: every exchange that ended, each worker's in the order in which they did."""
        return [FrameLog(path, StreamRecord) for path in sorted(self.path.glob("streams-*.frames"))]

    def read_streams(self) -> Iterator[StreamRecord]:
        """Every exchange that ended, one at a time."""
        return itertools.chain.from_iterable(self.stream_logs())

    def read_telemetry(self) -> Log[TelemetryRecord]:
        """Every sample."""
        return read_log(self.telemetry_log, TelemetryRecord)

    def torn(self) -> dict[str, int]:
        """Logs whose last record a crash tore: name of the file → bytes that readers leave out."""
        logs = {log.path.name: log.torn_bytes for log in self.stream_logs()}
        logs[self.telemetry_log.name] = self.read_telemetry().torn_bytes
        return {name: torn_bytes for name, torn_bytes in logs.items() if torn_bytes}

    def write_requests(self, records: Iterable[RequestRecord]) -> None:
        """Replace the decoded requests."""
        encode = msgspec.json.Encoder().encode
        write_atomic(self._requests, (encode(record) + b"\n" for record in records))

    def has_requests(self) -> bool:
        """Whether the raw log has been decoded."""
        return self._requests.exists()

    def read_requests(self) -> list[RequestRecord]:
        """The decoded requests in the order of the plan; empty when the trial was cut off before decoding."""
        return sorted(read_log(self._requests, RequestRecord).records, key=_plan_order)

    def finish(self, record: TrialRecord) -> None:
        """Write ``trial.json``: from here on the trial counts."""
        write_atomic(self._record, _pretty(record))

    def read_record(self) -> TrialRecord | None:
        """The trial's record, or None when it never finished."""
        if not self._record.exists():
            return None
        return _decode(self._record, TrialRecord)

    def write_quality(self, record: QualityRecord) -> None:
        """Replace how the trial's answers compare with a reference's."""
        write_atomic(self._quality, _pretty(record))

    def read_quality(self) -> QualityRecord | None:
        """How its answers compare, or None where that was not looked at."""
        return _decode(self._quality, QualityRecord) if self._quality.exists() else None


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, root: Path, manifest: Manifest) -> "RunFolder":
        """Make ``root/run_id`` with its manifest.

        Raises:
            NotWritable: the folder cannot be made, or exists already.
        """
        path = root / manifest.run_id
        _make_folder(root)
        _make_folder(path, exist_ok=False)
        run = cls(path)
        try:
            run.write_manifest(manifest)
        except NotWritable:
            with contextlib.suppress(OSError):
                path.rmdir()  # an empty folder says nothing
            raise
        return run

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open an existing run.

        Raises:
            RunNotFound: there is no manifest under ``path``.
            RunUnreadable: it is a symbolic link, or holds one.
        """
        if not (path / "manifest.json").is_file():
            raise RunNotFound(f"{path} is not a run folder (it holds no manifest.json); see the paths under runs/")
        _refuse_links(path, path)
        return cls(path)

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest."""
        write_atomic(self.path / "manifest.json", _pretty(manifest))

    def read_manifest(self) -> Manifest:
        """The manifest as stored.

        Raises:
            RunUnreadable: it is damaged or of another schema.
        """
        return _decode(self.path / "manifest.json", Manifest)

    def write_search(self, record: SearchRecord) -> None:
        """Replace what was looked for and found."""
        write_atomic(self.path / "search.json", _pretty(record))

    def read_search(self) -> SearchRecord | None:
        """What was looked for and found; None where the run is no search."""
        path = self.path / "search.json"
        return _decode(path, SearchRecord) if path.exists() else None

    def status(self) -> RunStatus:
        """The stored status, or ``incomplete`` when it says running and that process is gone."""
        manifest = self.read_manifest()
        if manifest.status is RunStatus.RUNNING and not _alive(manifest.pid, self.path):
            return RunStatus.INCOMPLETE
        return manifest.status

    def trial(self, trial_id: str) -> TrialFolder:
        """The folder of one trial, whether or not it exists yet.

        Raises:
            RunUnreadable: the id is no plain name, or the folder is a symbolic link or holds one.
        """
        if not _TRIAL_ID.fullmatch(trial_id) or len(trial_id.encode()) > _MAX_NAME_BYTES:
            raise RunUnreadable(
                f"{self.path} is refused: the trial id {trial_id[:_MAX_NAME_BYTES]!r} is not a plain name "
                "(letters, digits, '_', '-' and '.', not beginning with '.')"
            )
        path = self.path / "trials" / trial_id
        if path.is_dir():
            _refuse_links(self.path, path.parent, path)
        return TrialFolder(path)

    def adopt(self, trial_id: str, source: TrialFolder, record: TrialRecord) -> None:
        """Take over a finished trial of another run: its logs are linked, or copied across file systems."""
        target = self.trial(trial_id)
        target.create()
        for file in source.path.iterdir():
            if file.is_file() and file.name != "trial.json":
                _link(file, target.path / file.name)
        target.finish(record)

    def engine_log(self, label: str, start: int) -> Path:
        """Where the engine's output of its ``start``-th start goes; the folder is made."""
        folder = self.path / "engines"
        _make_folder(folder)
        return folder / f"{label}-{start}.log"

    def trials(self) -> list[TrialFolder]:
        """Every trial that was started, in the order of the plan."""
        planned = [self.trial(plan.id) for plan in self.read_manifest().trials]
        return [trial for trial in planned if trial.path.is_dir()]


def earlier_run(root: Path, name: str, wanted: str) -> RunFolder:
    """The run to resume: ``latest`` for the newest of that name below ``root``, else the folder ``wanted``.

    Raises:
        RunNotFound: there is none.
    """
    if wanted != "latest":
        return RunFolder.open(Path(wanted))
    for run in reversed(runs_below(root)):
        if run.read_manifest().name == name:
            return run
    raise RunNotFound(f"there is no run of '{name}' in {root} to resume; leave --resume out to begin one")


def runs_below(root: Path) -> list[RunFolder]:
    """All runs in a folder, oldest first; symbolic links to runs are left out."""
    folders = (path.parent for path in sorted(root.glob("*/manifest.json")))
    return [RunFolder.open(folder) for folder in folders if not folder.is_symlink()]


def new_run_id(name: str) -> str:
    """A run id that sorts by time and does not collide: ``20261120-101500-demo-3f9a81c2``."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{name}-{secrets.token_hex(4)}"


def _refuse_links(run: Path, *folders: Path) -> None:
    """Refuse a run in which a folder is a symbolic link, or the last of them holds anything but files and folders.

    Raises:
        RunUnreadable: one line that names the run and the entry.
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


def _plan_order(request: RequestRecord) -> int:
    return request.index


def _alive(pid: int, run: Path) -> bool:
    """Whether ``pid`` runs and was started before the manifest was written (pids are reused)."""
    try:
        return psutil.Process(pid).create_time() <= (run / "manifest.json").stat().st_mtime
    except psutil.NoSuchProcess:
        return False


def _make_folder(path: Path, *, exist_ok: bool = True) -> None:
    try:
        path.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError as error:
        raise NotWritable(f"cannot make the folder {path}: something is there already; choose another --out") from error
    except OSError as error:
        raise NotWritable(
            f"cannot make the folder {path}: {error.strerror}; choose a folder you own with --out"
        ) from error


def _pretty(record: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def _decode(path: Path, kind: type[S]) -> S:
    try:
        data = path.read_bytes()
        if problem := schema_problem(msgspec.json.decode(data, type=_Versioned).schema_version):
            raise RunUnreadable(f"{path} {problem}")
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, OSError) as error:
        raise RunUnreadable(f"{path} cannot be read ({error}); restore it from a copy") from error
