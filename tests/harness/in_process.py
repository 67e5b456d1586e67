"""This machine without measuring processes, for tests of adapters and wire formats in whole runs."""

import contextlib
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager

from bakeoff.harness.client import Fleet, HttpTransport
from bakeoff.harness.client.wire.orders import Prepare
from bakeoff.harness.conduct.world import RealWorld, Telemetry
from bakeoff.harness.experiment.config import ClientConfig
from bakeoff.harness.host.clock import Clock, MonotonicClock
from bakeoff.harness.virtual.telemetry import VirtualSampler
from bakeoff.harness.virtual.worker_host import NoMeter, VirtualWorkerHost


class _Sockets:
    """A :class:`~bakeoff.harness.client.worker.load_runner.LoadEnvironment`: this machine, on the loop of the test."""

    def transport(self, order: Prepare, base_url: str) -> HttpTransport:
        return HttpTransport(base_url, order.access)

    def clock(self) -> MonotonicClock:
        return MonotonicClock()

    def meter(self, clock: Clock) -> NoMeter:
        return NoMeter()


class InProcess(RealWorld):
    """Engines are real; the client runs on this loop, and nothing is sampled unless a test requests the sampler."""

    def __init__(self, *, samples: bool = False) -> None:
        self._samples = samples

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncGenerator[Fleet]:
        yield Fleet([VirtualWorkerHost(_Sockets())])

    def fleet(self, client: ClientConfig) -> AbstractAsyncContextManager[Fleet]:
        return self._client()

    def sampler(self) -> AbstractAsyncContextManager[Telemetry]:
        return super().sampler() if self._samples else contextlib.nullcontext(VirtualSampler(()))
