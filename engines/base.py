"""The seam between the harness and one system: how it is started, spoken to and described."""

import base64
import os
import urllib.parse
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec

from engines.access import Access
from engines.deployment import Deployment
from engines.dialects import Dialect
from engines.errors import BadOption
from engines.launcher import Launch, Server
from engines.metrics import MetricsSource
from engines.secrets import conceal
from engines.spec import EngineSpec


class Model(msgspec.Struct, frozen=True):
    """The model under test.

    Attributes:
        name: what requests and reports call it.
        path: folder of the checkpoint, or a GGUF file; None for a server whose weights we do not see.
        sha256: over the checkpoint's files; None where there is no path.
    """

    name: str
    path: str | None = None
    sha256: str | None = None


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of an adapter that has none of its own."""


class Setup(msgspec.Struct, frozen=True):
    """All that is asked of one engine.

    Attributes:
        model: what it serves.
        spec: what all engines share.
        options: the adapter's own; an instance of its ``Options``.
        deployment: where it runs.
    """

    model: Model
    spec: EngineSpec = EngineSpec()
    options: Any = NoOptions()
    deployment: Deployment = Deployment()


class Engine(Protocol):
    """One system with its options, for one model. Adapters are classes that take a :class:`Setup`.

    Their class variables are read before anything is made: ``adapter``, its name, and ``Options``, a struct.
    Most adapters are children of :class:`engines.server_engine.ServerEngine`, which has all but what differs.
    """

    adapter: ClassVar[str]
    Options: ClassVar[type[msgspec.Struct]]

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:
        """Its wire format under these options; needs neither keys nor the machine: logs can be read anywhere."""
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

    @property
    def access(self) -> Access:
        """What each request must carry to be let in."""
        ...

    @property
    def metrics(self) -> MetricsSource | None:
        """Where it tells its own view of the load; None where it does not."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What a reader of its figures must know."""
        ...

    def gpus(self) -> str | None:
        """This machine's GPUs that it may use, as ``CUDA_VISIBLE_DEVICES`` names them; None for all, "" for none."""
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


@runtime_checkable
class SupportsCheck(Protocol):
    """An adapter, the class itself, that finds what is wrong with its settings before anything is made."""

    def check(self, setup: Setup) -> None:
        """Look at the settings without touching the machine.

        Raises:
            BadOption: they contradict themselves, or ask for what the engine cannot do.
        """
        ...


@runtime_checkable
class SupportsBuild(Protocol):
    """An engine that can say which code a launch of it runs."""

    def build(self) -> dict[str, Any]:
        """Plain data that differs where the code does, as far as this machine can tell.

        Raises:
            NotInstalled: it is not here.
        """
        ...


def base_url(url: str) -> str:
    """An engine's address without its final ``/v1``, which the dialects' paths begin with, and without any secret.

    Raises:
        BadOption: it is not http or https.
    """
    if not url.startswith(("http://", "https://")):
        raise BadOption(f"url must begin with http:// or https://, not {url!r}")
    parts = urllib.parse.urlsplit(url)
    if not parts.hostname:
        raise BadOption(f"url names no host: {url!r}")
    bare = urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    return bare.rstrip("/").removesuffix("/v1")


def access_to(deployment: Deployment, key_header: str = "authorization") -> Access:
    """What requests must carry: given headers, a key from the environment, the address's user and query.

    Args:
        deployment: says where they come from.
        key_header: header of the key; ``authorization`` takes it as a bearer token, any other as it is.

    Raises:
        BadOption: the environment variable of the key is not set.
    """
    headers = {name.lower(): value for name, value in deployment.headers.items()}
    parts = urllib.parse.urlsplit(deployment.url or "")
    if parts.username is not None:
        user, password = urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or "")
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        conceal(token)
        headers.setdefault("authorization", f"Basic {token}")
    if deployment.api_key_env:
        key = os.environ.get(deployment.api_key_env)
        if key is None:
            raise BadOption(f"the environment variable {deployment.api_key_env} is not set; export the key in it")
        headers[key_header] = f"Bearer {key}" if key_header == "authorization" else key
    return Access(headers, parts.query)
