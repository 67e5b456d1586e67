"""Addresses of servers, and what requests carry to them."""

import pytest

from bakeoff.engines import Deployment
from bakeoff.engines.endpoint import endpoint
from bakeoff.engines.errors import BadOption
from bakeoff.engines.secrets import conceal, masked


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1//", "http://127.0.0.1:8000"),
        ("https://api.example.org/openai/v1", "https://api.example.org/openai"),
        ("https://v1.example.org/v1beta", "https://v1.example.org/v1beta"),
        ("http://127.0.0.1:8000/v1/chat/completions", "http://127.0.0.1:8000"),
        ("https://api.example.org/api/paas/v4/chat/completions/", "https://api.example.org/api/paas/v4"),
        ("https://me:pass-sentinel@api.example.org:8443/v1?key=query-sentinel#part", "https://api.example.org:8443"),
    ],
)
def test_an_address_loses_its_secrets_and_the_version_that_every_path_begins_with(url: str, base: str) -> None:
    assert endpoint(url).base_url == base


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "localhost", "ftp://x", "", "file:///etc/passwd"])
def test_an_address_that_is_not_http_is_the_users_mistake(url: str) -> None:
    with pytest.raises(BadOption) as caught:
        endpoint(url)
    assert str(caught.value) == f"url must begin with http:// or https://, not '{url}'"


def test_an_address_without_a_host_is_one_too() -> None:
    with pytest.raises(BadOption, match="url has no host: 'http:///v1'"):
        endpoint("http:///v1")


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://h:x", "http://[::1", "https://u:pw@[::1/v1"])
def test_an_address_that_cannot_be_parsed_is_one_too(url: str) -> None:
    deployment = Deployment(url=url)
    conceal(*deployment.secrets())
    with pytest.raises(BadOption, match=r"^url '.*' is not an address: \w+") as caught:
        endpoint(url)
    assert "pw" not in masked(str(caught.value))


def test_its_parts_are_apart() -> None:
    parsed = endpoint("HTTPS://me:p%40ss@API.example.org/openai/v1?key=1")
    assert (parsed.scheme, parsed.authority, parsed.host, parsed.port) == (
        "https",
        "API.example.org",
        "api.example.org",
        443,
    )
    assert (parsed.path, parsed.place, parsed.query) == ("/openai/v1", "API.example.org/openai", "key=1")
    assert (parsed.user, parsed.password) == ("me", "p%40ss")
    assert (endpoint("http://[::1]:8080").host, endpoint("http://[::1]:8080").port) == ("::1", 8080)
