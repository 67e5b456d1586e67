"""The run's log: a line that was changed, removed or moved is noticed, wherever it is."""

import contextlib
import itertools
from pathlib import Path

import pytest

from bakeoff.results.errors import RunUnreadable
from bakeoff.results.log.run_log import EngineStarting, RunLogWriter, encoded, read_run_log
from bakeoff.results.log.store import RunFolder
from tests.results.builders import Sheet, build_run

EVENTS = [EngineStarting(engine="e", turn=1, start=start) for start in range(1, 5)]


@pytest.fixture(name="log")
def fixture_log(tmp_path: Path) -> Path:
    """Log of a run with an event more than its start for each of four starts."""
    run = RunFolder(build_run(tmp_path, Sheet(finished=0)))
    run.write_log([*run.read_log().events[:1], *EVENTS])
    return run.log_path


def test_events_that_are_written_at_once_and_one_by_one_are_the_same_bytes(log: Path) -> None:
    whole = log.read_bytes()
    events = read_run_log(log).events
    log.write_bytes(encoded(events[:1]))
    for event in events[1:]:
        with contextlib.closing(RunLogWriter(log, lambda: 0)) as writer:
            writer.append(event)
    assert log.read_bytes() == whole
    assert read_run_log(log).events == events


def test_every_changed_digit_is_noticed(log: Path) -> None:
    whole = log.read_bytes()
    digits = [at for at, byte in enumerate(whole) if byte in b"0123456789"]
    for at in digits[-400:]:
        log.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(RunUnreadable):
            read_run_log(log)


def test_lines_cannot_be_removed_repeated_or_exchanged(log: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    without = [[*lines[:i], *lines[i + 1 :]] for i in range(1, len(lines) - 1)]
    repeated = [[*lines[: i + 1], *lines[i:]] for i in range(len(lines))]
    exchanged = [
        [lines[{i: j, j: i}.get(k, k)] for k in range(len(lines))]
        for i, j in itertools.combinations(range(1, len(lines)), 2)
    ]
    for changed in (*without, *repeated, *exchanged):
        log.write_bytes(b"".join(changed))
        with pytest.raises(RunUnreadable, match="was changed or removed"):
            read_run_log(log)


def test_the_end_may_be_missing_as_after_a_crash(log: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:3]) + lines[3][:20])
    assert read_run_log(log).events[1:] == EVENTS[:2]
    with contextlib.closing(RunLogWriter(log, lambda: 0)) as writer:
        writer.append(EVENTS[2])
    assert log.read_bytes() == b"".join(lines[:4])


def test_a_log_by_an_earlier_version_is_read_and_continued_without_hashes(log: Path) -> None:
    events = read_run_log(log).events
    plain = b"".join(line.rpartition(b',"chain":')[0] + b"}\n" for line in log.read_bytes().splitlines())
    log.write_bytes(plain)
    assert read_run_log(log).events == events
    with contextlib.closing(RunLogWriter(log, lambda: 0)) as writer:
        writer.append(EVENTS[0])
    assert b"chain" not in log.read_bytes()
    assert read_run_log(log).events == [*events, EVENTS[0]]
