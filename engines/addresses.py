"""Addresses of one running engine: which of them get requests, and how the client divides its requests among them."""

import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from bakeoff.engines.endpoint import endpoint
from bakeoff.engines.errors import BadOption

_HEADER = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
"""A field name (RFC 9110, 5.1)."""


class Role(StrEnum):
    """What the server at an address does for the engine."""

    ROUTER = "router"
    """Gets every request and passes it on."""
    REPLICA = "replica"
    """Answers requests whole: those of the client, or those that a router passes on."""
    PREFILL = "prefill"
    """Computes prompts for a router; gets no request of the client."""
    DECODE = "decode"
    """Computes answers for a router; gets no request of the client."""


class Balance(StrEnum):
    """How the client divides requests among addresses; :mod:`bakeoff.harness.client.wire.balancing` has the rules."""

    ROUND_ROBIN = "round-robin"
    """In turn."""
    LEAST_IN_FLIGHT = "least-in-flight"
    """To the address with the fewest requests in flight."""
    BY_SESSION = "by-session"
    """All calls of a conversation to one address."""
    PREFIX_AWARE = "prefix-aware"
    """To the address that was sent the longest prefix of the prompt, unless it has many more requests in flight."""


class Address(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One address of an engine that runs at several."""

    url: str
    """Address of the server, with or without the final ``/v1``."""
    role: Role = Role.REPLICA
    """``router``, ``replica``, ``prefill`` or ``decode``."""
    metrics: str | None = None
    """Address of its metrics page. Default: the adapter's usual path at ``url``."""


class GpuExporter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A page that shows GPUs: of DCGM's exporter, of AMD's, or by the names of ``docs/experiment.md``."""

    url: str
    """Of the page, such as ``http://node:9400/metrics``; ``/metrics`` if it has no path."""
    gpus: list[str] = []
    """Indices or UUIDs of the engine's GPUs. Default: all of the page."""


class ReplicaHeader(msgspec.Struct, frozen=True):
    """The header of a router's answers that names the replica that answered."""

    name: str
    """In lower case."""
    labels: dict[str, str] = {}
    """Label of each replica, by its address without scheme and by its label."""

    def replica(self, value: str) -> str:
        """Label of the replica that a value names.

        That is the last one of several, as after a router's second attempt. A name that is no address is a label.
        """
        name = value.rpartition(",")[2].strip()
        if name in self.labels:  # at once, because this is read while answers arrive
            return self.labels[name]
        try:
            address = endpoint(f"http://{name.rpartition('://')[2]}")
        except BadOption:
            return name
        return self.labels.get(address.place) or self.labels.get(address.authority, name)


def replica_header_of(name: str, addresses: Sequence[Address]) -> ReplicaHeader:
    """The header of this name for the replicas behind a router."""
    labels = labels_of(addresses)
    places = [endpoint(address.url).place for address in addresses]
    return ReplicaHeader(name.lower(), dict(zip(labels, labels, strict=True)) | dict(zip(places, labels, strict=True)))


def targets_of(addresses: Sequence[Address]) -> list[Address]:
    """The addresses that get the client's requests: the router if there is one, else the replicas."""
    routers = [address for address in addresses if address.role is Role.ROUTER]
    return routers or [address for address in addresses if address.role is Role.REPLICA]


def labels_of(addresses: Sequence[Address]) -> list[str]:
    """A label of each address, without credentials: ``host:port``, or all of it where another has the same."""
    parsed = [endpoint(address.url) for address in addresses]
    hosts = [each.authority for each in parsed]
    return [host if hosts.count(host) == 1 else each.base_url for host, each in zip(hosts, parsed, strict=True)]


def problem_of(addresses: Sequence[Address], balance: Balance | None, replica_header: str | None) -> str | None:
    """The first contradiction between the addresses of one engine, or None; it quotes no address.

    Raises:
        BadOption: one of them is not an address.
    """
    routers = sum(address.role is Role.ROUTER for address in addresses)
    targets = targets_of(addresses)
    parsed = [endpoint(address.url) for address in addresses]
    checks = (
        (routers < 2, f"urls has {routers} routers; give the one that gets the requests"),
        (
            bool(targets) or not addresses,
            "urls has no address that gets requests; give the router of its prefill and decode servers, or a replica",
        ),
        (
            len({each.base_url for each in parsed}) == len(addresses),
            "urls (--url of bench) has an address twice; remove one",
        ),
        (
            len({(each.user, each.password, each.query) for each in parsed}) < 2,
            "urls (--url of bench) differ in user, password or query, and requests carry the same; make them equal",
        ),
        (
            all(is_plain(address.metrics) for address in addresses if address.metrics is not None),
            "metrics must be an http or https address without a user; the credentials of url are used",
        ),
        (
            balance is None or len(targets) > 1,
            "balance divides requests among several replicas; give urls without a router, or replicas",
        ),
        (
            replica_header is None or len(targets) == 1,
            "replica_header (--replica-header of bench) names the replica behind a router; give the router's address",
        ),
        (
            replica_header is None or re.fullmatch(_HEADER, replica_header) is not None,
            "replica_header (--replica-header of bench) must be the name of a header, without spaces and colon",
        ),
    )
    return next((message for is_valid, message in checks if not is_valid), None)


def is_plain(url: str) -> bool:
    """Whether an address is a web page's, without a user."""
    try:
        return endpoint(url).user is None
    except BadOption:
        return False
