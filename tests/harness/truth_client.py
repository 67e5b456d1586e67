"""A client of the truth server that hides nothing: raw bytes, and how the connection ended."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import msgspec

from bakeoff.harness.truth import Answered, Schedule, TruthServer


@contextlib.contextmanager
def serving(schedule: Schedule, **options: Any) -> Iterator[TruthServer]:
    """A server in a thread of this process; its record is whole after the block."""
    server = TruthServer(schedule, **options)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()
        server.close()


def request(tokens: int = 4, *, chat: bool = False, **fields: Any) -> bytes:
    """A streamed request that asks for usage."""
    prompt = {"messages": [{"role": "user", "content": "one two"}]} if chat else {"prompt": "one two three"}
    stream = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": tokens}
    return posted("/v1/chat/completions" if chat else "/v1/completions", {**prompt, **stream, **fields})


def posted(path: str, body: Any, header: str = "") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: t\r\n{header}content-length: {len(data)}\r\n\r\n".encode() + data


class Reply(msgspec.Struct):
    """What came back, and how it ended: ``whole``, ``fin`` or ``reset``."""

    data: bytes
    end: str

    @property
    def status(self) -> int:
        return int(self.data.split(b" ", 2)[1])

    @property
    def head(self) -> str:
        return self.data.partition(b"\r\n\r\n")[0].decode().lower()

    @property
    def body(self) -> bytes:
        """The body, HTTP framing removed."""
        content = self.data.partition(b"\r\n\r\n")[2]
        return unchunked(content) if "chunked" in self.head else content

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The JSON of every event; comments and ``[DONE]`` left out."""
        blocks = self.body.replace(b"\r\n", b"\n").split(b"\n\n")
        data = [block.removeprefix(b"data: ") for block in blocks if block.startswith(b"data: ")]
        return [json.loads(payload) for payload in data if payload != b"[DONE]"]

    @property
    def ids(self) -> list[int]:
        """The token ids of the stream."""
        return [i for event in self.events for choice in event.get("choices", ()) for i in choice.get("token_ids", ())]


def unchunked(content: bytes) -> bytes:
    body, at = bytearray(), 0
    while at < len(content):
        start = content.index(b"\r\n", at) + 2
        size = int(content[at : start - 2], 16)
        body += content[start : start + size]
        at = start + size + 2
    return bytes(body)


def connect(port: int) -> socket.socket:
    connection = socket.socket()
    connection.settimeout(20)
    try:
        connection.connect(("127.0.0.1", port))
    except OSError:
        connection.close()
        raise
    return connection


def connect_narrow(server: TruthServer) -> socket.socket:
    """The only connection; the kernel keeps some hundred kilobytes when the client does not read."""
    connection = connect(server.port)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    while not server._connections:
        pass  # until it is accepted
    (accepted,) = server._connections.values()
    accepted._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    return connection


def read(connection: socket.socket, before: bytes = b"") -> Reply:
    """Read one reply, of which ``before`` has been read already, to its end, whatever that is."""
    data = bytearray(before)
    try:
        while not _is_whole(data):
            more = connection.recv(1 << 20)
            if not more:
                return Reply(bytes(data), "fin")
            data += more
    except ConnectionResetError:
        return Reply(bytes(data), "reset")
    return Reply(bytes(data), "whole")


def _is_whole(data: bytearray) -> bool:
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = data[:end]
    if b"transfer-encoding: chunked" in head:
        return data.endswith(b"0\r\n\r\n")
    return len(data) - end - 4 == int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])


def ask(port: int, data: bytes) -> Reply:
    """One exchange over a connection of its own."""
    with connect(port) as connection:
        connection.sendall(data)
        return read(connection)


def only(server: TruthServer) -> Answered:
    """The record of the one answer."""
    (answered,) = server.answered
    return answered
