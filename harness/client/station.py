"""The seam between a fleet and where a worker runs: on this machine, or on another."""

from pathlib import Path
from typing import Protocol

import msgspec

from harness.client.orders import Answer, Order


class WorkerClock(msgspec.Struct, frozen=True):
    """How a worker's monotonic clock stands to ours.

    Attributes:
        offset_ns: its clock minus ours.
        uncertainty_ns: the offset is known to within this, up or down.
    """

    offset_ns: int = 0
    uncertainty_ns: int = 0


class Station(Protocol):
    """One running worker."""

    @property
    def host(self) -> str:
        """Name of the machine."""
        ...

    @property
    def pid(self) -> int | None:
        """Its process, when that is on this machine."""
        ...

    @property
    def clock(self) -> WorkerClock:
        """Its clock; on this machine all processes share one."""
        ...

    async def send(self, order: Order) -> None:
        """Give an order. A worker that is gone shows at the next :meth:`answer`."""
        ...

    async def answer(self) -> Answer:
        """The next answer.

        Raises:
            ClientFailed: the worker has ended.
        """
        ...

    async def stage(self, path: Path) -> str:
        """Make a file readable for the worker; returns its path there."""
        ...

    def place(self, path: Path) -> str:
        """Where the worker shall write what is to end up at ``path``."""
        ...

    async def collect(self, path: Path) -> None:
        """Bring what the worker wrote to :meth:`place` of ``path`` here, with its times on our clock."""
        ...
