"""Parser of the address of a server: what requests carry to it, apart from where it is."""

import re
import urllib.parse

import msgspec

from bakeoff.engines.errors import BadOption

_CALL = re.compile(r"/(chat/completions|completions|responses|messages|models)$")
_VERSION = re.compile(r"v[0-9]+([a-z]+[0-9]*)?")
"""A part of an address that names a version: v4, v1beta, v2alpha1."""
_PORTS = {"http": 80, "https": 443}


class Endpoint(msgspec.Struct, frozen=True):
    """An http or https address.

    Attributes:
        scheme: ``http`` or ``https``.
        authority: host and port, not normalised, without a user.
        host: name or number, in lower case and without brackets.
        port: that of the scheme unless the address has one.
        path: not normalised.
        query: not decoded; it may hold a secret.
        user: not decoded; None without one.
        password: not decoded; None without one.
    """

    scheme: str
    authority: str
    host: str
    port: int
    path: str = ""
    query: str = ""
    user: str | None = None
    password: str | None = None

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{self.scheme}://{self.authority}"

    @property
    def place(self) -> str:
        """The base URL without its scheme."""
        return self.authority + _CALL.sub("", self.path.rstrip("/")).removesuffix("/v1")

    @property
    def base_url(self) -> str:
        """Without what requests carry, without a call and a final ``/v1``, which are parts of the dialects' paths."""
        return f"{self.scheme}://{self.place}"

    @property
    def is_versioned(self) -> bool:
        """Whether it has a version of its own, in place of the ``/v1`` of paths."""
        return any(map(_VERSION.fullmatch, self.place.split("/")[1:]))


def endpoint(url: str) -> Endpoint:
    """Parse an address.

    Raises:
        BadOption: it is not an http or https address.
    """
    url = url.strip()
    if not url.lower().startswith(("http://", "https://")):
        raise BadOption(f"url must begin with http:// or https://, not {url!r}")
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except ValueError as error:
        raise BadOption(f"url {url!r} is not an address: {' '.join(str(error).split())}") from error
    if not parts.hostname:
        raise BadOption(f"url has no host: {url!r}")
    authority = parts.netloc.rpartition("@")[2]
    return Endpoint(
        parts.scheme, authority, parts.hostname, port, parts.path, parts.query, parts.username, parts.password
    )
