"""The HTTP client of the soak: sends requests as a client library does, and as a broken program does."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any

import aiohttp

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}
SMALL_BUFFER_BYTES = 4096
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST


class WrongAnswer(Exception):
    """An answer with the right status and wrong contents."""


class Client:
    """HTTP client of one server.

    Args:
        session: shared by the whole soak; without limits of its own.
        host: the server's host name.
        port: the server's port.
    """

    def __init__(self, session: aiohttp.ClientSession, host: str, port: int) -> None:
        self._session = session
        self._host = host
        self._port = port

    @property
    def url(self) -> str:
        """The server's URL, without a trailing slash."""
        return f"http://{self._host}:{self._port}"

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Send a request and return status and body; bytes and iterables are sent unchanged, all else as JSON."""
        is_raw = body is None or isinstance(body, bytes | AsyncIterable)
        data = body if is_raw else json.dumps(body).encode()
        async with self._session.request(method, self.url + path, data=data, headers=JSON) as answer:
            return answer.status, await answer.read()

    @contextlib.asynccontextmanager
    async def open(self, path: str, body: dict[str, Any]) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Send a POST and yield its answer, whose body the caller reads, perhaps not to its end."""
        async with self._session.post(self.url + path, data=json.dumps(body).encode(), headers=JSON) as answer:
            yield answer
            answer.close()  # and the connection, unless the body has ended

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Yield a TCP connection whose small receive buffer lets slow reading stall the server; end it by a reset."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (self._host, self._port))
        except OSError:
            sock.close()
            raise
        reader, writer = await asyncio.open_connection(sock=sock, limit=SMALL_BUFFER_BYTES)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    def head(self, path: str, length: int) -> bytes:
        """Request line and headers of a POST."""
        return (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length}\r\nConnection: close\r\n\r\n"
        ).encode()


async def status_of(reader: asyncio.StreamReader) -> int | None:
    """Read the status of an answer from a connection; None if the server closes it without one."""
    line = await reader.readline()
    return int(line.split()[1]) if line else None


def check_whole(body: bytes, choices: int) -> list[dict[str, Any]]:
    """Check an answer that is not streamed, and return its choices.

    Raises:
        WrongAnswer: the number of choices is wrong, a choice has not ended, or the usage counts too few tokens.
    """
    answer = json.loads(body)
    _check_ends(answer["choices"], choices)
    if answer["usage"]["completion_tokens"] < choices:
        raise WrongAnswer(f"usage {answer['usage']} for {choices} answers")
    return answer["choices"]


def check_stream(body: bytes, choices: int) -> None:
    """Check the events of a stream that was read to its end.

    Raises:
        WrongAnswer: it is cut, reports an error, or a choice has not ended or has ended twice.
    """
    events = body.split(b"\n\n")
    if events[-2:] != [b"data: [DONE]", b""]:
        raise WrongAnswer(f"the stream ends with {body[-80:]!r}")
    decoded = [json.loads(event.removeprefix(b"data: ")) for event in events[:-2]]
    if errors := [event["error"] for event in decoded if "error" in event]:
        raise WrongAnswer(f"the stream reports {errors[0]}")
    parts = [part for event in decoded for part in event["choices"]]
    _check_ends([part for part in parts if part["finish_reason"]], choices)


def _check_ends(ended: list[dict[str, Any]], choices: int) -> None:
    reasons = [choice["finish_reason"] for choice in ended]
    indices = sorted(choice["index"] for choice in ended)
    if indices != list(range(choices)) or not set(reasons) <= {"stop", "length"}:
        raise WrongAnswer(f"{choices} answers asked for; ended: {list(zip(indices, reasons, strict=True))}")
