"""The index on disk: one SQLite file in the folder of runs.

A scan costs one ``stat`` per run and reads new or changed run logs. The caller folds the logs of trials, possibly in
another process. A damaged file, or one of another version, is rebuilt. In a read-only folder the index is in memory.
"""

import contextlib
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from bakeoff.results.errors import ResultsError, RunNotFound
from bakeoff.results.index.facts import RunFacts, facts_of, planned_facts
from bakeoff.results.index.query import LABELS, ORDERS, Query, fenced, where
from bakeoff.results.log.store import LOG_NAME, RunFolder
from bakeoff.results.metrics.catalogue import CATALOGUE, DEFINITIONS
from bakeoff.results.records import RunStatus

INDEX_FILE = ".index.sqlite"
_LAYOUT = 5
_WAIT_S = 30.0
_LARGEST = 2**63 - 1
"""Of SQLite's integers; the index has fewer runs."""
_TABLES = """
CREATE TABLE runs (
    id TEXT PRIMARY KEY, stamp TEXT NOT NULL, folded INTEGER NOT NULL, name TEXT NOT NULL, status TEXT NOT NULL,
    created TEXT NOT NULL, branch TEXT, engines TEXT NOT NULL, models TEXT NOT NULL, urls TEXT NOT NULL,
    levels TEXT NOT NULL, workloads TEXT NOT NULL, words TEXT NOT NULL, facts BLOB NOT NULL
);
CREATE INDEX by_time ON runs (created DESC, id DESC);
CREATE INDEX by_name ON runs (name, created DESC, id DESC);
CREATE INDEX waiting ON runs (id) WHERE NOT folded;
"""
_INSERT = "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def _version(metrics: Iterable[str], place: Path | str) -> int:
    """Version of the file: changed definitions and new metrics require folding again. SQLite's has 31 bits.

    It holds for the file where this user made it: one that came with a folder from elsewhere may state any facts.
    """
    made = None
    if isinstance(place, Path):
        status = place.stat()
        made = (os.getuid(), status.st_uid, status.st_dev, status.st_ino)
    return zlib.crc32(repr((_LAYOUT, DEFINITIONS, sorted(metrics), made)).encode()) & 0x7FFF_FFFF


class Scan(msgspec.Struct, frozen=True):
    """Result of a scan.

    Attributes:
        runs: number of run folders.
        changed: ids of new or changed runs.
        unfolded: runs whose logs are not yet folded, newest first: id → stamp at the scan.
    """

    runs: int
    changed: list[str]
    unfolded: dict[str, str]


class Index:
    """Index of the runs in one folder. Thread-safe.

    Args:
        root: folder of run folders.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise RunNotFound(f"{root} is not a folder; give the folder that holds run folders")
        self.root = root
        self._lock = threading.RLock()
        self._db = _connection(root / INDEX_FILE)
        self._inode = _inode(root / INDEX_FILE)
        self._choices: tuple[int, dict[str, list[str]]] | None = None
        self._decoder: msgspec.json.Decoder[RunFacts] = msgspec.json.Decoder(RunFacts)

    def __enter__(self) -> "Index":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def forget(self) -> None:
        """Empty the index; the next scan rebuilds it."""
        with self._lock, self._db:
            self._db.execute("DELETE FROM runs")
            self._choices = None

    def scan(self) -> Scan:
        """Find new, changed and deleted runs.

        Raises:
            RunNotFound: the folder is no longer there.
        """
        logs = dict(_run_logs(self.root))
        with self._lock:
            self._open_again_if_replaced()
            rows = self._db.execute("SELECT id, stamp, folded, status FROM runs").fetchall()
        present = [(run, stamp, status) for run, stamp, _, status in rows if run in logs]
        unchanged = {run for run, stamp, status in present if self._is_unchanged(run, stamp, status, logs[run])}
        changed = [run for run in logs if run not in unchanged]
        planned = {run: self._planned(run) for run in changed}
        stamps = {run: logs[run] for run in planned}
        removed = [(run,) for run, *_ in rows if run not in logs]
        if planned or removed:
            with self._lock, self._db:
                self._db.executemany(_INSERT, [_row(facts, stamps[run]) for run, facts in planned.items()])
                self._db.executemany("DELETE FROM runs WHERE id = ?", removed)
                self._choices = None
        waiting = {run: stamp for run, stamp, is_folded, _ in rows if run in unchanged and not is_folded}
        unfolded = {**waiting, **stamps}
        return Scan(len(logs), changed, {run: unfolded[run] for run in sorted(unfolded, reverse=True)})

    def _open_again_if_replaced(self) -> None:
        """Open the file anew if the folder was deleted and made again: SQLite would refuse every change."""
        if (inode := _inode(self.root / INDEX_FILE)) == self._inode:
            return
        self._db.close()
        self._db = _connection(self.root / INDEX_FILE)
        self._inode = inode if inode is not None else _inode(self.root / INDEX_FILE)
        self._choices = None

    def keep(self, facts: RunFacts, stamp: str) -> None:
        """Store folded facts, unless the run was deleted or changed since the scan.

        Args:
            facts: of the folded run.
            stamp: from the scan.
        """
        with self._lock, self._db:
            row = self._db.execute("SELECT 1 FROM runs WHERE id = ? AND stamp = ?", (facts.id, stamp)).fetchone()
            if row is not None:
                self._db.execute(_INSERT, _row(facts, stamp, folded=True))

    def refresh(self) -> None:
        """Scan, and fold all unfolded runs."""
        for run, stamp in self.scan().unfolded.items():
            self.keep(folded(self.root / run), stamp)

    def runs(self, query: Query) -> list[RunFacts]:
        """Runs that match a query."""
        condition, values = where(query)
        most, skipped = (min(int(number), _LARGEST) for number in (query.limit or 0, query.offset))
        limit = f"LIMIT {most} OFFSET {skipped}" if query.limit is not None else ""
        order = ORDERS[query.order]
        # the SQL is our own; user input is in values only
        sql = f"SELECT facts FROM runs {condition} {order} {limit}"  # noqa: S608
        with self._lock:
            rows = self._db.execute(sql, values).fetchall()
        return [self._decoder.decode(facts) for (facts,) in rows]

    def count(self, query: Query) -> int:
        """Number of runs that match a query, ignoring its limit."""
        condition, values = where(query)
        with self._lock:
            return int(self._db.execute(f"SELECT count(*) FROM runs {condition}", values).fetchone()[0])  # noqa: S608

    def run(self, run_id: str) -> RunFacts | None:
        """Facts of a run; None if the id is unknown."""
        with self._lock:
            row = self._db.execute("SELECT facts FROM runs WHERE id = ?", (run_id,)).fetchone()
        return None if row is None else self._decoder.decode(row[0])

    def stamp(self, run_id: str) -> str | None:
        """Stamp of a run, which changes when the run does; None if the id is unknown."""
        with self._lock:
            row = self._db.execute("SELECT stamp FROM runs WHERE id = ?", (run_id,)).fetchone()
        return None if row is None else row[0]

    def left_out(self) -> list[str]:
        """One line for each run that cannot be read, with the reason."""
        with self._lock:
            rows = self._db.execute("SELECT facts FROM runs WHERE name = '' ORDER BY id").fetchall()
        every = [self._decoder.decode(facts) for (facts,) in rows]
        return [f"{facts.id} is left out: {facts.problem}" for facts in every]

    def newest_name(self) -> str | None:
        """Name of the newest run's experiment."""
        newest = self.runs(Query(limit=1))
        return newest[0].name if newest else None

    def choices(self) -> dict[str, list[str]]:
        """Possible values of the query's filters by their names, sorted."""
        with self._lock:
            version = self._db.execute("PRAGMA data_version").fetchone()[0]  # another process may have written
            if self._choices is None or self._choices[0] != version:
                self._choices = (version, self._distinct_values())
            return self._choices[1]

    def _distinct_values(self) -> dict[str, list[str]]:
        distinct = {column: self._distinct(column) for column in ("name", "branch", "status")}
        for key, column in LABELS.items():
            distinct[key] = {label for labels in self._distinct(column) for label in labels.split("\n")}
        return {key: sorted(filter(None, values)) for key, values in distinct.items()}

    def _distinct(self, column: str) -> set[str]:
        return {value for (value,) in self._db.execute(f"SELECT DISTINCT {column} FROM runs")}  # noqa: S608

    def unfolded(self) -> int:
        """Number of unfolded runs."""
        with self._lock:
            return int(self._db.execute("SELECT count(*) FROM runs WHERE NOT folded").fetchone()[0])

    def _is_unchanged(self, run: str, stamp: str, status: str, seen: str) -> bool:
        """Whether a run is unchanged. A running run may have died without a change of its files."""
        if stamp != seen:
            return False
        try:
            return status != RunStatus.RUNNING or RunFolder.open(self.root / run).status() is RunStatus.RUNNING
        except ResultsError:
            return False

    def _planned(self, run: str) -> RunFacts:
        try:
            return planned_facts(RunFolder.open(self.root / run))
        except ResultsError as error:
            return unreadable(run, error)


def folded(path: Path) -> RunFacts:
    """Facts of a run from its folded logs; of an unreadable run, the reason."""
    try:
        return facts_of(path)
    except Exception as error:  # noqa: BLE001  (one broken run must not keep the others out of the index)
        return unreadable(path.name, error)


def unreadable(run: str, error: Exception) -> RunFacts:
    """Facts of an unreadable run."""
    return RunFacts(
        id=run, name="", status=RunStatus.INCOMPLETE, created_utc="", finished=0, valid=0, problem=str(error)
    )


def _run_logs(root: Path) -> Iterator[tuple[str, str]]:
    """Id and stamp of each run; the stamp is the modification time and size of its log."""
    try:
        found = os.scandir(root)
    except OSError as error:
        raise RunNotFound(f"the folder of runs {root} cannot be read: {error.strerror}") from error
    with found as entries:
        for entry in entries:
            try:
                status = os.stat(f"{entry.path}/{LOG_NAME}")  # noqa: PTH116  (called for 10,000 runs)
            except (FileNotFoundError, NotADirectoryError):
                continue
            yield entry.name, f"{status.st_mtime_ns}:{status.st_size}"


def _row(facts: RunFacts, stamp: str, *, folded: bool = False) -> tuple[str | int | bytes | None, ...]:
    source = facts.source
    searchable = [
        facts.id, facts.name, facts.status, facts.machine, *facts.engines, *facts.levels, *facts.workloads,
        *facts.models, *facts.urls, source.commit if source else "", (source.branch or "") if source else "",
        facts.problem or "",
    ]  # fmt: skip
    return (
        facts.id,
        stamp,
        int(folded),
        facts.name,
        facts.status.value,
        facts.created_utc,
        source.branch if source else None,
        *(fenced(*labels) for labels in (facts.engines, facts.models, facts.urls, facts.levels, facts.workloads)),
        "\n".join(searchable).casefold(),
        msgspec.json.encode(facts),
    )


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _connection(path: Path) -> sqlite3.Connection:
    try:
        return _opened(path)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode not in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
            return _opened(":memory:")
    with contextlib.suppress(sqlite3.DatabaseError, OSError):
        path.unlink()
        return _opened(path)
    return _opened(":memory:")


def _opened(place: Path | str) -> sqlite3.Connection:
    if isinstance(place, Path):
        with contextlib.suppress(OSError):
            place.touch()
    db = sqlite3.connect(place, timeout=_WAIT_S, check_same_thread=False)
    try:
        db.execute("PRAGMA synchronous = OFF")  # a file damaged by a power cut is rebuilt
        version = _version(CATALOGUE, place)
        if db.execute("PRAGMA user_version").fetchone()[0] != version:
            with db:
                db.execute("DROP TABLE IF EXISTS runs")
                for statement in _TABLES.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {version}")
        with db:
            # fails early if the file is read-only; runs that could not be read may have been restored since
            db.execute("DELETE FROM runs WHERE name = ''")
    except sqlite3.DatabaseError:
        db.close()
        raise
    return db
