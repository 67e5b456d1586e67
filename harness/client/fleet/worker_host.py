"""The interface between a fleet and its workers, on this machine or others."""

from pathlib import Path
from typing import Protocol

import msgspec

from bakeoff.harness.client.wire.orders import Order, Reply


class WorkerClock(msgspec.Struct, frozen=True):
    """A worker's monotonic clock relative to ours.

    Attributes:
        offset_ns: its clock minus ours.
        uncertainty_ns: largest error of the offset, in either direction.
    """

    offset_ns: int = 0
    uncertainty_ns: int = 0


class WorkerHost(Protocol):
    """One running worker, wherever it runs."""

    @property
    def host(self) -> str:
        """Name of the machine."""
        ...

    @property
    def pid(self) -> int | None:
        """Process id, if it runs on this machine."""
        ...

    @property
    def clock(self) -> WorkerClock:
        """Its clock; all processes of this machine share one."""
        ...

    async def renew(self) -> None:
        """Replace the worker if it has ended.

        Raises:
            WorkerLost: there is no room for another one.
        """
        ...

    async def send(self, order: Order) -> None:
        """Send an order. If the worker has ended, the next :meth:`reply` raises."""
        ...

    async def reply(self) -> Reply:
        """The next reply; signs of life, too.

        Raises:
            ClientFailed: the worker has ended.
        """
        ...

    async def stage(self, path: Path) -> str:
        """Make a file readable for the worker; returns its path on the worker's machine."""
        ...

    def remote_path(self, path: Path) -> str:
        """Where the worker writes the file that :meth:`collect` brings to ``path``."""
        ...

    async def collect(self, path: Path) -> None:
        """Bring the file at :meth:`remote_path` to ``path``, with its times converted to our clock."""
        ...
