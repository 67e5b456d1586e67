"""The sampler in virtual time."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

from bakeoff.harness.host.clock import LoopClock, sleep_until_ns
from bakeoff.harness.telemetry import ExporterPage, OwnProcesses, ServerPage
from bakeoff.harness.telemetry.loop import Probe, Ticker, sample
from bakeoff.results.files.jsonl import Appender
from bakeoff.results.records import TelemetryRecord

INTERVAL_NS = 100_000_000


class VirtualSampler:
    """Reads its probes ten times per second of virtual time; see :class:`bakeoff.harness.telemetry.Sampler`.

    Args:
        probes: probes to sample; without any the log stays empty.

    Attributes:
        interval_ns: None, because no probe reads the host.
    """

    interval_ns: int | None = None

    def __init__(self, probes: Sequence[Probe]) -> None:
        self._probes = probes

    @contextlib.asynccontextmanager
    async def into(
        self,
        log: Path,
        engine_pids: Sequence[int],  # noqa: ARG002
        client_pids: Sequence[int],  # noqa: ARG002
        servers: Sequence[ServerPage] = (),  # noqa: ARG002
        gpus: str | None = None,  # noqa: ARG002
        *,
        own: OwnProcesses = OwnProcesses(),  # noqa: ARG002, B008  (frozen)
        exporters: Sequence[ExporterPage] = (),  # noqa: ARG002
    ) -> AsyncGenerator[None]:
        """Sample into ``log`` while the block runs; processes are ignored."""
        with Appender(log) as file:
            task = asyncio.create_task(self._sample(file.append)) if self._probes else None
            try:
                yield
            finally:
                if task:
                    task.cancel()
                    await asyncio.wait([task])

    async def include(self, pid: int) -> None:
        """Ignore the process."""

    async def mark(self, mark: str) -> None:
        """Do nothing: there is no metrics page."""

    async def _sample(self, emit: Callable[[TelemetryRecord], None]) -> None:
        clock = LoopClock()
        ticker = Ticker(INTERVAL_NS, clock.now_ns())
        while True:
            sample(self._probes, ticker, clock.now_ns, emit)
            await sleep_until_ns(clock, clock.now_ns() + ticker.wait_ns(clock.now_ns()))
