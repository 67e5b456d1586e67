"""The addresses of a running engine, as trials see them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from bakeoff.engines import Engine, Launch, Server, attached
from bakeoff.engines.addresses import Address, Balance, Role, labels_of, targets_of
from bakeoff.engines.base import PrefixCacheFacts, ReportsPrefixCache, addresses_of
from bakeoff.harness.client.wire.orders import Division, Target
from bakeoff.harness.telemetry import OwnProcesses, ServerPage, page_of
from bakeoff.harness.telemetry.own_processes import own_processes
from bakeoff.results.records import AddressDescription, EngineDescription
from bakeoff.results.server_view import SOURCE


class RunningAddress(msgspec.Struct, frozen=True):
    """One of several addresses.

    Attributes:
        label: of its requests and its telemetry.
        address: its role, and where its metrics page is.
        server: at the address.
        is_target: whether it gets the client's requests.
        launch: how the harness starts it; None if it ran already.
        is_late: whether nothing listens there before a fault starts it under load.
    """

    label: str
    address: Address
    server: Server
    is_target: bool
    launch: Launch | None = None
    is_late: bool = False


def running_addresses(engine: Engine) -> tuple[RunningAddress, ...]:
    """The addresses of an engine that runs at several; empty for any other."""
    addresses = addresses_of(engine)
    if len(addresses) < 2:
        return ()
    targets = targets_of(addresses)
    return tuple(
        RunningAddress(label, address, attached(address.url, engine.access), address in targets)
        for label, address in zip(labels_of(addresses), addresses, strict=True)
    )


def description_of(address: RunningAddress) -> AddressDescription:
    """What is known of an address without asking it."""
    return AddressDescription(label=address.label, role=address.address.role.value, url=address.server.base_url)


def urls_of(engine: Engine) -> list[str]:
    """Every address at which a server of an engine must listen; none if it is launched."""
    return [address.url for address in addresses_of(engine)]


def target_servers(server: Server, addresses: Sequence[RunningAddress]) -> list[Server]:
    """The servers that get the client's requests from the start: ``server`` if there is one address."""
    return [address.server for address in addresses if address.is_target and not address.is_late] or [server]


def division_of(addresses: Sequence[RunningAddress], balance: Balance | None) -> Division | None:
    """How the client divides requests; None if one address gets all of them."""
    targets = tuple(
        Target(address.label, address.server.base_url, address.is_late) for address in addresses if address.is_target
    )
    return Division(targets, balance or Balance.ROUND_ROBIN) if len(targets) > 1 else None


def replicas_of(addresses: Sequence[RunningAddress]) -> list[str]:
    """Labels of the replicas that answer requests whole."""
    return [address.label for address in addresses if address.address.role is Role.REPLICA]


def pages_of(engine: Engine, server: Server, addresses: Sequence[RunningAddress]) -> list[ServerPage]:
    """The metrics page of every address, each with a telemetry source of its own; none if the engine has none."""
    source = engine.metrics
    if source is None:
        return []
    if addresses:
        return [
            page_of(address.address, source, engine.access, f"{_kind(address.address.role)} {address.label}")
            for address in addresses
        ]
    metrics = next((address.metrics for address in addresses_of(engine)), None)
    return [page_of(Address(server.base_url, metrics=metrics), source, server.access, SOURCE)]


async def reset_caches(engine: Engine, server: Server, addresses: Sequence[RunningAddress]) -> bool:
    """Empty the prefix caches of all servers behind the addresses; whether every one has done so.

    A router is only asked if nothing else is known of the engine.
    """
    behind = (address for address in addresses if address.address.role is not Role.ROUTER)
    servers = [address.server for address in behind if not address.is_late] or [server]
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


async def processes_at(engine: Engine) -> OwnProcesses:
    """The processes of a running engine at any of its addresses."""
    found = [await own_processes(None, url) for url in urls_of(engine)]
    pids = tuple(dict.fromkeys(pid for own in found for pid in own.pids))
    return OwnProcesses(pids, next((own.unknown for own in found if own.unknown), None))


def _kind(role: Role) -> str:
    return SOURCE if role is Role.REPLICA else role.value
