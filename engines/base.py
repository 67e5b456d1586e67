"""The interface between the harness and one system: how to start, query and describe it."""

import base64
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec

from bakeoff.engines.access import Access
from bakeoff.engines.addresses import Address
from bakeoff.engines.deployment import Deployment, header_problem
from bakeoff.engines.dialects import Dialect
from bakeoff.engines.endpoint import endpoint
from bakeoff.engines.errors import BadOption
from bakeoff.engines.launcher import Launch, Server
from bakeoff.engines.metrics import MetricsSource
from bakeoff.engines.secrets import conceal
from bakeoff.engines.spec import EngineSpec


class Model(msgspec.Struct, frozen=True):
    """The model under test.

    Attributes:
        name: name in requests and reports.
        path: folder of the checkpoint, or a GGUF file; None for a server whose weights are not visible.
        sha256: hash of the checkpoint's files; None without a path.
    """

    name: str
    path: str | None = None
    sha256: str | None = None


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of an adapter that has none."""


class Setup(msgspec.Struct, frozen=True):
    """Complete configuration of one engine.

    Attributes:
        model: the model to serve.
        spec: settings shared by all engines.
        options: the adapter's options; an instance of its ``Options``.
        deployment: where and how it runs.
    """

    model: Model
    spec: EngineSpec = EngineSpec()
    options: Any = NoOptions()
    deployment: Deployment = Deployment()


class Engine(Protocol):
    """One system with its options, for one model. Adapters are classes that take a :class:`Setup`.

    Class variables are read before an instance exists: ``adapter``, the name, and ``Options``, a struct. Most adapters
    derive from :class:`bakeoff.engines.server_engine.ServerEngine`, which implements the common parts.
    """

    adapter: ClassVar[str]
    Options: ClassVar[type[msgspec.Struct]]

    @classmethod
    def dialect_for(cls, setup: Setup) -> Dialect:
        """The wire format for this configuration, found without keys or the engine, to read logs anywhere."""
        ...

    @property
    def dialect(self) -> Dialect:
        """The wire format."""
        ...

    @property
    def model_id(self) -> str:
        """Value of ``model`` in requests."""
        ...

    @property
    def url(self) -> str | None:
        """Address of a running server, the first that gets requests if it has several; None if it is launched."""
        ...

    @property
    def access(self) -> Access:
        """Credentials of requests."""
        ...

    @property
    def metrics(self) -> MetricsSource | None:
        """Source of the engine's own metrics; None if it has none."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Remarks for readers of its figures."""
        ...

    def gpus(self) -> str | None:
        """GPUs of this machine that it may use, as in ``CUDA_VISIBLE_DEVICES``; None for all, "" for none."""
        ...

    def launch(self, port: int) -> Launch | None:
        """How to start it on ``port``; None for a running server."""
        ...

    async def reset_cache(self, server: Server) -> bool:
        """Empty the prefix cache of a ready server; False if it has no call for that."""
        ...

    async def describe(self, server: Server) -> dict[str, Any]:
        """``version`` and other identification, from a ready server or its package."""
        ...


@runtime_checkable
class SupportsAddresses(Protocol):
    """An engine that can run at several addresses."""

    @property
    def addresses(self) -> Sequence[Address]:
        """The base URLs of all addresses of a running engine; empty if it is launched."""
        ...


def addresses_of(engine: Engine) -> Sequence[Address]:
    """All addresses of a running engine; empty if it is launched."""
    if isinstance(engine, SupportsAddresses):
        return engine.addresses
    return [Address(engine.url)] if engine.url else []


@runtime_checkable
class ReportsSettings(Protocol):
    """An engine that can be compared with others setting by setting, by the names of :class:`EngineSpec`."""

    def settings_asked(self) -> dict[str, Any]:
        """The shared settings that a launch gives it; empty for a running server."""
        ...

    def settings_in(self, description: Mapping[str, Any]) -> dict[str, Any]:
        """The shared settings that an answer of :meth:`Engine.describe` holds."""
        ...


class PrefixCacheFacts(msgspec.Struct, frozen=True):
    """What an engine tells of its prefix cache; None for what is unknown.

    Attributes:
        is_on: whether it keeps prefixes.
        block_tokens: tokens of a block.
        capacity_tokens: tokens that it can hold, those in use included.
        hits_to_the_token: whether also the beginning of a block hits, not only a whole one.
    """

    is_on: bool | None = None
    block_tokens: int | None = None
    capacity_tokens: int | None = None
    hits_to_the_token: bool = False


@runtime_checkable
class ReportsPrefixCache(Protocol):
    """An engine whose description tells of its prefix cache."""

    def prefix_cache_in(self, description: Mapping[str, Any]) -> PrefixCacheFacts:
        """The facts that an answer of :meth:`Engine.describe` holds."""
        ...


@runtime_checkable
class SupportsCheck(Protocol):
    """An adapter class that checks its configuration before an instance exists."""

    def check(self, setup: Setup) -> None:
        """Check the configuration without touching the machine.

        Raises:
            BadOption: settings contradict each other or are not supported by the engine.
        """
        ...


@runtime_checkable
class SupportsBuild(Protocol):
    """An engine that can identify the code that a launch runs."""

    def build(self) -> dict[str, Any]:
        """Plain data that changes with the code, as far as this machine can tell.

        Raises:
            NotInstalled: the engine is not installed.
        """
        ...


@runtime_checkable
class SupportsStepLog(Protocol):
    """An engine that records when it computed and wrote each token; see :mod:`bakeoff.results.log.step_log`.

    Attributes:
        recording_options: options of a launch that allow it.
    """

    recording_options: ClassVar[Mapping[str, Any]]

    async def start_step_log(self, server: Server) -> None:
        """Start recording.

        Raises:
            StepLogMissing: the server does not record, with the reason.
        """
        ...

    async def stop_step_log(self, server: Server) -> list[str]:
        """Stop recording; returns the paths of the files on the server's machine.

        Raises:
            StepLogMissing: the record is not complete.
        """
        ...


@runtime_checkable
class SupportsSpans(Protocol):
    """An engine that exports a span per request in OpenTelemetry's protocol; see :mod:`bakeoff.results.log.spans`.

    A request is exported if it carries a ``traceparent`` header whose flag ``sampled`` is set.

    Attributes:
        recording_options: options of a launch that export spans to :data:`SPAN_ENDPOINT`.
        span_delay_s: longest time from the end of a request to its export, after such a launch.
        span_command: command line that starts such a server by hand, with ``{endpoint}`` for the address.
    """

    recording_options: ClassVar[Mapping[str, Any]]
    span_delay_s: ClassVar[float]
    span_command: ClassVar[str]


SPAN_ENDPOINT = "{spans}"
"""In the arguments of a launch: the address of the receiver that the harness runs for it."""


@runtime_checkable
class SupportsKernels(Protocol):
    """An engine that records its kernels by torch's profiler, on request.

    Attributes:
        kernel_options: options of a launch that allow it.
    """

    kernel_options: ClassVar[Mapping[str, Any]]

    async def start_kernels(self, server: Server) -> None:
        """Start recording.

        Raises:
            StepLogMissing: the server does not record, with the reason.
        """
        ...

    async def stop_kernels(self, server: Server) -> list[str]:
        """Stop recording; returns the paths of the traces on the server's machine.

        Raises:
            StepLogMissing: there is no trace.
        """
        ...


def access_to(deployment: Deployment, key_header: str = "authorization") -> Access:
    """Credentials of requests: configured headers, a key from the environment, the address's user and query.

    Args:
        deployment: configures them.
        key_header: header of the key; ``authorization`` sends it as a bearer token, any other header as it is.

    Raises:
        BadOption: the environment variable of the key is not set.
    """
    headers = {name.lower(): value for name, value in deployment.headers.items()}
    address = endpoint(deployment.address) if deployment.address else None
    if address is not None and address.user is not None:
        user, password = urllib.parse.unquote(address.user), urllib.parse.unquote(address.password or "")
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        conceal(token)
        headers.setdefault("authorization", f"Basic {token}")
    if deployment.api_key_env:
        exported = os.environ.get(deployment.api_key_env)
        if exported is None:
            raise BadOption(f"the environment variable {deployment.api_key_env} is not set; export the key in it")
        key = exported.strip()  # a file's last line end is easily exported with it
        if header_problem({key_header: key}):
            raise BadOption(
                f"the environment variable {deployment.api_key_env} holds a line end or another character that no key "
                "has; export the key alone"
            )
        headers[key_header] = f"Bearer {key}" if key_header == "authorization" else key
    return Access(headers, address.query, is_versioned=address.is_versioned) if address else Access(headers)
