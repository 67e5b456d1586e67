"""A run that is copied to a store: what the user is told has ended is there, and a store that fails costs no trial."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from bakeoff import results
from bakeoff.harness.cli.measured import destination
from bakeoff.harness.conduct.progress import QuietObserver
from bakeoff.harness.conduct.run import create_run, run_experiment, run_into
from bakeoff.harness.conduct.world import inside
from bakeoff.harness.experiment.config import Experiment
from bakeoff.harness.experiment.reading import experiment_from
from bakeoff.harness.virtual import Fixed, PerToken, VirtualEngine, VirtualWorld
from bakeoff.results.errors import NotReachable, NotWritable
from bakeoff.results.log import remote
from bakeoff.results.log.remote import RunCopy
from bakeoff.results.log.run_log import RunLog
from bakeoff.results.records import RunStatus

RUNS = "memory://bucket/runs"


@pytest.fixture
def experiment() -> Experiment:
    data = {
        "name": "t",
        "repeats": 3,
        "model": {"name": "m"},
        "engines": [{"adapter": "openai", "url": "http://127.0.0.1:9", "label": "a"}],
        "workload": {"name": "random", "options": {"input_tokens": 8, "output_tokens": 5}},
        "loads": [{"concurrency": 1}],
        "trial": {"duration_s": 10, "ramp_s": 2},
    }
    return experiment_from(data, "t")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fsspec.AbstractFileSystem]:
    monkeypatch.setattr(remote.platformdirs, "user_cache_dir", lambda _: str(tmp_path / "cache"))
    store = fsspec.filesystem("memory")
    yield store
    if store.exists("/bucket"):
        store.rm("/bucket", recursive=True)


class Noting(QuietObserver):
    """Compares the copy with what it is told, and keeps the notices."""

    def __init__(self, address: str | None) -> None:
        self.address = address
        self.finished: list[int] = []
        self.notices: list[str] = []

    def event(self, log: RunLog) -> None:
        self.finished.append(len(log.finished))
        if self.address is not None:
            stored = results.load(self.address)
            stored.check()
            assert set(stored.log.finished) == set(log.finished)

    def notice(self, text: str) -> None:
        self.notices.append(text)


def world() -> VirtualWorld:
    return VirtualWorld({"a": VirtualEngine(service=PerToken(Fixed(0.05), Fixed(0.01)))})


def test_what_is_said_to_have_ended_is_in_the_store(
    store: fsspec.AbstractFileSystem, experiment: Experiment, tmp_path: Path
) -> None:
    virtual = world()
    with inside(virtual):
        folder = create_run(experiment, tmp_path)
        observer, copy = Noting(f"{RUNS}/{folder.path.name}"), RunCopy.begin(folder, RUNS)
        virtual.run(run_experiment(experiment, folder, observer, copy=copy))
    assert observer.finished[-1] == 3
    assert observer.notices == []
    stored = results.load(f"{RUNS}/{folder.path.name}")
    assert stored.status is RunStatus.COMPLETE
    assert stored.summary.equals(results.load(folder.path).summary)


@pytest.mark.parametrize("recovers", [True, False])
def test_a_store_that_fails_costs_no_trial(
    store: fsspec.AbstractFileSystem,
    experiment: Experiment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    recovers: bool,
) -> None:
    virtual, observer, put = world(), Noting(None), store.put_file

    def failing(local: str, target: str) -> None:
        if observer.finished and (not recovers or observer.finished[-1] < 2):
            raise OSError("no route to host")
        put(local, target)

    with inside(virtual):
        folder = create_run(experiment, tmp_path)
        copy = RunCopy.begin(folder, RUNS)
        monkeypatch.setattr(store, "put_file", failing)
        if recovers:
            virtual.run(run_experiment(experiment, folder, observer, copy=copy))
        else:
            with pytest.raises(NotWritable, match=f"the run is whole in {folder.path}: copy that folder"):
                virtual.run(run_experiment(experiment, folder, observer, copy=copy))
    assert results.load(folder.path).status is RunStatus.COMPLETE
    assert len(observer.notices) == 1
    assert "no route to host; the run goes on" in observer.notices[0]
    if recovers:
        assert results.load(f"{RUNS}/{folder.path.name}").status is RunStatus.COMPLETE


def test_a_store_that_cannot_be_written_leaves_no_folder(
    store: fsspec.AbstractFileSystem, experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(local: str, target: str) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(store, "put_file", refusing)
    with inside(world()), pytest.raises(NotReachable, match="cannot be written: Access Denied"):
        run_into(create_run(experiment, tmp_path / "runs"), experiment, store=RUNS)
    assert list((tmp_path / "runs").iterdir()) == []


def test_out_is_a_folder_or_the_address_of_a_store() -> None:
    assert destination("results") == (Path("results"), None)
    assert destination(Path("results")) == (Path("results"), None)
    assert destination("s3://bucket/runs") == (Path("runs"), "s3://bucket/runs")
