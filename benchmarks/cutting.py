"""The network as an adversary: an answer's bytes, framed and cut anywhere, through the client's own receiving end."""

import itertools
import random
from collections.abc import Sequence
from typing import Any, cast

from engines.dialects import Dialect
from harness.client import HttpTransport, StreamLog, decode_stream
from harness.client.http import Connection
from results.records import Phase, RequestRecord, StreamRecord

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class _Socketless:
    """Stands in for the event loop's transport: what is written goes nowhere."""

    def write(self, data: bytes) -> None:
        """Ignored."""

    def abort(self) -> None:
        """Nothing is open."""


def chunked(body: bytes, cuts: Sequence[int]) -> bytes:
    """``body`` in HTTP's chunked coding, a chunk between each two cuts (offsets into it)."""
    edges = sorted({0, len(body), *cuts})
    pieces = [body[start:end] for start, end in itertools.pairwise(edges)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def received(wire: bytes, cuts: Sequence[int]) -> StreamLog:
    """What the client logs of an answer that arrives in reads cut at ``cuts``."""
    log, ended = StreamLog(), []
    connection = Connection(HttpTransport("http://127.0.0.1:9"), None)
    connection.connection_made(cast("Any", _Socketless()))
    connection.exchange(b"", log, ended.append)
    edges = sorted({0, len(wire), *cuts})
    for start, end in itertools.pairwise(edges):
        connection.data_received(wire[start:end])
    assert ended == [log], "the client did not see the end of the answer"
    return log


def decoded(log: StreamLog, dialect: Dialect) -> RequestRecord:
    """The record of ``log`` as if every read had come at one instant: only the cuts differ."""
    record = StreamRecord(
        index=0, phase=Phase.MEASURED, session="s", turn=0, planned_ns=0, ended_ns=9, end=log.end, sent_ns=1,
        status=log.status, read_ns=[5] * len(log.reads), reads=log.reads,
    )  # fmt: skip
    return decode_stream(record, dialect, None)


def random_cuts(length: int, rng: random.Random) -> list[int]:
    """Few, many or all offsets of ``length`` bytes."""
    count = rng.choice([0, 1, 2, 5, 30, length // 7, length])
    return rng.sample(range(length + 1), min(count, length + 1))
