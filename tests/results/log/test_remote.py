"""Runs in a remote store are fetched, cached and updated; nothing is written to the store."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from bakeoff import results
from bakeoff.results.compare.sides import select
from bakeoff.results.errors import NotReachable, RunNotFound
from bakeoff.results.log import remote
from bakeoff.results.log.remote import fetched
from tests.results.builders import Sheet, build_run

SHEET = Sheet(repeats=2, requests=4, run_id="one", invalid=())


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote.platformdirs, "user_cache_dir", lambda _: str(tmp_path / "cache"))


@pytest.fixture(name="store")
def fixture_store(tmp_path: Path) -> Iterator[fsspec.AbstractFileSystem]:
    store = fsspec.filesystem("memory")
    store.put(str(build_run(tmp_path / "origin", SHEET)), "/bucket/runs/one", recursive=True)
    yield store
    store.rm("/bucket", recursive=True)


def test_a_run_in_a_store_is_the_run(store: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    local = results.load(tmp_path / "origin" / "one")
    stored = results.load("memory://bucket/runs/one")
    assert stored.summary.equals(local.summary)
    assert stored.path.name == "one"
    assert select("memory://bucket/runs/one@reference").engine == "reference"


def test_only_what_changed_is_fetched_again(store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetched("memory://bucket/runs/one")
    asked: list[str] = []
    opened = store.open

    def noted(name: str, mode: str) -> object:
        asked.append(name)
        return opened(name, mode)

    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    monkeypatch.setattr(store, "open", noted)
    fetched("memory://bucket/runs/one")
    assert asked == []
    monkeypatch.setattr(store, "open", opened)
    changed = b'{"changed": true}'
    store.pipe("/bucket/runs/one/quality.json", changed)
    gone = next(name for name in store.find("/bucket/runs/one") if name.endswith("telemetry.jsonl"))
    store.rm(gone)
    monkeypatch.setattr(store, "open", noted)
    fetched("memory://bucket/runs/one/")
    assert asked == ["/bucket/runs/one/quality.json"]
    assert (path / "quality.json").read_bytes() == changed
    assert not (path / gone.removeprefix("/bucket/runs/one/")).exists()
    kept = [file for file in before if file.exists() and file.name != remote._FETCHED_FILE]
    assert all(file.read_bytes() == before[file] for file in kept)


def test_nothing_is_written_to_the_store(store: fsspec.AbstractFileSystem) -> None:
    before = {name: store.cat(name) for name in store.find("/bucket")}
    results.load("memory://bucket/runs/one")
    assert {name: store.cat(name) for name in store.find("/bucket")} == before


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        ("memory://bucket/nothing", RunNotFound, "is not a run folder"),
        ("memory://bucket/runs", RunNotFound, "is not a run folder"),
        ("nosuch://bucket/runs/one", NotReachable, "cannot be reached: Protocol not known: nosuch"),
        ("gs://bucket/runs/one", NotReachable, "install gcsfs"),
    ],
)
def test_an_unreachable_run_is_reported_in_one_line(
    store: fsspec.AbstractFileSystem, address: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        results.load(address)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_no_file_of_a_store_leads_out_of_the_copy(store: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    store.store["/bucket/runs/one/../../../evil"] = store.store["/bucket/runs/one/run.jsonl"]
    with pytest.raises(RunNotFound, match="so it is not a run folder"):
        results.load("memory://bucket/runs/one")
    assert not list(tmp_path.rglob("evil"))


def test_a_path_is_a_path(tmp_path: Path) -> None:
    path = build_run(tmp_path, replace(SHEET, run_id="a:b"))
    assert results.load(str(path)).path == path
