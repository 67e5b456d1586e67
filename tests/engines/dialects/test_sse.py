"""Parser of server-sent events: the same events however the bytes are split."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.engines.dialects import SseParser

STREAM = (
    b": a comment\n\n"
    b"data: one\r\n\r\n"
    b"event: token\nid: 7\nretry: 10\ndata:two\n\n"
    b"data: first\ndata: second\ndata\ndata: fourth\n\n"
    b"data: Gr\xc3\xbc\xc3\x9fe \xf0\x9f\x8c\x8d\r\r"
    b"data:  two spaces: and a colon\n\n"
    b"\n\r\n\r"
    b"datum: not data\n\n"
    b"data: last\n\n"
    b"data: cut off by the end\n"
)
EVENTS = [
    b"one",
    b"two",
    b"first\nsecond\n\nfourth",
    "Grüße 🌍".encode(),
    b" two spaces: and a colon",
    b"last",
]


def parse(*reads: bytes) -> list[bytes]:
    parser = SseParser()
    return [event for read in reads for event in parser.feed(read)]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


def test_one_read_of_everything() -> None:
    assert parse(STREAM) == EVENTS


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_all_three_line_endings_mean_the_same_at_every_cut(ending: bytes) -> None:
    unix = b"data: a\ndata: b\n\n: comment\ndata: c\n\ndata: lost"
    stream = unix.replace(b"\n", ending)
    assert all(parse(stream[:at], stream[at:]) == [b"a\nb", b"c"] for at in range(len(stream) + 1))


def test_two_reads_cut_at_every_offset() -> None:
    assert all(parse(STREAM[:at], STREAM[at:]) == EVENTS for at in range(len(STREAM) + 1))


def test_one_byte_at_a_time() -> None:
    assert parse(*(bytes([byte]) for byte in STREAM)) == EVENTS


@given(places=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_number_of_cuts_with_empty_reads_between_them(places: list[int]) -> None:
    assert parse(*cut(STREAM, places)) == EVENTS


@given(stream=st.lists(st.sampled_from([b"\r", b"\n", b"data:", b" ", b"x", b":"])).map(b"".join), data=st.data())
def test_cuts_change_nothing_in_any_stream_of_delimiters(stream: bytes, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=6))
    assert parse(*cut(stream, places)) == parse(stream)


WHOLE = [
    b'data: {"text": "of a whole event"}\n\n', b"data: [DONE]\n\n", b'data: "DONE"\n\n',
    b"event: a type without data\n\n", b"data: a line that\rends early\n\n",
]  # fmt: skip
BEFORE = [b"", b"data: lines\n", b"event: error\n", b"event: ping\n", b"\xef\xbb\xbf", b"data: of a CR\r", b"stray"]


@pytest.mark.parametrize("after", [b"", b"\xef\xbb\xbfdata: no mark here\n\n"])
@pytest.mark.parametrize("read", WHOLE)
@pytest.mark.parametrize("before", BEFORE)
def test_a_read_that_is_a_whole_event_is_what_its_bytes_are(before: bytes, read: bytes, after: bytes) -> None:
    whole, bytewise = SseParser(), SseParser()
    events = [event for part in (before, read, after) for event in whole.feed(part)]
    same = [event for byte in before + read + after for event in bytewise.feed(bytes([byte]))]
    assert [(type(event), event) for event in events] == [(type(event), event) for event in same]
    assert (whole.rest(), whole.stray) == (bytewise.rest(), bytewise.stray)


def test_a_crlf_split_between_reads_is_one_line_ending() -> None:
    """Counted as two line endings, it would end the event between its lines."""
    assert parse(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [b"a\nb"]
    assert parse(b"data: a\r", b"", b"\ndata: b\r\n\r\n") == [b"a\nb"]
    assert parse(b"data: a\r", b"\r") == [b"a"], "two lone CRs are two endings"


def test_an_event_is_out_with_the_read_that_completes_it() -> None:
    """Each read has one time stamp: an event that is returned one read late would be timed too late."""
    parser = SseParser()
    assert parser.feed(b"data: a\n\ndata: b\n") == [b"a"]
    assert parser.feed(b"\n") == [b"b"]
    assert parser.feed(b"data: c\r") == []
    assert parser.feed(b"\r") == [b"c"], "no waiting for a LF that may never come"


def test_without_its_final_blank_line_an_event_is_dropped() -> None:
    assert parse(b"data: a\n\ndata: b\n") == [b"a"]
    assert parse(b"data: a\n\ndata: b") == [b"a"]


def test_only_one_space_after_the_colon_is_taken_off() -> None:
    assert parse(b"data:a\n\ndata: a\n\ndata:  a\n\n") == [b"a", b"a", b" a"]


def test_events_without_data_are_none() -> None:
    assert parse(b"event: ping\n\n: ping\n\n\n\n") == []
    assert parse(b"data:\n\ndata: a\n\n") == [b"a"]
