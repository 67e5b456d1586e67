"""Reads answers with our client: the raw transport, then the dialect, as in every run."""

import asyncio
from collections.abc import Sequence

from bakeoff.engines.dialects import Dialect, HttpRequest, SseParser, TokenDelta
from bakeoff.harness.client import HttpTransport, StreamLog, decode_stream
from bakeoff.results.records import Outcome, Phase, StreamRecord
from tests.acceptance.engines.sdk.reading import Reading


async def read_all(base_url: str, dialect: Dialect, requests: Sequence[HttpRequest]) -> list[Reading]:
    """Send the requests one after another and read their answers."""
    transport = HttpTransport(base_url)
    try:
        return [_reading(await _exchange(transport, request), dialect) for request in requests]
    finally:
        await transport.close()


async def _exchange(transport: HttpTransport, request: HttpRequest) -> StreamLog:
    done: asyncio.Future[StreamLog] = asyncio.get_running_loop().create_future()
    transport.start(transport.prepare(request), StreamLog(), done.set_result)
    return await asyncio.wait_for(done, 60)


def _reading(log: StreamLog, dialect: Dialect) -> Reading:
    stream = StreamRecord(
        index=0, phase=Phase.MEASURED, session="s", turn=0, planned_ns=log.sent_ns or 0, ended_ns=log.ended_ns,
        end=log.end, sent_ns=log.sent_ns, status=log.status, read_ns=log.read_ns, reads=log.reads, detail=log.detail,
    )  # fmt: skip
    record = decode_stream(stream, dialect, None)
    error = None if record.outcome is Outcome.OK else record.error or record.outcome.value
    counts = (record.output_tokens, record.prompt_tokens)
    return Reading(record.text, *counts, record.finish_reason, _ids(stream, dialect), error)


def _ids(stream: StreamRecord, dialect: Dialect) -> list[int] | None:
    parser, reader = SseParser(), dialect.reader()
    events = [event for read in stream.reads for data in parser.feed(read) for event in reader.events(data)]
    ids_of_deltas = [event.token_ids for event in events if isinstance(event, TokenDelta) and event.token_ids]
    return [number for ids in ids_of_deltas for number in ids] or None
