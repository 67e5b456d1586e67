"""One page over a kept connection. Certificates are checked as the client checks them; proxies are not used."""

import http.client
import ssl
import time
from collections.abc import Callable, Mapping

from bakeoff.engines import Access
from bakeoff.engines.endpoint import Endpoint, endpoint
from bakeoff.engines.secrets import conceal

_HEADERS = {"accept": "text/plain; version=0.0.4, application/json; q=0.5", "accept-encoding": "identity"}
"""Ask for the format that is cheapest for the server."""
_NO_SUCH_PAGE = frozenset({301, 302, 307, 308, 401, 403, 404, 405, 410, 501})


class Refused(Exception):
    """The server responds with an HTTP error instead of the page."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.is_permanent: bool = status in _NO_SUCH_PAGE


class Page:
    """A page.

    Args:
        base_url: of the server; its path comes before the page's.
        path: of the page.
        access: credentials.
        port: of the page, if it is not that of the URL.
        timeout_s: limit for one exchange.
        clock_ns: monotonic clock.

    Attributes:
        path: of its requests.
    """

    def __init__(
        self,
        base_url: str,
        path: str,
        access: Access,
        *,
        port: int | None = None,
        timeout_s: float = 2.0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        conceal(*access.headers.values(), access.query)
        address = endpoint(base_url)
        self.path: str = address.path.rstrip("/") + access.path(path)
        self._headers: Mapping[str, str] = access.headers | _HEADERS
        self._connection = _connection(address, port or address.port, timeout_s)
        self._clock_ns = clock_ns

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def get(self) -> tuple[int, bytes, int]:
        """Start, body and end of one exchange; reconnects once if the server has closed a kept connection.

        Raises:
            Refused: the server answers with another status.
            OSError, http.client.HTTPException: no answer.
        """
        is_new = self._connection.sock is None
        try:
            return self._get()
        except (ConnectionError, http.client.BadStatusLine):
            self._connection.close()
            if is_new:
                raise
            return self._get()

    def _get(self) -> tuple[int, bytes, int]:
        before_ns = self._clock_ns()
        self._connection.request("GET", self.path, headers=self._headers)
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise Refused(response.status, f"HTTP {response.status} {response.reason} at {self.path}")
        return before_ns, body, self._clock_ns()


def _connection(address: Endpoint, port: int, timeout_s: float) -> http.client.HTTPConnection:
    """A connection, not yet opened."""
    if address.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(address.host, port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(address.host, port, timeout=timeout_s)
