"""The seam between the harness and one system: how it is started, spoken to and described."""

from typing import Any, Protocol

import msgspec

from engines.dialects import Dialect
from engines.errors import BadOption
from engines.launcher import Launch, Server


class Model(msgspec.Struct, frozen=True):
    """The model under test.

    Attributes:
        name: what requests and reports call it.
        path: folder of the checkpoint; None for a server whose weights we do not see.
        sha256: over the checkpoint's files; None where there is no path.
    """

    name: str
    path: str | None = None
    sha256: str | None = None


def base_url(url: str) -> str:
    """An engine's address without its final ``/v1``, which the dialects' paths begin with.

    Raises:
        BadOption: it is not http or https.
    """
    if not url.startswith(("http://", "https://")):
        raise BadOption(f"url must begin with http:// or https://, not {url!r}")
    return url.rstrip("/").removesuffix("/v1")


class Engine(Protocol):
    """One system with its options, for one model."""

    @property
    def adapter(self) -> str:
        """Name of the adapter."""
        ...

    @property
    def dialect(self) -> Dialect:
        """Its wire format."""
        ...

    @property
    def model_id(self) -> str:
        """What requests put into ``model``."""
        ...

    @property
    def url(self) -> str | None:
        """Where it runs already; None when it is launched."""
        ...

    def launch(self, port: int) -> Launch | None:
        """How to start it on ``port``; None when it runs already."""
        ...

    async def reset_cache(self, server: Server) -> bool:
        """Empty the prefix cache of a ready server; False where it has no call for that."""
        ...

    async def describe(self, server: Server) -> dict[str, Any]:
        """Ask a ready server (or its package) what it is: ``version`` and whatever else identifies it."""
        ...
