"""The copy of a run in a store can be read after each of its updates, wherever an update is cut off."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

from bakeoff import results
from bakeoff.results.errors import NotReachable
from bakeoff.results.log import remote
from bakeoff.results.log.remote import RunCopy
from bakeoff.results.log.run_log import RunLog, RunLogWriter, TrialFinished
from bakeoff.results.log.store import RunFolder
from bakeoff.results.records import RunStatus
from tests.results.builders import LOADS, Sheet, build_run

SHEET = Sheet(loads=LOADS[:1], repeats=2, requests=4, run_id="one", invalid=())
ADDRESS = "memory://bucket/runs/one"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote.platformdirs, "user_cache_dir", lambda _: str(tmp_path / "cache"))


@pytest.fixture(name="store")
def fixture_store() -> Iterator[fsspec.AbstractFileSystem]:
    store = fsspec.filesystem("memory")
    yield store
    if store.exists("/bucket"):
        store.rm("/bucket", recursive=True)


class Cut(Exception):
    """The store failed."""


def replayed(tmp_path: Path, run: RunFolder) -> Iterator[RunLog]:
    """Append the log of ``run`` to a new folder of the same trials, event by event; yields the log so far."""
    events = run.read_log().events
    folder = RunFolder.create(tmp_path / "replayed", events[0])
    (run.path / "trials").rename(folder.path / "trials")
    writer = RunLogWriter(folder.log_path, lambda: 0)
    yield writer.log
    for event in events[1:]:
        writer.append(event)
        yield writer.log
    writer.close()


def test_what_the_log_says_is_there_wherever_the_store_fails(
    store: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder.open(build_run(tmp_path, SHEET))
    logs = replayed(tmp_path, run)
    next(logs)
    copy = RunCopy.begin(RunFolder.open(tmp_path / "replayed" / "one"), "memory://bucket/runs/")
    put, left = store.put_file, [0]

    def failing(local: str, target: str) -> None:
        if not left[0]:
            raise Cut("no route to host")
        left[0] -= 1
        put(local, target)

    for log in logs:
        wanted = set(log.finished)
        monkeypatch.setattr(store, "put_file", failing)
        for allowed in range(3):  # the update is tried again and again, each time with a few more files
            left[0] = allowed
            copy.update(log)
            assert set(results.load(ADDRESS).log.finished) <= wanted
            results.load(ADDRESS).check()
        monkeypatch.setattr(store, "put_file", put)
        copy.update(log)
        assert copy.problem is None
        stored = results.load(ADDRESS)
        stored.check()
        assert set(stored.log.finished) == wanted
        if log.ended is None:
            assert stored.status is RunStatus.INCOMPLETE
    assert results.load(ADDRESS).summary.equals(results.load(tmp_path / "replayed" / "one").summary)


def test_the_files_of_a_trial_are_stored_when_it_has_ended(store: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    run = RunFolder.open(build_run(tmp_path, replace(SHEET, finished=1, status=RunStatus.RUNNING)))
    (run.path / "trials" / "under-way").mkdir()
    (run.path / "trials" / "under-way" / "streams-0.frames").write_bytes(b"half")
    (run.path / "engines").mkdir()
    run.engine_log("main", 1).write_text("ready\n")
    RunCopy.begin(run, "memory://bucket/runs")
    names = {name.removeprefix("/bucket/runs/one/") for name in store.find("/bucket/runs/one")}
    (finished,) = run.read_log().finished
    assert {name.split("/")[1] for name in names if name.startswith("trials/")} == {finished}
    assert {"run.jsonl", "engines/main-1.log"} <= names


def test_a_file_is_stored_once(
    store: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder.open(build_run(tmp_path, SHEET))
    copy = RunCopy.begin(run, "memory://bucket/runs")
    asked: list[str] = []
    monkeypatch.setattr(store, "put_file", lambda local, _: asked.append(Path(local).name))
    copy.update(run.read_log())
    assert asked == []
    (run.path / "trials" / next(iter(run.read_log().finished)) / "quality.json").write_text("{}")
    copy.update(run.read_log())
    assert asked == ["quality.json"]


def test_a_reader_of_a_run_that_goes_on_finds_every_file_that_the_log_names(
    store: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder.open(build_run(tmp_path, SHEET))
    logs = replayed(tmp_path, run)
    log = next(logs)
    copy = RunCopy.begin(RunFolder.open(tmp_path / "replayed" / "one"), "memory://bucket/runs")
    opened = store.open

    def meanwhile(name: str, mode: str) -> Any:
        """Before each file that is read, the run goes on to the end of a trial."""
        for log in logs:
            copy.update(log)
            if isinstance(log.events[-1], TrialFinished):
                break
        return opened(name, mode)

    monkeypatch.setattr(store, "open", meanwhile)
    while log.ended is None:
        results.load(ADDRESS).check()
    monkeypatch.setattr(store, "open", opened)
    assert results.load(ADDRESS).status is RunStatus.COMPLETE


def test_a_store_that_cannot_be_written_is_an_error_of_one_line(
    store: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(local: str, target: str) -> None:
        raise PermissionError(f"Access Denied\n({target})")

    monkeypatch.setattr(store, "put_file", refusing)
    run = RunFolder.open(build_run(tmp_path, SHEET))
    with pytest.raises(NotReachable, match=r"^memory://bucket/runs/one cannot be written: Access Denied \(.*\)$"):
        RunCopy.begin(run, "memory://bucket/runs")
    with pytest.raises(NotReachable, match="give it without file://"):
        RunCopy.begin(run, tmp_path.as_uri())
    with pytest.raises(NotReachable, match="names no place in the store"):
        RunCopy.begin(run, "memory://")


def test_no_message_has_a_password(tmp_path: Path) -> None:
    run = RunFolder.open(build_run(tmp_path, SHEET))
    with pytest.raises(NotReachable) as raised:
        RunCopy.begin(run, "nosuch://user:secret@host/runs")
    assert str(raised.value) == "nosuch://host/runs/one cannot be reached: Protocol not known: nosuch"
