"""A file server on 127.0.0.1 that interrupts, ignores ranges or sends garbage on request."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer(ThreadingHTTPServer):
    """Serves ``content`` at every path.

    Attributes:
        content: the file.
        break_after: bytes after which the next answer breaks off; None for never.
        honours_range: answers 206 and 416, as an index does.
        chunked: without Content-Length.
        status: sent instead of the file.
        raw: sent instead of an HTTP answer.
        asked: the Range header of each request.
    """

    daemon_threads = False
    content = b""
    break_after: int | None = None
    honours_range = True
    chunked = False
    status: int | None = None
    raw: bytes | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        """The address of the file."""
        return f"http://127.0.0.1:{self.server_port}/model.whl"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FileServer

    def do_GET(self) -> None:
        served = self.server
        self.close_connection = True
        asked = self.headers.get("Range")
        served.asked.append(asked)
        if served.raw is not None:
            self.wfile.write(served.raw)
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and served.honours_range else 0  # type: ignore[index]
        if served.status or start >= len(served.content):
            self.send_response(served.status or 416)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = served.content[start:]
        self.send_response(206 if start else 200)
        if served.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        sent = body if served.break_after is None else body[: served.break_after]
        self.wfile.write(b"%x\r\n%s" % (len(body), sent) if served.chunked else sent)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def file_server(content: bytes) -> Iterator[FileServer]:
    """Serve ``content`` until the end of the block."""
    with FileServer() as server:
        server.content = content
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
