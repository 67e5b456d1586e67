"""Several addresses of one engine: which get requests, their labels, and combinations that make no sense."""

from typing import Any

import msgspec
import pytest

from bakeoff.engines.addresses import Address, Balance, Role, labels_of, replica_header_of, targets_of
from bakeoff.engines.base import Model, access_to, addresses_of
from bakeoff.engines.deployment import Container, Deployment
from bakeoff.engines.errors import BadOption
from bakeoff.engines.registry import check, engine
from bakeoff.engines.spec import EngineSpec

A, B = Address("http://a:1"), Address("http://b:2")
ROUTER, PREFILL, DECODE = (Address(f"http://{role}:9", role) for role in (Role.ROUTER, Role.PREFILL, Role.DECODE))


@pytest.mark.parametrize(
    ("addresses", "targets"),
    [
        ([A], [A]),
        ([A, B], [A, B]),
        ([A, ROUTER, B], [ROUTER]),
        ([PREFILL, DECODE, ROUTER], [ROUTER]),
        ([A, PREFILL], [A]),
    ],
)
def test_the_router_gets_requests_or_else_the_replicas(addresses: list[Address], targets: list[Address]) -> None:
    assert targets_of(addresses) == targets
    assert Deployment(urls=addresses).address == targets[0].url
    assert Deployment(urls=addresses).problem() is None


def test_labels_are_host_and_port_and_the_rest_only_where_it_tells_two_apart() -> None:
    urls = ["http://me:secret@a:1/v1?key=k", "https://b", "http://c:3/x", "https://c:3/x/", "http://[::1]:4"]
    assert labels_of([Address(url) for url in urls]) == ["a:1", "b", "http://c:3/x", "https://c:3/x", "[::1]:4"]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"url": "http://x", "urls": [A]}, "an engine has only one of url and urls"),
        ({"urls": [A], "container": Container("i")}, "an engine has only one of urls and container"),
        ({"urls": [A, B], "port": 1}, "port cannot be set of an engine that runs already"),
        ({"urls": [ROUTER, Address("http://r:2", Role.ROUTER)]}, "urls has 2 routers"),
        ({"urls": [PREFILL, DECODE]}, "urls has no address that gets requests; give the router"),
        ({"urls": [A, Address("http://a:1/v1")]}, "urls (--url of bench) has an address twice"),
        ({"urls": [A, Address("http://me:pw@b:2")]}, "urls (--url of bench) differ in user, password or query"),
        ({"urls": [A, Address("http://b:2?key=k")]}, "urls (--url of bench) differ in user, password or query"),
        ({"urls": [Address("http://a", metrics="a:9/metrics")]}, "metrics must be an http or https address"),
        ({"urls": [Address("http://a", metrics="http://me:pw@a")]}, "metrics must be an http or https address"),
        ({"url": "http://x", "balance": Balance.BY_SESSION}, "balance divides requests among several replicas"),
        ({"urls": [A, ROUTER], "balance": Balance.BY_SESSION}, "balance divides requests among several replicas"),
        ({"balance": Balance.BY_SESSION}, "balance divides requests among several replicas"),
        ({"urls": [A, B], "replica_header": "x"}, "replica_header (--replica-header of bench) names the replica"),
        ({"replica_header": "x"}, "replica_header (--replica-header of bench) names the replica"),
        ({"url": "http://x", "replica_header": "x replica:"}, "replica_header (--replica-header of bench) must be"),
        ({"url": "http://x", "replica_header": ""}, "replica_header (--replica-header of bench) must be"),
    ],
)  # fmt: skip
def test_combinations_that_make_no_sense_are_told_in_one_line(given: dict[str, Any], complaint: str) -> None:
    problem = Deployment(**given).problem()
    assert problem is not None
    assert problem.startswith(complaint)
    assert "pw" not in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("a:1", "a:1"),
        ("http://a:1/v1", "a:1"),
        ("grpc://a:1", "a:1"),
        ("[::1", "[::1"),
        ("c:3, a:1", "a:1"),
        ("a:7/one/", "http://a:7/one"),
        ("worker-7", "worker-7"),
        ("", ""),
    ],
)
def test_a_header_names_a_replica_by_its_address_or_a_name(value: str, label: str) -> None:
    header = replica_header_of("X-Replica", [ROUTER, A, Address("http://a:7/one"), Address("http://a:7/two")])
    assert header.name == "x-replica"
    assert header.replica(value) == label


def test_they_are_read_from_plain_data() -> None:
    data = {"urls": [{"url": "http://a:1"}, {"url": "http://b:2", "role": "decode", "metrics": "http://b:3/m"}]}
    read = msgspec.convert(data | {"balance": "prefix-aware"}, Deployment)
    assert read.urls == [A, Address("http://b:2", Role.DECODE, "http://b:3/m")]
    assert read.balance is Balance.PREFIX_AWARE
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value 'worker'"):
        msgspec.convert({"urls": [{"url": "http://a:1", "role": "worker"}]}, Deployment)


def test_what_is_secret_in_any_of_them_is_known() -> None:
    deployment = Deployment(
        urls=[Address("https://me:first@a/v1?sig=second"), Address("https://b", metrics="http://b:9/m?token=third")]
    )
    assert {"first", "second", "third"} <= set(deployment.secrets())


def test_requests_carry_the_same_to_each_and_adapters_see_bare_addresses() -> None:
    urls = [Address("http://me:pw@a:1/v1?q=s"), Address("http://me:pw@b:2/v1?q=s", metrics="http://b:3/m")]
    deployment = Deployment(urls=urls)
    made = engine("openai", Model("m"), {}, EngineSpec(), deployment)
    assert list(addresses_of(made)) == [A, Address("http://b:2", metrics="http://b:3/m")]
    assert made.url == "http://a:1"
    assert made.launch(1) is None
    assert made.access == access_to(deployment)
    assert made.access.query == "q=s"


def test_paths_with_a_version_of_their_own_and_others_do_not_mix() -> None:
    deployment = Deployment(urls=[Address("http://a/api/v4"), B])
    with pytest.raises(BadOption, match="some of urls end in a version of their own"):
        check("openai", {}, EngineSpec(), deployment)
