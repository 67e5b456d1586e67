"""Credentials of requests, as plain data for processes that do not import engines."""

import urllib.parse

import msgspec

from bakeoff.engines.secrets import is_maskable, names_secret


class Access(msgspec.Struct, frozen=True):
    """What every request to a server carries: credentials, all of them secret, and the form of its paths.

    Attributes:
        headers: names in lower case.
        query: appended to every path, without the question mark.
        is_versioned: whether the address ends in the service's own version, such as ``/api/paas/v4``, in place of
            the ``/v1`` that paths begin with.
    """

    headers: dict[str, str] = {}
    query: str = ""
    is_versioned: bool = False

    def __repr__(self) -> str:
        return f"Access(headers={sorted(self.headers)})"

    def secrets(self) -> list[bytes]:
        """Secrets that a server could echo and that are masked in its answers, longest first."""
        named = (value for name, value in urllib.parse.parse_qsl(self.query) if names_secret(name))
        values = [*self.headers.values(), *named]
        parts = {part.encode() for value in values for part in (value, value.rpartition(" ")[2]) if is_maskable(part)}
        return sorted(parts, key=len, reverse=True)

    def path(self, path: str) -> str:
        """``path`` below the server's address, with the query appended."""
        if self.is_versioned:
            path = path.removeprefix("/v1")
        return f"{path}{'&' if '?' in path else '?'}{self.query}" if self.query else path
