"""A server that fails every request costs seconds, whatever its failure is.

``bakeoff bench`` must end with exit code 3 within 10 s of the first failure, must not send
a storm of requests, and must print no traceback. With ``--only``, one failure is tried.
"""

import argparse
import contextlib
import http.server
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from http import HTTPStatus
from pathlib import Path

from benchmarks.bars import Bars

MAX_S, MAX_PER_SLOT_AND_S = 10.0, 20.0
SLOTS = 8
EVENT = b'data: {"choices":[{"index":0,"text":" a","finish_reason":null}]}\n\n'
ANSWERS: dict[str, tuple[HTTPStatus, bytes]] = {
    "wrong key": (HTTPStatus.UNAUTHORIZED, b'{"error":{"message":"wrong key"}}'),
    "forbidden": (HTTPStatus.FORBIDDEN, b'{"error":{"message":"forbidden"}}'),
    "unknown model": (HTTPStatus.NOT_FOUND, b'{"error":{"message":"no such model"}}'),
    "redirect": (HTTPStatus.FOUND, b""),
    "overloaded": (HTTPStatus.SERVICE_UNAVAILABLE, b"busy"),
    "error event": (HTTPStatus.OK, b'data: {"error":{"message":"out of memory","code":500}}\n\n'),
    "no finish reason": (HTTPStatus.OK, EVENT + b"data: [DONE]\n\n"),
    "bad chunk": (HTTPStatus.OK, EVENT + b"data: {\n\ndata: [DONE]\n\n"),
    "empty": (HTTPStatus.OK, b""),
}


class FailingServer:
    """Answers every POST alike.

    Attributes:
        url: its address.
        asked_s: time of each POST.
    """

    def __init__(self, status: HTTPStatus, body: bytes) -> None:
        self.asked_s: list[float] = []
        asked_s = self.asked_s

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                asked_s.append(time.monotonic())
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(status)
                if status.value // 100 == 3:
                    self.send_header("location", "http://127.0.0.1:9/elsewhere")
                self.send_header("content-type", "text/event-stream")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (http.server names them)
                """Print nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextlib.contextmanager
    def serving(self) -> Generator[None]:
        """Serve while the block runs."""
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


def main() -> None:
    """Try each failure, then print the bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(ANSWERS))
    only: str | None = parser.parse_args().only
    bars = Bars()
    for name in [only] if only else ANSWERS:
        server = FailingServer(*ANSWERS[name])
        with tempfile.TemporaryDirectory() as folder, server.serving():
            argv = [
                sys.executable, "-m", "bakeoff", "bench", "--url", server.url, "--engine", "openai", "--model", "m",
                "--tokenizer", "approximate", "--no-calibrate", "--max-foreign-share", "1", "--concurrency", str(SLOTS),
                "--out", str(Path(folder)),
            ]  # fmt: skip
            ended = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
            ended_s = time.monotonic()
        took_s = ended_s - server.asked_s[0]
        print(f"{name}: {len(server.asked_s)} requests, the last after {server.asked_s[-1] - server.asked_s[0]:.1f} s")
        loaded_s = max(1.0, server.asked_s[-1] - server.asked_s[0])
        bars.add(f"{name}: seconds from the first failure", took_s, "<=", MAX_S)
        bars.add(f"{name}: exit code", ended.returncode, "==", 3)
        bars.add(f"{name}: requests per slot and s", len(server.asked_s) / SLOTS / loaded_s, "<=", MAX_PER_SLOT_AND_S)
        bars.add(f"{name}: tracebacks", ended.stderr.count("Traceback"), "==", 0)
    bars.finish()


if __name__ == "__main__":
    main()
