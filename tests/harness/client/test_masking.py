"""Credentials of requests do not reach the raw log, wherever the network cut the answer."""

from typing import Any

import pytest

from bakeoff.engines import Access, secrets
from bakeoff.engines.dialects import ReferenceDialect
from bakeoff.harness.client.decode.exchange import decode_stream
from bakeoff.harness.client.worker.redaction import redacting_recorder
from bakeoff.results.records import Phase, StreamEnd, StreamRecord
from tests.harness.samples import FINISH, MemoryRecorder, event, stream

KEY = "sk-0123456789"
ACCESS = Access({"authorization": f"Bearer {KEY}"}, "sig=abc-efgh1&api-version=2024-10-21-preview")


def recorded(access: Access, *reads: bytes) -> list[bytes]:
    log: Any = MemoryRecorder()
    record = StreamRecord(
        index=0, phase=Phase.MEASURED, session="s", turn=0, planned_ns=0, ended_ns=9, end=StreamEnd.COMPLETE,
        read_ns=list(range(len(reads))), reads=list(reads),
    )  # fmt: skip
    recorder = redacting_recorder(log, access)
    recorder.append(record)
    recorder.flush()
    (redacted,) = log.records
    return redacted.reads


@pytest.mark.parametrize("cut", range(len(KEY) + 20))
def test_a_quoted_key_is_masked_however_the_answer_is_cut(cut: int):
    body = f'bad key "{KEY}" end'.encode()
    reads = recorded(ACCESS, body[:cut], body[cut:])
    assert b"".join(reads) == b'bad key "' + b"*" * len(KEY) + b'" end'
    assert [len(read) for read in reads] == [len(body[:cut]), len(body[cut:])]


def test_a_quoted_query_is_masked_too():
    assert recorded(ACCESS, b"GET /v1?sig=abc-efgh1") == [b"GET /v1?sig=*********"]


@pytest.mark.parametrize("key", ["token", "null", "1", "completion", "1796006491"])
def test_keys_that_are_words_or_numbers_change_nothing(key: str):
    """Local servers are given such keys, and each stands in every answer."""
    body = b'data: {"created": 1796006491, "usage": {"completion_tokens": null}} 2024-10-21-preview\n\n'
    assert recorded(Access({"authorization": f"Bearer {key}"}, "api-version=2024-10-21-preview"), body) == [body]


def test_where_a_redirect_points_is_masked():
    log: Any = MemoryRecorder()
    record = StreamRecord(
        index=0, phase=Phase.MEASURED, session="s", turn=0, planned_ns=0, ended_ns=9, end=StreamEnd.COMPLETE,
        detail=f"https://elsewhere/v1?key={KEY}",
    )  # fmt: skip
    redacting_recorder(log, ACCESS).append(record)
    assert log.records[0].detail == "https://elsewhere/v1?key=" + "*" * len(KEY)


def test_a_key_that_comes_in_pieces_is_masked_in_the_text(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(secrets, "_known", set())
    secrets.conceal(KEY)
    pieces = [event(f'{{"choices":[{{"index":0,"text":"{piece}"}}]}}') for piece in ("a sk-01", "2345", "6789 b")]
    record = decode_stream(stream([(i, piece) for i, piece in enumerate([*pieces, FINISH])]), ReferenceDialect(), None)
    assert record.text == f"a {secrets.MASK} b"


def test_other_answers_are_the_same_objects():
    body = b"data: {}\n\n"
    assert recorded(ACCESS, body)[0] is body
    assert recorded(Access(), body)[0] is body


def test_access_does_not_show_itself():
    assert KEY not in repr(ACCESS)
    assert "abc-efgh1" not in repr(ACCESS)
