"""A server with one page of metrics, in a thread; the test decides what it answers, when and to whom."""

import contextlib
import threading
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from bakeoff.engines import Access
from bakeoff.engines.metrics import Histogram, Prometheus, Series
from bakeoff.harness.telemetry import ServerPage

SOURCE = Prometheus(
    {"running": (Series("running"),), "output_tokens_total": (Series("tokens_total"),)}, {"ttft_s": Histogram("ttft")}
)
PAGE = 'running 3\ntokens_total 100\nttft_bucket{le="0.5"} 8\nttft_bucket{le="+Inf"} 9\nttft_sum 4.5\nttft_count 9\n'


class PageServer(ThreadingHTTPServer):
    """Answers with the status and body that ``say`` returns. Records requests and counts connections."""

    daemon_threads = True

    def __init__(self, say: Callable[[str], tuple[int, str]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.say = say
        self.hang_up = False
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def page(self, access: Access = Access(), source: Prometheus = SOURCE) -> ServerPage:  # noqa: B008
        return ServerPage(self.url, source, access)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: PageServer

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_GET(self) -> None:
        self.server.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        status, body = self.server.say(self.path)
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())
        if self.server.hang_up:  # without announcing it in the headers, as after an idle timeout
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextlib.contextmanager
def page_server(say: Callable[[str], tuple[int, str]] = lambda _: (200, PAGE)) -> Generator[PageServer]:
    with PageServer(say) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
