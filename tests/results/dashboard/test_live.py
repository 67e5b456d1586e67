"""A run in progress: each refresh reads only what was appended since the last one."""

from dataclasses import replace
from pathlib import Path

import pytest

from bakeoff.results.dashboard.live import Current, LiveRuns
from bakeoff.results.errors import RunUnreadable
from bakeoff.results.files.frames import FrameAppender
from bakeoff.results.files.jsonl import Appender, read_after
from bakeoff.results.log.store import RunFolder, TrialFolder
from bakeoff.results.records import Phase, RunStatus, StreamRecord, TelemetryRecord
from tests.results.amending import amend, begin_trial
from tests.results.builders import FAST, LOADS, MS, S, Sheet, build_run

SHEET = Sheet(engines={"a": FAST}, loads=LOADS[:1], repeats=2, requests=3, finished=1, invalid=(), regret=None)


@pytest.fixture(name="run")
def fixture_run(tmp_path: Path) -> RunFolder:
    """The first of two trials has ended; the second has a folder and no log yet."""
    run = RunFolder.open(build_run(tmp_path, replace(SHEET, status=RunStatus.RUNNING)))
    run.trial("r2-e0-1").create()
    begin_trial(run, "r2-e0-1")
    return run


def add(trial: TrialFolder, worker: int, *ended_s: float, end: str = "complete") -> None:
    """Exchanges that ended at these times; each was planned 1 s before and has its first byte 50 ms after its plan."""
    with FrameAppender(trial.stream_log(worker)) as log:
        for number, at_s in enumerate(ended_s):
            ended_ns = 1_000 * S + round(at_s * S)
            reads = {"read_ns": [ended_ns - S + 50 * MS], "reads": [b"x"]} if end == "complete" else {}
            log.append(
                StreamRecord(
                    index=number, phase=Phase.MEASURED, session="s", turn=0, planned_ns=ended_ns - S, ended_ns=ended_ns,
                    end=end, **reads,
                )
            )  # fmt: skip


def sample(trial: TrialFolder, source: str, value: float) -> None:
    with Appender(trial.telemetry_log) as log:
        log.append(TelemetryRecord(1, source, {"cpu_s": value}))


def look(runs: LiveRuns, run: RunFolder) -> Current:
    now = runs.read(run).current
    assert now is not None
    return now


def test_each_look_adds_what_was_appended(run: RunFolder) -> None:
    trial, runs = run.trial("r2-e0-1"), LiveRuns()
    empty = look(runs, run)
    assert (empty.ends, empty.per_second, empty.first_byte_p50_s, empty.telemetry) == ({}, [], None, {})
    add(trial, 0, 0.5, 1.7)
    sample(trial, "host", 1.0)
    assert look(runs, run).per_second == [1, 1]
    add(trial, 1, 1.2, 3.9)
    add(trial, 0, 4.0, end="timeout")
    sample(trial, "client", 7.0)
    now = look(runs, run)
    assert now.ends == {"complete": 4, "timeout": 1}
    assert now.per_second == [1, 2, 0, 2]
    assert now.first_byte_p50_s == pytest.approx(0.05)
    assert now.telemetry == {"host": {"cpu_s": 1.0}, "client": {"cpu_s": 7.0}}
    assert look(LiveRuns(), run) == now, "who comes late sees the same"


def test_what_was_read_is_not_read_again(run: RunFolder) -> None:
    trial, runs = run.trial("r2-e0-1"), LiveRuns()
    add(trial, 0, 0.5)
    sample(trial, "host", 1.0)
    look(runs, run)
    for path in (trial.stream_log(0), trial.telemetry_log, run.log_path):
        path.write_bytes(b"\xc1" * path.stat().st_size)
    with FrameAppender(trial.path / "tail") as log:
        log.append(
            StreamRecord(index=1, phase=Phase.MEASURED, session="s", turn=0, planned_ns=1, ended_ns=S, end="reset")
        )
    with trial.stream_log(0).open("ab") as grown:
        grown.write((trial.path / "tail").read_bytes())
    now = runs.read(run)
    assert now.current is not None
    assert now.current.ends == {"complete": 1, "reset": 1}
    assert now.current.telemetry == {"host": {"cpu_s": 1.0}}
    assert now.done == 1


def test_a_record_that_is_half_written_counts_at_the_next_look(run: RunFolder) -> None:
    trial, runs = run.trial("r2-e0-1"), LiveRuns()
    add(trial, 0, 0.5, 1.5)
    sample(trial, "host", 1.0)
    frames, lines = trial.stream_log(0).read_bytes(), trial.telemetry_log.read_bytes()
    trial.stream_log(0).write_bytes(frames[:-1])
    trial.telemetry_log.write_bytes(lines[:-1])
    half = look(runs, run)
    assert (half.ends, half.telemetry) == ({"complete": 1}, {})
    trial.stream_log(0).write_bytes(frames)
    trial.telemetry_log.write_bytes(lines)
    whole = look(runs, run)
    assert (whole.ends, whole.telemetry) == ({"complete": 2}, {"host": {"cpu_s": 1.0}})


def test_a_minute_is_shown_and_older_exchanges_are_only_counted(run: RunFolder) -> None:
    trial, runs = run.trial("r2-e0-1"), LiveRuns()
    add(trial, 0, *(0.1 * tenth for tenth in range(3_000)))
    look(runs, run)
    add(trial, 0, 400.0)
    now = look(runs, run)
    assert now.ends == {"complete": 3_001}
    assert now.per_second == [0] * 59 + [1]
    assert look(LiveRuns(), run) == now


def test_a_run_that_has_ended_is_forgotten(run: RunFolder) -> None:
    runs = LiveRuns()
    look(runs, run)
    amend(run.path, status=RunStatus.COMPLETE)
    assert runs.read(run).current is None
    assert runs._runs == {}


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b'{"t_ns": 1, "source": "a", "values": {}}\nnonsense\n')
    _, end = read_after(tmp_path / "none", TelemetryRecord, 0)
    with pytest.raises(RunUnreadable, match="log: a line after byte 0 is damaged"):
        read_after(tmp_path / "log", TelemetryRecord, end)
