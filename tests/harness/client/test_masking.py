"""Credentials of requests do not reach the raw log, wherever the network cut the answer."""

from typing import Any

import pytest

from bakeoff.engines import Access
from bakeoff.harness.client.worker.redaction import redacting_recorder
from bakeoff.results.records import Phase, StreamEnd, StreamRecord
from tests.harness.samples import MemoryRecorder

KEY = "sk-0123456789"
ACCESS = Access({"authorization": f"Bearer {KEY}"}, "sig=abcdefgh")


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
    assert recorded(ACCESS, b"GET /v1?sig=abcdefgh") == [b"GET /v1?sig=********"]


def test_other_answers_are_the_same_objects():
    body = b"data: {}\n\n"
    assert recorded(ACCESS, body)[0] is body
    assert recorded(Access(), body)[0] is body


def test_access_does_not_show_itself():
    assert KEY not in repr(ACCESS)
    assert "abcdefgh" not in repr(ACCESS)
