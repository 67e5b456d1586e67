"""Connections are open before a request needs one; in virtual time, to a server that is far away."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from bakeoff.harness.client.wire.pool import MAX_IDLE_S, Pool
from bakeoff.harness.host.clock import LoopClock, run_virtual

DISTANCE_S = 0.06
"""What opening a connection takes."""


class Wire:
    """A connection to nowhere."""

    def __init__(self, now_ns: int) -> None:
        self.reusable = True
        self.free_since_ns = now_ns
        self.is_closed = False

    def abandon(self) -> None:
        self.reusable = False
        self.is_closed = True


class Server:
    """Takes connections while it is up."""

    def __init__(self, distance_s: float = DISTANCE_S) -> None:
        self.distance_s = distance_s
        self.is_up = True
        self.attempts = 0
        self.wires: list[Wire] = []
        self.clock = LoopClock()
        self.pool: Pool[Wire] = Pool(self.connect, self.clock.now_ns)
        self.dials = 0
        """Requests that had to open a connection of their own."""

    async def connect(self) -> Wire:
        self.attempts += 1
        await asyncio.sleep(self.distance_s)
        if not self.is_up:
            raise ConnectionRefusedError
        self.wires.append(Wire(self.clock.now_ns()))
        return self.wires[-1]

    @property
    def open_wires(self) -> int:
        return sum(not wire.is_closed for wire in self.wires)

    async def exchange(self, answer_s: float, *, closes: bool = False) -> None:
        wire = self.pool.take()
        if wire is None:
            self.dials += 1
            wire = await self.pool.opened()
        await asyncio.sleep(answer_s)
        wire.free_since_ns = self.clock.now_ns()
        wire.reusable = not closes
        self.pool.give_back(wire)


def story(scene: Callable[[Server], Coroutine[Any, Any, None]], server: Server | None = None) -> Server:
    server = server or Server()

    async def run() -> None:
        await scene(server)
        server.pool.close()

    run_virtual(run())
    return server


async def arrivals(server: Server, rate_per_s: float, duration_s: float, answer_s: float) -> None:
    """Poisson arrivals; returns when all have been answered."""
    gaps = random.Random(7)
    async with asyncio.TaskGroup() as exchanges:
        for _ in range(round(rate_per_s * duration_s)):
            exchanges.create_task(server.exchange(answer_s))
            await asyncio.sleep(gaps.expovariate(rate_per_s))


def test_an_open_loop_to_a_far_server_does_not_wait_for_connections():
    """500 requests/s, answers of 1 s, 60 ms to open a connection: but for the first 60 ms, one is always ready."""

    async def scene(server: Server) -> None:
        await server.pool.fill(16, growing=True)
        await arrivals(server, 500, 1.0, 1.0)
        before = server.dials
        await arrivals(server, 500, 4.0, 1.0)
        assert server.dials == before, "the load did not grow any more"

    assert story(scene).dials < 45


def test_without_spares_they_would_wait():
    async def scene(server: Server) -> None:
        await arrivals(server, 500, 1.0, 1.0)

    assert story(scene).dials > 400


def test_a_slow_open_loop_keeps_no_crowd_of_idle_connections():
    async def scene(server: Server) -> None:
        await server.pool.fill(16, growing=True)
        await arrivals(server, 2, 20, 1.0)
        assert server.open_wires < 12

    assert story(scene).dials == 0


def test_a_closed_loop_opens_no_more_than_it_has_slots():
    async def slot(server: Server) -> None:
        for _ in range(50):
            await server.exchange(0.5)

    async def scene(server: Server) -> None:
        await server.pool.fill(8, growing=False)
        await asyncio.gather(*(slot(server) for _ in range(8)))

    server = story(scene)
    assert (server.dials, server.attempts) == (0, 8)


def test_a_connection_that_has_been_idle_for_long_is_replaced_before_it_is_needed():
    async def scene(server: Server) -> None:
        await server.pool.fill(4, growing=False)
        await asyncio.gather(*(server.exchange(0.1) for _ in range(4)))
        await asyncio.sleep(MAX_IDLE_S + 1)  # the users think
        await asyncio.gather(*(server.exchange(0.1) for _ in range(4)))

    server = story(scene)
    assert server.dials == 0
    assert server.attempts > 4
    assert server.open_wires == 0, "closing leaves none"


def test_a_connection_that_the_server_closed_is_replaced():
    async def scene(server: Server) -> None:
        await server.pool.fill(2, growing=False)
        await asyncio.gather(server.exchange(0.1), server.exchange(0.1))
        server.wires[0].reusable = False
        await asyncio.sleep(1)
        assert server.attempts == 3
        await asyncio.gather(server.exchange(0.1), server.exchange(0.1))

    assert story(scene).dials == 0


def test_a_server_that_closes_after_each_answer_has_no_idle_connections():
    async def scene(server: Server) -> None:
        await server.pool.fill(4, growing=True)
        for _ in range(40):
            await server.exchange(0.1, closes=True)
        assert server.open_wires == 0

    assert story(scene).attempts < 40 + 8


def test_many_connections_are_opened_at_the_same_time():
    async def scene(server: Server) -> None:
        await server.pool.fill(512, growing=False)
        assert server.clock.now_ns() / 1e9 < 512 * DISTANCE_S / 50

    assert story(scene).attempts == 512


def test_a_server_that_is_down_is_not_hammered():
    async def scene(server: Server) -> None:
        server.is_up = False
        await server.pool.fill(512, growing=True)
        await asyncio.sleep(10)

    assert story(scene).attempts < 64 + 12


def test_a_request_meets_the_refusal():
    async def scene(server: Server) -> None:
        server.is_up = False
        try:
            await server.exchange(0.1)
        except ConnectionRefusedError:
            server.is_up = True
        await server.exchange(0.1)

    server = story(scene)
    assert (server.dials, server.open_wires) == (2, 0)
