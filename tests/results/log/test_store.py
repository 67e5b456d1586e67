"""The run folder: stored data are read back, and every kind of damage is named."""

import contextlib
import os
import stat
import subprocess
from pathlib import Path

import msgspec
import pytest

from bakeoff import results
from bakeoff.results.errors import NotWritable, RunNotFound, RunUnreadable
from bakeoff.results.files.atomic import write_atomic
from bakeoff.results.files.frames import FrameAppender
from bakeoff.results.log.run_log import RunEnded, RunLogWriter
from bakeoff.results.log.store import RunFolder, TrialFolder, new_run_id
from bakeoff.results.records import RunStatus, StreamRecord
from tests.results.amending import amend
from tests.results.builders import Sheet, begun, build_run


def test_a_trial_is_read_back_as_written(demo_path: Path) -> None:
    run = RunFolder.open(demo_path)
    record = next(iter(run.read_log().finished.values()))
    trial = run.trial(record.id)
    assert trial.has_requests()
    assert record.planned_requests == 24
    assert len(trial.read_requests()) == 26
    assert trial.read_telemetry().torn_bytes == 0


def test_raw_streams_survive_any_bytes(tmp_path: Path) -> None:
    trial = TrialFolder(tmp_path / "t")
    trial.create()
    raw = bytes(range(256))
    record = StreamRecord(
        index=0, phase=results.records.Phase.MEASURED, session="s", turn=0, planned_ns=1, ended_ns=2,
        end=results.records.StreamEnd.COMPLETE, read_ns=[3], reads=[raw],
    )  # fmt: skip
    for worker in (0, 1):
        with FrameAppender(trial.stream_log(worker)) as streams:
            streams.append(record)
    assert list(trial.read_streams()) == [record, record]


def test_not_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match=r"holds no run\.jsonl"):
        results.load(tmp_path)


@pytest.mark.parametrize(("version", "fix"), [(1, "measure again"), (2, "measure again"), (4, "update bakeoff")])
def test_another_schema_is_refused_in_one_line(tmp_path: Path, version: int, fix: str) -> None:
    path = build_run(tmp_path, Sheet(finished=0))
    amend(path, schema_version=version)
    with pytest.raises(RunUnreadable) as refused:
        results.load(path)
    reads = "this version of bakeoff reads schema 3 only"
    assert str(refused.value) == f"{path}/run.jsonl has schema {version}, and {reads}; {fix}"


@pytest.mark.parametrize("text", ["{", "[]", '{"schema_version": "x"}', "\x00\x01"])
def test_a_damaged_log_is_named(tmp_path: Path, text: str) -> None:
    path = build_run(tmp_path, Sheet(finished=0))
    (path / "run.jsonl").write_text(f"{text}\n")
    with pytest.raises(RunUnreadable, match=r"run\.jsonl cannot be read"):
        results.load(path)


@pytest.mark.parametrize("text", ["", "{", '{"type": "run_started"'])
def test_a_run_that_crashed_as_it_began_says_so(tmp_path: Path, text: str) -> None:
    path = build_run(tmp_path, Sheet(finished=0))
    (path / "run.jsonl").write_text(text)
    with pytest.raises(RunUnreadable, match=r"run\.jsonl holds no whole event: .*; measure again"):
        results.load(path)


def test_a_damaged_trial_is_named(tmp_path: Path) -> None:
    path = build_run(tmp_path, Sheet(finished=1))
    (folder,) = (path / "trials").iterdir()
    (folder / "quality.json").write_text('{"schema_version": 3, "samples": 5}')
    with pytest.raises(RunUnreadable, match=r"quality\.json cannot be read"):
        _ = results.load(path).finished


def test_run_ids_collide_into_a_clear_message(tmp_path: Path) -> None:
    build_run(tmp_path, Sheet(finished=0))
    with pytest.raises(NotWritable, match="something is there already"):
        build_run(tmp_path, Sheet(finished=0))


def test_run_ids_sort_by_time_and_differ() -> None:
    """Two processes that each save a thousand runs in one second collide once in 2,000 such seconds."""
    ids = {new_run_id("demo") for _ in range(2_000)}
    assert len(ids) == 2_000
    assert all(run_id[8] == "-" and "-demo-" in run_id for run_id in ids)


def test_a_run_that_cannot_be_begun_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bakeoff.results.files.atomic.os.fsync", full)
    with pytest.raises(NotWritable, match=r"run\.jsonl: No space left on device"):
        build_run(tmp_path / "runs", Sheet(finished=0))
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_root_below_a_file_is_not_writable(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(NotWritable, match=r"cannot make the folder .*: Not a directory"):
        build_run(blocker / "runs", Sheet(finished=0))


def test_finished_and_unfinished_trials(tmp_path: Path) -> None:
    run = results.load(build_run(tmp_path, Sheet(finished=5, invalid=())))
    assert len(run.finished) == 5
    assert len(run.unfinished) == 19
    (run.path / "trials" / run.unfinished[0].id).mkdir()
    assert len(results.load(run.path).finished) == 5, "a trial that the log does not say has ended has not"


class TestStatus:
    """A run with status ``running`` counts as running only while its process lives."""

    def test_own_process_is_running(self, tmp_path: Path) -> None:
        assert results.load(build_run(tmp_path, Sheet(finished=0, status=RunStatus.RUNNING))).status == "running"

    def test_dead_process_is_incomplete(self, tmp_path: Path) -> None:
        dead = subprocess.Popen(["true"])
        dead.wait()
        sheet = Sheet(finished=0, status=RunStatus.RUNNING, pid=dead.pid)
        assert results.load(build_run(tmp_path, sheet)).status is RunStatus.INCOMPLETE

    def test_reused_pid_is_incomplete(self, tmp_path: Path) -> None:
        """The process with this pid started after the log was written."""
        path = build_run(tmp_path, Sheet(finished=0, status=RunStatus.RUNNING))
        os.utime(path / "run.jsonl", (1_000_000_000, 1_000_000_000))
        assert results.load(path).status is RunStatus.INCOMPLETE

    @pytest.mark.parametrize("status", [RunStatus.COMPLETE, RunStatus.FAILED, RunStatus.INTERRUPTED])
    def test_an_ended_run_says_how(self, tmp_path: Path, status: RunStatus) -> None:
        assert results.load(build_run(tmp_path, Sheet(finished=0, status=status, pid=1))).status is status


class TestAtomic:
    """A file has all of the new bytes or all of the old ones, and no temporary file remains."""

    def test_replaces(self, tmp_path: Path) -> None:
        path = tmp_path / "report.html"
        write_atomic(path, b"old")
        write_atomic(path, b"new")
        assert path.read_bytes() == b"new"
        assert [p.name for p in tmp_path.iterdir()] == ["report.html"]

    @pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
    def test_new_files_have_the_mode_that_the_umask_leaves(self, tmp_path: Path, umask: int, mode: int) -> None:
        before = os.umask(umask)
        try:
            write_atomic(tmp_path / "file.json", b"new")
            FrameAppender(tmp_path / "streams-0.frames").close()
        finally:
            os.umask(before)
        assert [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()] == [mode, mode]

    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
    def test_a_replaced_file_keeps_its_mode(self, tmp_path: Path, mode: int) -> None:
        path = tmp_path / "report.html"
        path.touch()
        path.chmod(mode)
        write_atomic(path, b"new")
        assert stat.S_IMODE(path.stat().st_mode) == mode

    @pytest.mark.parametrize("step", ["fsync", "replace"])
    def test_a_failing_write_keeps_the_old_bytes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        path = tmp_path / "file.json"
        write_atomic(path, b"old")

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(f"bakeoff.results.files.atomic.os.{step}", full)
        with pytest.raises(NotWritable, match="No space left on device"):
            write_atomic(path, b"new")
        monkeypatch.undo()
        assert path.read_bytes() == b"old"
        assert [p.name for p in tmp_path.iterdir()] == ["file.json"]

    def test_an_interrupt_leaves_no_temporary_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("bakeoff.results.files.atomic.os.replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_atomic(tmp_path / "file.json", b"new")
        assert list(tmp_path.iterdir()) == []

    def test_a_missing_folder_is_one_clear_line(self, tmp_path: Path) -> None:
        with pytest.raises(NotWritable, match=r"cannot write .*: No such file or directory"):
            write_atomic(tmp_path / "none" / "x", b"")


def test_a_log_survives_a_round_trip(tmp_path: Path) -> None:
    events = begun(Sheet(), [])
    run = RunFolder.create(tmp_path, *events)
    assert run.read_log().events == events
    ended = RunEnded(status=RunStatus.INTERRUPTED, ended_utc="2026-11-20T10:42:00+00:00")
    with contextlib.closing(RunLogWriter(run.log_path, lambda: 7)) as writer:
        writer.append(ended)
    assert run.read_log().events == [*events, msgspec.structs.replace(ended, t_ns=7)]
    assert run.status() is RunStatus.INTERRUPTED
