"""The append-only log: wherever it is cut or damaged, it reports what was lost."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bakeoff.results.errors import NotWritable, RunUnreadable
from bakeoff.results.files.jsonl import Appender, Log, read_after, read_log, whole_records
from bakeoff.results.records import TelemetryRecord

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
RECORDS = st.builds(
    TelemetryRecord,
    t_ns=st.integers(0, 2**62),
    source=TEXTS,
    values=st.dictionaries(TEXTS, st.none() | st.integers(-(2**50), 2**50) | TEXTS, max_size=3),
    reasons=st.dictionaries(TEXTS, TEXTS, max_size=2),
)


def write(path: Path, records: list[TelemetryRecord]) -> None:
    with Appender(path) as log:
        for record in records:
            log.append(record)


@given(records=st.lists(RECORDS, min_size=1, max_size=6), data=st.data())
def test_cut_at_any_byte_loses_at_most_the_torn_record(
    tmp_path_factory: pytest.TempPathFactory, records: list[TelemetryRecord], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "log.jsonl"
    write(path, records)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    complete = whole[:cut].count(b"\n")
    log = read_log(path, TelemetryRecord)
    assert log.records == records[:complete]
    assert log.torn_bytes == cut - (whole[:cut].rfind(b"\n") + 1)
    assert path.read_bytes() == whole[:cut], "a reader never rewrites"


class CrashingLog(RuleBasedStateMachine):
    """Append, crash at any byte that is not yet acknowledged, reopen, append again; the model is a plain list."""

    folder: Path

    @initialize()
    def start(self) -> None:
        self.path = self.folder / f"{id(self)}.jsonl"
        self.path.unlink(missing_ok=True)
        self.acknowledged: list[TelemetryRecord] = []

    @rule(record=RECORDS)
    def append(self, record: TelemetryRecord) -> None:
        write(self.path, [record])
        self.acknowledged.append(record)

    @rule(record=RECORDS, data=st.data())
    def crash_while_appending(self, record: TelemetryRecord, data: st.DataObject) -> None:
        before = self.path.read_bytes() if self.path.exists() else b""
        write(self.path, [record])
        line = self.path.read_bytes()[before.rfind(b"\n") + 1 :]
        kept = data.draw(st.integers(0, len(line) - 1))
        self.path.write_bytes(before[: before.rfind(b"\n") + 1] + line[:kept])

    @invariant()
    def every_acknowledged_record_is_read(self) -> None:
        assert read_log(self.path, TelemetryRecord).records == self.acknowledged


def test_crashing_log(tmp_path: Path) -> None:
    from hypothesis.stateful import run_state_machine_as_test  # noqa: PLC0415

    CrashingLog.folder = tmp_path
    run_state_machine_as_test(CrashingLog, settings=settings(stateful_step_count=12))


def test_a_long_torn_tail_is_cut_before_appending(tmp_path: Path) -> None:
    """Longer than one block of the backward search."""
    path = tmp_path / "log.jsonl"
    first = TelemetryRecord(1, "host", {})
    write(path, [first])
    with path.open("ab") as file:
        file.write(b'{"t_ns":2,"source":"' + b"x" * 150_000)
    assert read_log(path, TelemetryRecord).torn_bytes > 150_000
    write(path, [first])
    assert read_log(path, TelemetryRecord).records == [first, first]


def test_a_damaged_middle_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, [TelemetryRecord(i, "host", {}) for i in range(3)])
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1][:-3]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(RunUnreadable, match=r"log\.jsonl: line 2 is damaged .* restore the file from a copy"):
        read_log(path, TelemetryRecord)


def test_a_damaged_last_line_counts_as_torn(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, [TelemetryRecord(1, "host", {})])
    with path.open("ab") as file:
        file.write(b'{"t_ns":\n')
    log = read_log(path, TelemetryRecord)
    assert len(log.records) == 1
    assert log.torn_bytes == 9


def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    log = read_log(tmp_path / "none.jsonl", TelemetryRecord)
    assert log.records == []
    assert log.torn_bytes == 0


def test_an_unwritable_place_is_one_clear_line(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(NotWritable, match=r"cannot write .*: Not a directory"):
        Appender(blocker / "log.jsonl")


def test_a_full_disk_says_that_earlier_records_are_safe() -> None:
    log = Appender(Path("/dev/full"))
    with pytest.raises(NotWritable, match=r"No space left on device; earlier records are safe"):
        log.append(TelemetryRecord(1, "host", {}))


@pytest.mark.parametrize("room", [0, 1, 40])
def test_what_a_full_disk_took_of_a_record_is_cut_off_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Otherwise the next record, once there is space, would be joined to it and damage the whole log."""
    real, left = os.write, room

    def full(handle: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(handle, data[:left])
        left -= written
        return written

    first, second, third = (TelemetryRecord(t_ns, "host", {"a": "x" * 50}) for t_ns in (1, 2, 3))
    path = tmp_path / "log.jsonl"
    with Appender(path) as log:
        log.append(first)
        monkeypatch.setattr("bakeoff.results.files.append_only.os.write", full)
        with pytest.raises(NotWritable, match=r"log\.jsonl: No space left on device; earlier records are safe"):
            log.append(second)
        monkeypatch.undo()
        assert read_log(path, TelemetryRecord) == Log([first])
        log.append(third)
    assert read_log(path, TelemetryRecord) == Log([first, third])


def test_a_disk_that_fails_at_the_end_is_one_clear_line_and_the_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Appender(tmp_path / "log.jsonl")

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("bakeoff.results.files.append_only.os.fsync", broken)
    with pytest.raises(NotWritable, match=r"log\.jsonl: Input/output error; the last records may be lost"):
        log.close()
    log.close()


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(
        "bakeoff.results.files.append_only.os.write", lambda handle, data: real(handle, bytes(data)[:5])
    )
    path = tmp_path / "log.jsonl"
    write(path, [TelemetryRecord(1, "host", {"a": "long enough for many writes"})])
    monkeypatch.undo()
    assert read_log(path, TelemetryRecord).records[0].values == {"a": "long enough for many writes"}


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    log = Appender(tmp_path / "log.jsonl")
    log.close()
    log.close()


@pytest.mark.parametrize("line", [b'{"t_ns": 1, "source": "\xff", "values": {}}', b"[" * 100_000, b"{", b"\0" * 20])
def test_a_line_of_any_damage_is_refused_before_the_last_and_torn_at_the_end(tmp_path: Path, line: bytes) -> None:
    good = b'{"t_ns": 1, "source": "host", "values": {}}\n'
    path = tmp_path / "log.jsonl"
    path.write_bytes(good + line + b"\n" + good)
    with pytest.raises(RunUnreadable, match=r"log\.jsonl: line 2 is damaged .*; restore the file from a copy"):
        read_log(path, TelemetryRecord)
    with pytest.raises(RunUnreadable, match=r"log\.jsonl: a line after byte 0 is damaged"):
        read_after(path, TelemetryRecord, 0)
    path.write_bytes(good + line + b"\n")
    assert read_log(path, TelemetryRecord).torn_bytes == len(line) + 1


@pytest.mark.parametrize("size", [1, 7, 45, 46, 100, 4096])
def test_a_file_of_many_blocks_is_read_whole_and_its_damaged_line_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("bakeoff.results.files.jsonl._SLICE", size)
    path = tmp_path / "requests.jsonl"
    records = [TelemetryRecord(t_ns, "host", {}) for t_ns in range(8, 13)]
    write(path, records)
    assert list(whole_records(path, TelemetryRecord, None)) == records
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"{\n", *lines[4:]]))
    with pytest.raises(RunUnreadable, match=r"requests\.jsonl: line 4 is damaged"):
        list(whole_records(path, TelemetryRecord, None))
    path.write_bytes(b"".join(lines)[:-1])
    with pytest.raises(RunUnreadable, match=r"requests\.jsonl ends within a line"):
        list(whole_records(path, TelemetryRecord, None))
