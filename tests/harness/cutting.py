"""Passes an answer's bytes through the client's own protocol, with chunks and reads cut at any offsets."""

import itertools
import random
from collections.abc import Sequence
from typing import Any, cast

from bakeoff.engines.dialects import Dialect
from bakeoff.harness.client import HttpTransport, StreamLog, decode_stream
from bakeoff.harness.client.wire.http import Connection
from bakeoff.results.records import Phase, RequestRecord, StreamRecord

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class _NullTransport:
    """Replaces the event loop's transport, without a socket."""

    def write(self, data: bytes) -> None:
        """Discard the data."""

    def abort(self) -> None:
        """Do nothing: no socket is open."""


def chunked(body: bytes, cuts: Sequence[int]) -> bytes:
    """``body`` in HTTP's chunked coding; a chunk ends at each offset in ``cuts``."""
    edges = sorted({0, len(body), *cuts})
    pieces = [body[start:end] for start, end in itertools.pairwise(edges)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def received(wire: bytes, cuts: Sequence[int]) -> StreamLog:
    """The client's log of an answer whose reads end at the offsets ``cuts``."""
    log, ended_logs = StreamLog(), []
    connection = Connection(HttpTransport("http://127.0.0.1:9"), None)
    connection.connection_made(cast("Any", _NullTransport()))
    connection.exchange(b"", log, ended_logs.append)
    edges = sorted({0, len(wire), *cuts})
    for start, end in itertools.pairwise(edges):
        connection.data_received(wire[start:end])
    assert ended_logs == [log], "the client did not see the end of the answer"
    return log


def decoded(log: StreamLog, dialect: Dialect) -> RequestRecord:
    """The record of ``log`` with the same time for all reads, so that records of different cuts are comparable."""
    record = StreamRecord(
        index=0, phase=Phase.MEASURED, session="s", turn=0, planned_ns=0, ended_ns=9, end=log.end, sent_ns=1,
        status=log.status, read_ns=[5] * len(log.reads), reads=log.reads,
    )  # fmt: skip
    return decode_stream(record, dialect, None)


def random_cuts(length: int, rng: random.Random) -> list[int]:
    """Draw no, some or all offsets into ``length`` bytes."""
    count = rng.choice([0, 1, 2, 5, 30, length // 7, length])
    return rng.sample(range(length + 1), min(count, length + 1))
