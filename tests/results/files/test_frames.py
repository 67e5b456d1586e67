"""Binary logs: every record survives, a torn tail is dropped, and damage is reported."""

import itertools
import os
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.results.errors import NotWritable, RunUnreadable
from bakeoff.results.files import frames
from bakeoff.results.files.frames import FrameAppender, FrameLog


class Item(msgspec.Struct):
    number: int
    data: bytes


ITEMS = [Item(i, bytes([i]) * i) for i in range(5)]


def write(path: Path, items: list[Item]) -> None:
    with FrameAppender(path) as log:
        for item in items:
            log.append(item)


def test_what_is_written_is_read(tmp_path: Path):
    write(tmp_path / "log", ITEMS[:3])
    write(tmp_path / "log", ITEMS[3:])
    log = FrameLog(tmp_path / "log", Item)
    assert list(log) == list(log) == ITEMS
    assert log.torn_bytes == 0


def test_a_missing_file_is_an_empty_log(tmp_path: Path):
    assert list(FrameLog(tmp_path / "none", Item)) == []


def test_only_flushed_records_are_in_the_file(tmp_path: Path):
    log = FrameAppender(tmp_path / "log")
    log.append(ITEMS[1])
    assert list(FrameLog(tmp_path / "log", Item)) == []
    log.flush()
    assert list(FrameLog(tmp_path / "log", Item)) == [ITEMS[1]]
    log.close()
    log.close()


@given(cut=st.integers(1, 60))
def test_a_torn_tail_is_left_out_and_cut_off_before_the_next_record(tmp_path_factory: pytest.TempPathFactory, cut: int):
    path = tmp_path_factory.mktemp("frames") / "log"
    write(path, ITEMS)
    whole = path.read_bytes()
    path.write_bytes(whole[: max(0, len(whole) - cut)])
    log = FrameLog(path, Item)
    kept = list(log)
    assert kept == ITEMS[: len(kept)]
    assert log.torn_bytes == len(path.read_bytes()) - sum(4 + len(msgspec.msgpack.encode(item)) for item in kept)
    write(path, [ITEMS[4]])
    assert list(FrameLog(path, Item)) == [*kept, ITEMS[4]]


def test_damage_is_not_a_torn_tail(tmp_path: Path):
    write(tmp_path / "log", ITEMS)
    data = bytearray((tmp_path / "log").read_bytes())
    data[5] = 0xC1  # the one byte that msgpack never uses
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(RunUnreadable, match="frame at byte 4 is damaged"):
        list(FrameLog(tmp_path / "log", Item))


def test_a_frame_that_claims_gigabytes_is_refused_before_it_is_read(tmp_path: Path):
    """A sparse file has that many bytes without occupying them."""
    write(tmp_path / "log", ITEMS[:2])
    at = (tmp_path / "log").stat().st_size
    with (tmp_path / "log").open("ab") as file:
        file.write(b"\xff\xff\xff\xff")
        file.truncate(at + 4 + 0xFFFFFFFF)
    read: list[Item] = []
    tracemalloc.start()
    try:
        with pytest.raises(
            RunUnreadable, match=rf"log: the frame at byte {at + 4} claims 4,096 MiB, above the limit of"
        ):
            read += FrameLog(tmp_path / "log", Item)
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()


class Rich(msgspec.Struct):
    """Every kind of value that msgpack has for our records."""

    values: list[int | float | bool | str | list[int] | dict[str, int] | None]
    data: list[bytes]


NUMBERS = [0, 127, 128, 255, 256, 2**16, 2**32, -1, -33, -129, -40_000, -(2**40)]
RICH = [
    Rich([size, "x" * size, [1] * size, {str(i): i for i in range(size)}], [b"x" * size])
    for size in (0, 15, 16, 31, 32, 300, 70_000)
]
RICH += [Rich([*NUMBERS, 0.5, True, False, None], [])]


@pytest.mark.parametrize("record", RICH)
def test_a_length_beyond_the_end_is_damage_if_a_whole_record_follows_it_and_else_a_torn_tail(
    tmp_path: Path, record: Rich
):
    body = msgspec.msgpack.encode(record)
    for kept in (body, body + b"\0\0\0\1\x80"):
        (tmp_path / "log").write_bytes((len(kept) + 1).to_bytes(4, "big") + kept)
        with pytest.raises(RunUnreadable, match=r"the frame at byte 4 claims [\d,]+ bytes, beyond the end of the file"):
            list(FrameLog(tmp_path / "log", Rich))
    for cut in {0, 1, len(body) // 3, len(body) - 1}:
        (tmp_path / "log").write_bytes(len(body).to_bytes(4, "big") + body[:cut])
        log = FrameLog(tmp_path / "log", Rich)
        assert (list(log), log.torn_bytes) == ([], 4 + cut)


def test_every_wrong_length_is_noticed(tmp_path: Path):
    write(tmp_path / "log", ITEMS)
    whole = (tmp_path / "log").read_bytes()
    starts = [0, *itertools.accumulate(4 + len(msgspec.msgpack.encode(item)) for item in ITEMS)][:-1]
    for byte, bit in itertools.product([start + i for start in starts for i in range(4)], range(8)):
        data = bytearray(whole)
        data[byte] ^= 1 << bit
        (tmp_path / "log").write_bytes(data)
        with pytest.raises(RunUnreadable):
            list(FrameLog(tmp_path / "log", Item))


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 100)
    with FrameAppender(tmp_path / "log") as log:
        log.append(ITEMS[1])
        with pytest.raises(NotWritable, match="a record of 0 MiB, above the limit"):
            log.append(Item(0, bytes(200)))
    assert list(FrameLog(tmp_path / "log", Item)) == [ITEMS[1]]


def test_reading_goes_on_where_it_ended(tmp_path: Path):
    write(tmp_path / "log", ITEMS[:3])
    log = FrameLog(tmp_path / "log", Item)
    (*_, (_, end)) = log.after(0)
    assert list(log.after(end)) == []
    write(tmp_path / "log", ITEMS[3:])
    assert [item for item, _ in log.after(end)] == ITEMS[3:]


@pytest.mark.parametrize("size_bytes", [1, 20, 1000])
def test_ranges_hold_every_record_once(tmp_path: Path, size_bytes: int):
    write(tmp_path / "log", ITEMS)
    log = FrameLog(tmp_path / "log", Item)
    ranges = log.ranges(size_bytes)
    assert [start for start, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert [item for start, end in ranges for item in log.between(start, end)] == ITEMS
    assert all(end - start >= size_bytes for start, end in ranges[:-1])
    assert FrameLog(tmp_path / "missing", Item).ranges(size_bytes) == []


def test_what_is_torn_or_damaged_behind_the_last_record_lies_in_the_last_range(tmp_path: Path):
    path = tmp_path / "log"
    write(path, ITEMS)
    whole, log = path.read_bytes(), FrameLog(path, Item)
    path.write_bytes(whole + b"\0\0\1")
    assert [item for start, end in log.ranges(1) for item in log.between(start, end)] == ITEMS
    path.write_bytes(whole + (frames.MAX_FRAME_BYTES + 1).to_bytes(4, "big") + b"x")
    with pytest.raises(RunUnreadable, match="claims"):
        list(log.between(*log.ranges(1)[-1]))


def test_a_folder_that_is_missing_is_one_clear_line(tmp_path: Path):
    with pytest.raises(NotWritable, match="cannot write"):
        FrameAppender(tmp_path / "none" / "log")


def test_what_a_full_disk_did_not_take_is_written_when_there_is_space(tmp_path: Path):
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    log = FrameAppender(full)
    log.append(ITEMS[1])
    for _ in range(2):
        with pytest.raises(NotWritable, match=r"full: No space left on device; earlier records are safe"):
            log.flush()
    log._handle = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    log.append(ITEMS[2])
    log.close()
    assert list(FrameLog(tmp_path / "log", Item)) == ITEMS[1:3]
