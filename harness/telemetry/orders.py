"""What the sampler's process is told: JSON lines on its stdin, so that nothing secret is in a file or an argument list.

Every order has a number, and is answered by that number once it holds; an answer that nobody waited for is told from
the next one by it. An answer that is a text says why samples cannot be written.
"""

import msgspec

from engines import Access
from engines.metrics import MetricsSource


class ServerPage(msgspec.Struct, frozen=True):
    """Where an engine tells its own view, and what may be asked there.

    Attributes:
        base_url: of the server.
        source: which page, and what its names mean.
        access: what every request must carry.
    """

    base_url: str
    source: MetricsSource
    access: Access = Access()


class OwnProcesses(msgspec.Struct, frozen=True):
    """Processes of this machine that are no foreign load.

    Attributes:
        pids: roots of their trees.
        unknown: why not all of them are known; None where they are.
    """

    pids: tuple[int, ...] = ()
    unknown: str | None = None


class Sample(msgspec.Struct, frozen=True, tag="sample"):
    """Sample from now on.

    Attributes:
        number: of the order.
        log: file into which; None stops.
        engine_pid: root of the process tree of an engine that is ours.
        client_pids: of the client's workers.
        server: where the engine tells its own view; None where it does not.
        gpus: those that the engine may use, as ``CUDA_VISIBLE_DEVICES`` names them; None: every one.
        own: processes that are no foreign load.
    """

    number: int
    log: str | None
    engine_pid: int | None = None
    client_pids: list[int] = []
    server: ServerPage | None = None
    gpus: str | None = None
    own: OwnProcesses = OwnProcesses()


class Mark(msgspec.Struct, frozen=True, tag="mark"):
    """Read the engine's page now, whole, into the file of the samples.

    Attributes:
        number: of the order.
        mark: what the reading is called.
    """

    number: int
    mark: str


Order = Sample | Mark
Answer = int | str
