"""The raw transport against real sockets on loopback."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
import trustme

from bakeoff.engines import pick_port
from bakeoff.engines.addresses import ReplicaHeader
from bakeoff.engines.dialects import HttpRequest, ReferenceDialect, SseParser
from bakeoff.harness.client import HttpTransport, StreamLog, Transport
from bakeoff.harness.client.wire import http
from bakeoff.harness.client.wire import pool as pool_module
from bakeoff.harness.client.wire.aiohttp_transport import AiohttpTransport
from bakeoff.harness.client.wire.transport import limit_bytes
from bakeoff.results.records import StreamEnd
from tests.harness.samples import DONE, FINISH, TOKEN

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
REQUEST = HttpRequest("/v1/completions", {"content-type": "application/json"}, b'{"stream": true}')
BODY = TOKEN + TOKEN + FINISH + DONE
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@contextlib.asynccontextmanager
async def serving(handle: Handler) -> AsyncGenerator[str]:
    """Serve until the block ends; leaves when every handler has seen its client go."""
    handlers: list[asyncio.Task[None]] = []

    async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.append(task)
        try:
            await handle(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(tracked, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.wait_for(asyncio.gather(*handlers), 5)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
    return head + await reader.readexactly(length)


async def exchange_once(transport: Transport, log: StreamLog) -> StreamLog:
    """One exchange, awaited."""
    done: asyncio.Future[StreamLog] = asyncio.get_running_loop().create_future()
    transport.start(transport.prepare(REQUEST), log, done.set_result)
    return await asyncio.wait_for(done, 5)


def exchange(handle: Handler, *, count: int = 1, kind: Callable[[str], Transport] = HttpTransport) -> list[StreamLog]:
    """``count`` exchanges one after another over one transport."""

    async def scene() -> list[StreamLog]:
        async with serving(handle) as url:
            transport = kind(url)
            logs = [await exchange_once(transport, StreamLog()) for _ in range(count)]
            await transport.close()
            return logs

    return asyncio.run(scene())


def answering(*writes: bytes, close: bool = False) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await read_request(reader)
                for data in writes:
                    writer.write(data)
                    await writer.drain()
                if close:
                    break

    return handle


def test_a_whole_answer_is_logged_with_rising_times():
    (log,) = exchange(answering(CHUNKED, chunk(TOKEN), chunk(TOKEN), chunk(FINISH + DONE) + b"0\r\n\r\n"))
    assert (log.end, log.status) == (StreamEnd.COMPLETE, 200)
    assert b"".join(log.reads) == BODY
    assert log.sent_ns is not None
    times = [log.sent_ns, *log.read_ns, log.ended_ns]
    assert times == sorted(times)


def connections_for(count: int) -> int:
    """How many connections ``count`` exchanges in turn open."""
    opened = 0
    plain = answering(CHUNKED + chunk(BODY) + b"0\r\n\r\n")

    async def counting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        await plain(reader, writer)

    assert [log.end for log in exchange(counting, count=count)] == [StreamEnd.COMPLETE] * count
    return opened


def test_one_connection_serves_requests_in_turn():
    assert connections_for(5) == 1


def test_an_idle_connection_is_not_used_again_after_its_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool_module, "MAX_IDLE_S", 0.0)
    assert connections_for(3) == 3


@pytest.mark.parametrize("kind", [HttpTransport, AiohttpTransport])
def test_only_a_request_that_opens_its_connection_has_dialled(kind: Callable[[str], Transport]):
    first, second = exchange(answering(CHUNKED + chunk(BODY) + b"0\r\n\r\n"), count=2, kind=kind)
    stamps = [first.dial_start_ns, first.dial_end_ns, first.sent_ns, first.ended_ns]
    assert None not in stamps
    assert stamps == sorted(stamp for stamp in stamps if stamp is not None)
    assert (second.dial_start_ns, second.dial_end_ns) == (None, None)


@pytest.mark.parametrize("kind", [HttpTransport, AiohttpTransport])
def test_the_replica_that_answered_is_logged(kind: Callable[..., Transport]):
    answer = b"HTTP/1.1 200 OK\r\nX-Replica: 10.0.0.7:80\r\ncontent-length: 4\r\n\r\nbody"

    def address(name: str) -> str | None:
        header = ReplicaHeader(name, {"10.0.0.7:80": "seven"})
        (log,) = exchange(answering(answer), kind=lambda url: kind(url, replica_header=header))
        return log.address

    assert (address("x-replica"), address("x-other")) == ("seven", None)


def test_the_request_reaches_the_server_byte_for_byte():
    requests: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await read_request(reader))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    exchange(handle)
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"content-length: 16" in head
    assert body == REQUEST.body


@pytest.mark.parametrize("kind", [HttpTransport, AiohttpTransport])
def test_a_refused_connection_is_a_class_of_its_own(kind: Callable[[str], Transport]):
    async def scene() -> StreamLog:
        transport = kind(f"http://127.0.0.1:{pick_port()}")
        await transport.open(3)  # nothing to open is not an error: the request tells
        log = await exchange_once(transport, StreamLog())
        await transport.close()
        return log

    log = asyncio.run(scene())
    assert log.end is StreamEnd.REFUSED
    assert log.sent_ns is None
    assert log.ended_ns > 0


def test_a_connection_that_breaks_in_the_stream_keeps_what_came_before():
    (log,) = exchange(answering(CHUNKED + chunk(TOKEN), close=True))
    assert log.end is StreamEnd.RESET
    assert log.reads == [TOKEN]
    assert "before the answer was whole" in (log.detail or "")


def test_an_answer_without_a_length_ends_with_its_connection():
    (log,) = exchange(answering(b"HTTP/1.1 200 OK\r\n\r\n" + BODY, close=True))
    assert (log.end, b"".join(log.reads)) == (StreamEnd.COMPLETE, BODY)


def test_a_server_that_says_close_is_not_asked_again_on_that_connection():
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"
    logs = exchange(answering(answer, close=True), count=3)
    assert [log.end for log in logs] == [StreamEnd.COMPLETE] * 3


def closing_after(answers: int, *, silently: bool = True) -> tuple[Handler, list[int]]:
    """A server that promises to keep its connections, and closes each after so many answers, at its next request."""
    connections: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        number = len(connections) - 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await read_request(reader)
                if connections[number] == answers:
                    writer.write(b"" if silently else CHUNKED)
                    return
                connections[number] += 1
                writer.write(CHUNKED + chunk(BODY) + b"0\r\n\r\n")

    return handle, connections


def test_a_request_that_meets_a_closing_connection_is_sent_again_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "CLOSING_NS", 60_000_000_000)
    handle, connections = closing_after(2)
    logs = exchange(handle, count=5)
    assert [(log.end, log.is_resent) for log in logs] == [(StreamEnd.COMPLETE, number in {2, 4}) for number in range(5)]
    assert connections == [2, 2, 1]
    assert all(log.dial_start_ns is None for log in logs[1:]), "the dial came after the send: it is no lag of it"
    assert all(log.sent_ns < log.read_ns[0] for log in logs)


def test_a_request_that_the_server_had_for_a_while_is_not_sent_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "CLOSING_NS", 0)
    handle, connections = closing_after(1)
    logs = exchange(handle, count=2)
    assert [(log.end, log.is_resent) for log in logs] == [(StreamEnd.COMPLETE, False), (StreamEnd.RESET, False)]
    assert connections == [1]


def test_a_new_connection_and_an_answer_that_has_begun_are_not_sent_again():
    refusing, connections = closing_after(0)
    (log,) = exchange(refusing)
    assert (log.end, log.is_resent, connections) == (StreamEnd.RESET, False, [0])
    begun, _ = closing_after(1, silently=False)
    logs = exchange(begun, count=2)
    assert [(log.end, log.is_resent) for log in logs] == [(StreamEnd.COMPLETE, False), (StreamEnd.RESET, False)]


def test_an_error_status_keeps_its_body():
    (log,) = exchange(answering(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy"))
    assert (log.status, log.reads, log.end) == (503, [b"busy"], StreamEnd.COMPLETE)


def test_a_redirect_keeps_where_it_points():
    moved = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://h/v2\r\ncontent-length: 0\r\n\r\n"
    (log,) = exchange(answering(moved))
    assert (log.end, log.status, log.detail) == (StreamEnd.COMPLETE, 307, "http://h/v2")


def test_bytes_that_are_not_http_are_a_reset():
    (log,) = exchange(answering(b"SSH-2.0-OpenSSH_9\r\n\r\n"))
    assert log.end is StreamEnd.RESET
    assert "not HTTP" in (log.detail or "")


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_the_same_bytes_in_small_writes_decode_to_the_same_events(step: int):
    framed = CHUNKED + chunk(BODY[:70]) + chunk(BODY[70:]) + b"0\r\n\r\n"
    (log,) = exchange(answering(*[framed[i : i + step] for i in range(0, len(framed), step)]))
    whole = SseParser().feed(BODY)
    parser = SseParser()
    pieces = [data for read in log.reads for data in parser.feed(read)]
    assert pieces == whole
    dialect = ReferenceDialect()
    assert [dialect.events(data) for data in pieces] == [dialect.events(data) for data in whole]


def test_dropping_an_exchange_closes_its_connection_and_calls_nobody():
    async def scene() -> StreamLog:
        started, gone = asyncio.Event(), asyncio.Event()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(CHUNKED + chunk(TOKEN))
            started.set()
            with contextlib.suppress(ConnectionError):
                await reader.read()  # returns at the client's end
            gone.set()

        async with serving(handle) as url:
            log = StreamLog()
            transport = HttpTransport(url)
            transport.start(transport.prepare(REQUEST), log, lambda _: pytest.fail("the exchange was dropped"))
            await started.wait()
            transport.drop(log)
            await asyncio.wait_for(gone.wait(), 5)
            return log

    assert asyncio.run(scene()).end is StreamEnd.CANCELLED


def test_connections_opened_ahead_are_used():
    accepted = 0
    plain = answering(CHUNKED + chunk(BODY) + b"0\r\n\r\n")

    async def scene() -> int:
        async def counting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal accepted
            accepted += 1
            await plain(reader, writer)

        async with serving(counting) as url:
            transport = HttpTransport(url)
            await transport.open(3)
            await asyncio.gather(*(exchange_once(transport, StreamLog()) for _ in range(3)))
            await transport.close()
        return accepted

    assert asyncio.run(scene()) == 3


def test_an_interim_answer_is_not_the_answer():
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    (log,) = exchange(answering(interim, CHUNKED + chunk(BODY) + b"0\r\n\r\n"))
    assert (log.status, b"".join(log.reads), log.end) == (200, BODY, StreamEnd.COMPLETE)


def test_several_chunks_of_one_read_are_one_read():
    (log,) = exchange(answering(CHUNKED + chunk(TOKEN) + chunk(TOKEN) + chunk(FINISH) + b"0\r\n\r\n"))
    assert log.reads == [TOKEN + TOKEN + FINISH]


def test_a_request_larger_than_the_socket_buffer_arrives_whole():
    big = HttpRequest("/v1/completions", {}, bytes(range(256)) * 40_000)
    requests: list[bytes] = []

    async def scene() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0)  # the client must not need a prompt reader
            requests.append(await read_request(reader))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

        async with serving(handle) as url:
            transport = HttpTransport(url)
            done: asyncio.Future[StreamLog] = asyncio.get_running_loop().create_future()
            transport.start(transport.prepare(big), StreamLog(), done.set_result)
            assert (await asyncio.wait_for(done, 10)).end is StreamEnd.COMPLETE
            await transport.close()

    asyncio.run(scene())
    assert requests[0].endswith(big.body)


def test_the_other_transport_logs_the_same():
    answer = answering(CHUNKED, chunk(TOKEN), chunk(TOKEN), chunk(FINISH + DONE) + b"0\r\n\r\n")
    (log,) = exchange(answer, kind=AiohttpTransport)
    assert (log.end, log.status, b"".join(log.reads)) == (StreamEnd.COMPLETE, 200, BODY)
    (log,) = exchange(answering(CHUNKED + chunk(TOKEN), close=True), kind=AiohttpTransport)
    assert (log.end, log.reads) == (StreamEnd.RESET, [TOKEN])
    (log,) = exchange(answering(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy"), kind=AiohttpTransport)
    assert (log.status, log.reads, log.end) == (503, [b"busy"], StreamEnd.COMPLETE)


def test_certificates_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    authority = trustme.CA()
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(server_context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    async def scene() -> StreamLog:
        handle = answering(CHUNKED, chunk(TOKEN), chunk(FINISH + DONE) + b"0\r\n\r\n")
        server = await asyncio.start_server(handle, "localhost", 0, ssl=server_context)
        async with server:
            transport = HttpTransport(f"https://localhost:{server.sockets[0].getsockname()[1]}")
            log = await exchange_once(transport, StreamLog())
            await transport.close()
            return log

    assert "in SSL_CERT_FILE" in (asyncio.run(scene()).detail or "")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    log = asyncio.run(scene())
    assert (log.end, b"".join(log.reads)) == (StreamEnd.COMPLETE, TOKEN + FINISH + DONE)


@pytest.mark.parametrize("kind", [HttpTransport, AiohttpTransport])
@pytest.mark.parametrize(
    "head",
    [CHUNKED, b"HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"],
    ids=["chunked", "declared", "until closed"],
)
def test_a_response_above_its_limit_is_cut_off_and_its_connection_closed(kind: Callable[[str], Transport], head: bytes):
    closed: list[bool] = []

    async def scene() -> StreamLog:
        async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(head)
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(chunk(BODY) if head is CHUNKED else BODY)
                    await writer.drain()
            closed.append(True)

        async with serving(endless) as url:
            transport = kind(url)
            log = await exchange_once(transport, StreamLog(limit_bytes=10_000))
            await transport.close()
        return log

    log = asyncio.run(scene())
    assert log.end is StreamEnd.TOO_LARGE
    assert closed == [True]
    assert log.received_bytes > 10_000
    assert log.reads, "what came is kept"


def test_endless_headers_are_cut_off():
    async def scene() -> StreamLog:
        async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\n")
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b"x-a: b\r\n")
                    await writer.drain()

        async with serving(endless) as url:
            transport = HttpTransport(url)
            log = await exchange_once(transport, StreamLog(limit_bytes=10_000))
            await transport.close()
        return log

    assert asyncio.run(scene()).end is StreamEnd.TOO_LARGE


def test_a_listener_that_never_ends_its_handshake_fails_within_the_limit():
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def scene() -> list[StreamLog]:
        async with serving(silent) as url:
            logs = []
            for kind in (HttpTransport, AiohttpTransport):
                transport = kind(url.replace("http:", "https:"), connect_s=0.05)
                logs.append(await exchange_once(transport, StreamLog()))
                await transport.close()
            return logs

    raw, plain = asyncio.run(scene())
    assert (raw.end, raw.detail) == (StreamEnd.REFUSED, "no connection within 0.05 s")
    assert plain.end is StreamEnd.REFUSED


def test_a_response_that_stays_open_behind_its_end_mark_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "LEFT_OPEN_S", 0.01)
    logs = exchange(answering(CHUNKED, chunk(BODY)), count=2)
    assert [(log.end, b"".join(log.reads)) for log in logs] == [(StreamEnd.COMPLETE, BODY)] * 2
    assert all(log.dial_start_ns is not None for log in logs), "an open connection carries no second request"


def test_the_limit_grows_with_the_tokens_asked_for():
    assert limit_bytes(0) == limit_bytes(64) == 1 << 20
    assert limit_bytes(100_000) == 100_000 * (16 << 10)
    assert limit_bytes(0, passages=8) == 16 << 20, "rows of numbers"
