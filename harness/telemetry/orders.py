"""Orders to the sampler process, as JSON lines on its stdin, so that no secret is in a file or an argument list.

The reply to an order is its number, once it is in effect; the number distinguishes late replies from the current one. A
reply that is a string states why samples cannot be written.
"""

import msgspec

from bakeoff.engines import Access
from bakeoff.engines.metrics import MetricsSource

INTERVAL_NS = 100_000_000
"""Time between two samples."""


class ServerPage(msgspec.Struct, frozen=True):
    """The metrics page of an engine.

    Attributes:
        base_url: of the server.
        source: the page, and the meaning of its names.
        access: credentials for every request.
    """

    base_url: str
    source: MetricsSource
    access: Access = Access()


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
        engine_pid: root of the process tree of an engine that we started.
        client_pids: the client's workers.
        server: metrics page of the engine; None if it has none.
        gpus: GPUs that the engine may use, as in ``CUDA_VISIBLE_DEVICES``; None for all.
        own: processes that do not count as foreign load.
    """

    number: int
    log: str | None
    engine_pid: int | None = None
    client_pids: list[int] = []
    server: ServerPage | None = None
    gpus: str | None = None
    own: OwnProcesses = OwnProcesses()


class Mark(msgspec.Struct, frozen=True, tag="mark"):
    """Read the engine's whole metrics page now.

    Attributes:
        number: of the order.
        mark: name of the reading in the log.
    """

    number: int
    mark: str


Order = Sample | Mark
Reply = int | str
