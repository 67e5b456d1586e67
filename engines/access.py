"""What lets a request in: plain data, for processes that know no engines."""

import urllib.parse

import msgspec


class Access(msgspec.Struct, frozen=True):
    """What every request to a server must carry to be let in; all of it is secret.

    Attributes:
        headers: names in lower case.
        query: appended to every path, without the question mark.
    """

    headers: dict[str, str] = {}
    query: str = ""

    def __repr__(self) -> str:
        return f"Access(headers={sorted(self.headers)})"

    def secrets(self) -> list[bytes]:
        """What of it a server might quote, longest first."""
        values = [*self.headers.values(), *(value for _, value in urllib.parse.parse_qsl(self.query))]
        parts = {part.encode() for value in values for part in (value, value.rpartition(" ")[2]) if part}
        return sorted(parts, key=len, reverse=True)

    def path(self, path: str) -> str:
        """A path with the query behind it."""
        return f"{path}{'&' if '?' in path else '?'}{self.query}" if self.query else path
