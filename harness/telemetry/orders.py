"""Orders to the sampler process, as JSON lines on its stdin, so that no secret is in a file or an argument list.

The reply to an order is its number, once it is in effect; the number distinguishes late replies from the current one. A
reply that is a string states why samples cannot be written.
"""

import msgspec

from bakeoff.engines import Access
from bakeoff.engines.addresses import Address
from bakeoff.engines.endpoint import endpoint
from bakeoff.engines.metrics import MetricsSource, Prometheus

INTERVAL_NS = 100_000_000
"""Time between two samples."""


class ServerPage(msgspec.Struct, frozen=True):
    """The metrics page of an engine, or of one of its addresses.

    Attributes:
        base_url: of the server.
        source: the page, and the meaning of its names.
        access: credentials for every request.
        name: ``source`` of its records.
    """

    base_url: str
    source: MetricsSource
    access: Access = Access()
    name: str = "server"


class ExporterPage(msgspec.Struct, frozen=True):
    """The page of a DCGM exporter.

    Attributes:
        url: of the page; without a path, ``/metrics``.
        gpus: indices or UUIDs of the GPUs to read; empty for all.
        access: credentials.
    """

    url: str
    gpus: tuple[str, ...] = ()
    access: Access = Access()


def page_of(address: Address, source: MetricsSource, access: Access, name: str) -> ServerPage:
    """The metrics page of an address: at the adapter's usual path, or where its ``metrics`` says.

    Args:
        address: of the server.
        source: the adapter's page.
        access: credentials of the engine's requests.
        name: source of its records.
    """
    if address.metrics is None:
        return ServerPage(address.url, source, access, name)
    page = endpoint(address.metrics)
    path = page.path or source.path
    own = {"path": path, "port": None} if isinstance(source, Prometheus) else {"path": path}
    query = "&".join(filter(None, (page.query, access.query)))
    whole = msgspec.structs.replace(access, query=query, is_versioned=False)  # the path needs no prefix
    return ServerPage(page.origin, msgspec.structs.replace(source, **own), whole, name)


class OwnProcesses(msgspec.Struct, frozen=True):
    """Processes of this machine that do not count as foreign load.

    Attributes:
        pids: roots of their trees.
        unknown: why not all of them are known; None if they are.
    """

    pids: tuple[int, ...] = ()
    unknown: str | None = None


class Sample(msgspec.Struct, frozen=True, tag="sample"):
    """Start sampling, or stop.

    Attributes:
        number: of the order.
        log: file to append samples to; None stops sampling.
        engine_pids: roots of the process trees of an engine that we started.
        client_pids: the client's workers.
        servers: metrics pages of the engine; none if it has none.
        gpus: GPUs that the engine may use, as in ``CUDA_VISIBLE_DEVICES``; None for all.
        own: processes that do not count as foreign load.
        exporters: pages with GPUs of the engine that NVML does not sample here.
    """

    number: int
    log: str | None
    engine_pids: list[int] = []
    client_pids: list[int] = []
    servers: tuple[ServerPage, ...] = ()
    gpus: str | None = None
    own: OwnProcesses = OwnProcesses()
    exporters: tuple[ExporterPage, ...] = ()


class Mark(msgspec.Struct, frozen=True, tag="mark"):
    """Read all of the engine's metrics pages now.

    Attributes:
        number: of the order.
        mark: name of the readings in the log.
    """

    number: int
    mark: str


class Include(msgspec.Struct, frozen=True, tag="include"):
    """Sample another process tree as the engine's from now on.

    Attributes:
        number: of the order.
        pid: its root.
    """

    number: int
    pid: int


Order = Sample | Mark | Include
Reply = int | str
