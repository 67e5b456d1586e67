"""Warms engines up until they are stable: their first requests compile kernels, fill caches and allocate memory.

Sends rounds of small requests, one at a time, until a round's median time is less than a tenth below the last round's.
Rounds have equal lengths and different words, so that only the engine's state differs between them.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import msgspec

from bakeoff.engines import Engine, Server
from bakeoff.harness.client import Closed, Fleet
from bakeoff.harness.client.fleet.fleet import LoadOrder
from bakeoff.harness.client.wire.orders import Target
from bakeoff.harness.client.wire.plan import wire_sessions
from bakeoff.harness.client.wire.stream_content import is_success
from bakeoff.harness.conduct.traffic_classes import classes_of
from bakeoff.harness.experiment.config import TrialConfig
from bakeoff.harness.host.scratch import scratch_folder
from bakeoff.harness.traffic.planner import TrafficPlanner
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.records import Phase, StreamEnd, StreamRecord
from bakeoff.results.units import NS_PER_S

STILL_FALLING = 0.9
"""If a round takes less than this share of the last round's time, the engine is still warming up."""
BUSY = 2.0
"""If a round takes more than this multiple of an idle engine's time, the engine is still busy."""
_MAX_ROUNDS = 12


class WarmUpResult(msgspec.Struct, frozen=True):
    """The result of a warm-up.

    Attributes:
        requests: number of requests sent.
        is_warm: whether the engine stopped getting faster; False if the time ran out or a request failed.
    """

    requests: int
    is_warm: bool


class WarmUp:
    """Warms engines up, and checks that they are idle.

    Args:
        fleet: the client's workers.
        planner: plans the requests.
        limits: ``warm_up_s`` limits a warm-up, whose last round may finish later; ``timeout_s`` limits a request.
        transport: the one that trials use.
        now_ns: monotonic clock in nanoseconds.
    """

    def __init__(
        self,
        fleet: Fleet,
        planner: TrafficPlanner,
        limits: TrialConfig,
        transport: str,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._fleet = fleet
        self._planner = planner
        self._limit_s = limits.warm_up_s
        self._timeout_s = limits.request_timeout_s
        self._transport = transport
        self._now_ns = now_ns

    async def run(self, engine: Engine, server: Server, start: str) -> WarmUpResult | None:
        """Send rounds until the engine stops getting faster; None if ``warm_up_s`` is 0.

        Args:
            engine: speaks the server's API.
            server: to warm up.
            start: names this start; seeds the words of its rounds.
        """
        if not self._limit_s:
            return None
        deadline_ns = self._deadline_ns()
        last_s, requests = float("inf"), 0
        for number in range(_MAX_ROUNDS):
            took_s = await self._round(engine, server, f"{start}/{number}")
            requests += len(took_s)
            if not took_s or server.exit_status is not None or self._now_ns() > deadline_ns:
                return WarmUpResult(requests, is_warm=False)
            round_s = statistics.median(took_s)
            if round_s >= STILL_FALLING * last_s:
                return WarmUpResult(requests, is_warm=True)
            last_s = round_s
        return WarmUpResult(requests, is_warm=False)

    async def round_s(self, engine: Engine, server: Server, name: str) -> float | None:
        """Median seconds of a request in one round; None if a request failed or ``warm_up_s`` is 0.

        Args:
            engine: speaks the server's API.
            server: to send to.
            name: of the round; seeds its words.
        """
        took_s = await self._round(engine, server, name) if self._limit_s else []
        return statistics.median(took_s) if took_s else None

    async def is_idle(self, engine: Engine, server: Server, name: str, *, idle_s: float) -> bool:
        """Send rounds until one is about as fast as on the idle engine; False if ``warm_up_s`` runs out first.

        Abandoned requests may still run on the engine, and would slow the next trial.

        Args:
            engine: speaks the server's API.
            server: to send to.
            name: of these rounds; seeds their words.
            idle_s: median seconds of a request before any load.
        """
        deadline_ns, rounds = self._deadline_ns(), 0
        while server.exit_status is None and self._now_ns() < deadline_ns:
            took_s = await self.round_s(engine, server, f"{name}/{rounds}")
            if took_s is not None and took_s <= BUSY * idle_s:
                return True
            rounds += 1
        return False

    def _deadline_ns(self) -> int:
        return self._now_ns() + round(self._limit_s * NS_PER_S)

    async def _round(self, engine: Engine, server: Server, name: str) -> Sequence[float]:
        """Seconds from send to end of each request of one round; empty if one failed."""
        sessions = self._planner.warm_up_sessions(name)
        share = Closed(1, self._timeout_s, 1)  # a server that hangs gets one request, not one after the other
        order = LoadOrder(
            (Target(server.base_url),), share, self._timeout_s, Phase.WARMUP, self._transport, server.access
        )  # fmt: skip
        with scratch_folder() as scratch:
            folder = TrialFolder(scratch)
            wire = wire_sessions(
                sessions, engine.dialect, engine.model_id, tokenizer=self._planner.tokenizer,
                classes=classes_of(self._planner.experiment, engine.dialect),
            )  # fmt: skip
            await self._fleet.load(order, wire, folder)
            took_s = [_took_s(stream) for stream in folder.read_streams()]
        return [seconds for seconds in took_s if seconds is not None] if None not in took_s else []


def _took_s(stream: StreamRecord) -> float | None:
    if stream.end is not StreamEnd.COMPLETE or not is_success(stream.status) or stream.sent_ns is None:
        return None
    return (stream.ended_ns - stream.sent_ns) / 1e9
