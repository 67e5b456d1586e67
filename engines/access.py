"""Credentials of requests, as plain data for processes that do not import engines."""

import urllib.parse

import msgspec


class Access(msgspec.Struct, frozen=True):
    """Credentials that every request to a server carries; all of them are secret.

    Attributes:
        headers: names in lower case.
        query: appended to every path, without the question mark.
    """

    headers: dict[str, str] = {}
    query: str = ""

    def __repr__(self) -> str:
        return f"Access(headers={sorted(self.headers)})"

    def secrets(self) -> list[bytes]:
        """Secrets that a server could echo, longest first."""
        values = [*self.headers.values(), *(value for _, value in urllib.parse.parse_qsl(self.query))]
        parts = {part.encode() for value in values for part in (value, value.rpartition(" ")[2]) if part}
        return sorted(parts, key=len, reverse=True)

    def path(self, path: str) -> str:
        """``path`` with the query appended."""
        return f"{path}{'&' if '?' in path else '?'}{self.query}" if self.query else path
