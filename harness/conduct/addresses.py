"""The addresses of a running engine, as trials see them: one or several."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from bakeoff.engines import Engine, Launch, Server, attached
from bakeoff.engines.addresses import Address, Role, labels_of, targets_of
from bakeoff.engines.base import PrefixCacheFacts, ReportsPrefixCache, addresses_of
from bakeoff.harness.client.wire.orders import Target
from bakeoff.harness.telemetry import OwnProcesses, ServerPage, page_of
from bakeoff.harness.telemetry.own_processes import own_processes
from bakeoff.results.records import AddressDescription, EngineDescription
from bakeoff.results.server_view import SOURCE


class RunningAddress(msgspec.Struct, frozen=True):
    """One address of an engine.

    Attributes:
        label: of its requests and its telemetry; None for the only one.
        address: its role, and where its metrics page is.
        server: at the address.
        is_target: whether it gets the client's requests.
        launch: how the harness starts it; None if it ran already.
        is_late: whether nothing listens there before a fault starts it under load.
    """

    label: str | None
    address: Address
    server: Server
    is_target: bool
    launch: Launch | None = None
    is_late: bool = False

    @property
    def gets_requests(self) -> bool:
        """Whether it gets the client's requests from the start."""
        return self.is_target and not self.is_late

    @property
    def source(self) -> str:
        """Telemetry source of its metrics page."""
        role = self.address.role
        return SOURCE if self.label is None else f"{SOURCE if role is Role.REPLICA else role.value} {self.label}"

    def described(self) -> AddressDescription:
        """What is known of one of several addresses without asking it."""
        return AddressDescription(label=self.label or "", role=self.address.role.value, url=self.server.base_url)


def running_addresses(engine: Engine) -> tuple[RunningAddress, ...]:
    """The addresses of an engine that runs; empty for one to launch."""
    addresses = addresses_of(engine)
    labels = labels_of(addresses) if len(addresses) > 1 else [None] * len(addresses)
    targets = targets_of(addresses)
    return tuple(
        RunningAddress(label, address, attached(address.url, engine.access), address in targets)
        for label, address in zip(labels, addresses, strict=True)
    )


def targets_at(addresses: Sequence[RunningAddress]) -> tuple[Target, ...]:
    """Where the client's requests go."""
    return tuple(
        Target(address.server.base_url, address.label, address.is_late) for address in addresses if address.is_target
    )


def replicas_of(addresses: Sequence[RunningAddress]) -> list[str]:
    """Labels of several replicas that answer requests whole."""
    return [address.label for address in addresses if address.label and address.address.role is Role.REPLICA]


def pages_of(engine: Engine, addresses: Sequence[RunningAddress]) -> list[ServerPage]:
    """The metrics page of every address, each with a telemetry source of its own; none if the engine has none."""
    source = engine.metrics
    if source is None:
        return []
    return [page_of(address.address, source, engine.access, address.source) for address in addresses]


async def reset_caches(engine: Engine, addresses: Sequence[RunningAddress]) -> bool:
    """Empty the prefix caches of all servers at the addresses; whether every one has done so.

    A router is only asked if nothing else is known of the engine.
    """
    present = [address for address in addresses if not address.is_late]
    servers = [address.server for address in present if address.address.role is not Role.ROUTER]
    servers = servers or [address.server for address in present]
    return all(await asyncio.gather(*(engine.reset_cache(each) for each in servers)))


def prefix_caches_of(engine: Engine, description: EngineDescription) -> dict[str | None, PrefixCacheFacts]:
    """What is known of the prefix cache at each address that was asked, by its label; None for all others."""
    details: dict[str | None, dict[str, Any]] = {None: description.details}
    details |= {address.label: address.details for address in description.addresses if address.details}
    if not isinstance(engine, ReportsPrefixCache):
        return {None: PrefixCacheFacts()}
    caches = {label: engine.prefix_cache_in(known) for label, known in details.items()}
    if caches[None] == PrefixCacheFacts():  # a router tells nothing
        caches[None] = next((facts for facts in caches.values() if facts != PrefixCacheFacts()), caches[None])
    return caches


async def processes_of(addresses: Sequence[RunningAddress]) -> OwnProcesses:
    """The processes of a running engine that the harness did not start, at any of its addresses."""
    found = [await own_processes(address.launch, address.server.base_url) for address in addresses]
    pids = tuple(dict.fromkeys(pid for own in found for pid in own.pids))
    return OwnProcesses(pids, next((own.unknown for own in found if own.unknown), None))
