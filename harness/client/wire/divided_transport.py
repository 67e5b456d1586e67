"""A transport that divides requests among several addresses, each with a transport of its own."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from bakeoff.engines.dialects import HttpRequest
from bakeoff.harness.client.wire.balancing import ABSENT, Balancer, Call
from bakeoff.harness.client.wire.orders import Target
from bakeoff.harness.client.wire.transport import Ended, StreamLog, Transport


class _Prepared(NamedTuple):
    """A request whose address is chosen when it is sent."""

    request: HttpRequest
    call: Call


class DividedTransport:
    """A :class:`~bakeoff.harness.client.wire.transport.Transport` over those of several addresses.

    The bytes of a request depend on its address, so they are put together when it is sent. With the choice this delays
    a send by 3 to 12 µs for prompts of 4 KB (one core of an AMD EPYC), and by a copy of the body for long ones.

    Args:
        targets: the addresses; the label of each is recorded with its requests.
        transports: one to each address.
        balancer: chooses among them.
    """

    def __init__(self, targets: Sequence[Target], transports: Sequence[Transport], balancer: Balancer) -> None:
        self._labels = [target.label for target in targets]
        self._transports = transports
        self._balancer = balancer
        self._in_flight = [ABSENT if target.is_late else 0 for target in targets]
        self._part = 0
        self._carrying: dict[StreamLog, tuple[int, Ended]] = {}

    async def open(self, connections: int, *, growing: bool = False) -> None:  # noqa: ARG002
        """Open an equal part at each address; any of them may need more."""
        self._part = -(-connections // len(self._transports))
        present = zip(self._transports, self._in_flight, strict=True)
        await asyncio.gather(*(each.open(self._part, growing=True) for each, count in present if count != ABSENT))

    async def join(self, label: str) -> None:
        """Send requests to a late target, too, from now on."""
        number = self._labels.index(label)
        if self._in_flight[number] == ABSENT:
            await self._transports[number].open(self._part, growing=True)
            self._in_flight[number] = 0

    def prepare(self, request: HttpRequest, conversation: str = "") -> _Prepared:
        """Do what does not depend on the address."""
        return _Prepared(request, self._balancer.call(conversation, request.body))

    def start(self, prepared: _Prepared, log: StreamLog, ended: Ended) -> None:
        """Choose an address and send to it."""
        number = self._balancer.choose(prepared.call, self._in_flight)
        transport = self._transports[number]
        log.address = self._labels[number]
        self._in_flight[number] += 1
        self._carrying[log] = number, ended
        transport.start(transport.prepare(prepared.request), log, self._ended)

    def drop(self, log: StreamLog) -> None:
        if log in self._carrying:
            number, _ = self._carrying.pop(log)
            self._in_flight[number] -= 1
            self._transports[number].drop(log)

    async def close(self) -> None:
        """Close the transports."""
        await asyncio.gather(*(transport.close() for transport in self._transports))

    def _ended(self, log: Any) -> None:  # noqa: ANN401  (as Ended has it)
        number, ended = self._carrying.pop(log)
        self._in_flight[number] -= 1
        ended(log)
