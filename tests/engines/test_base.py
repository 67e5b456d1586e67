"""Value types of the engine interface, and credentials of requests."""

import base64
from typing import Any

import msgspec
import pytest

from bakeoff.engines import Deployment, Engine, EngineError, Model, engine
from bakeoff.engines.base import access_to, base_url
from bakeoff.engines.errors import BadOption
from bakeoff.engines.secrets import conceal, masked

SENTINEL = "sk-sentinel-0451"


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
    assert base_url(url) == base


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://h", "/v1/chat/completions"),
        ("http://h/openai/v1", "/v1/chat/completions"),
        ("http://v2.example.org", "/v1/chat/completions"),
        ("http://h/v1beta/openai", "/chat/completions"),
        ("http://h/api/paas/v4", "/chat/completions"),
        ("http://h/api/paas/v4/chat/completions", "/chat/completions"),
        ("http://h/v1/tenant/openai", "/chat/completions"),
    ],
)
def test_a_version_in_the_address_replaces_that_of_the_paths(url: str, path: str) -> None:
    access = access_to(Deployment(url=url))
    assert access.path("/v1/chat/completions") == path
    assert access.path("/metrics") == "/metrics"


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "localhost", "ftp://x", "", "file:///etc/passwd"])
def test_an_address_that_is_not_http_is_the_users_mistake(url: str) -> None:
    with pytest.raises(BadOption) as caught:
        base_url(url)
    assert str(caught.value) == f"url must begin with http:// or https://, not '{url}'"


def test_an_address_without_a_host_is_one_too() -> None:
    with pytest.raises(BadOption, match="url has no host: 'http:///v1'"):
        base_url("http:///v1")


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://h:x", "http://[::1", "https://u:pw@[::1/v1"])
def test_an_address_that_cannot_be_parsed_is_one_too(url: str) -> None:
    deployment = Deployment(url=url)
    conceal(*deployment.secrets())
    with pytest.raises(BadOption, match=r"^url '.*' is not an address: \w+") as caught:
        base_url(url)
    assert "pw" not in masked(str(caught.value))
    assert deployment.gpus({"CUDA_VISIBLE_DEVICES": "1"}) in {"1", ""}


def test_a_model_is_stored_with_what_is_known_of_it() -> None:
    assert msgspec.json.encode(Model("smol")) == b'{"name":"smol","path":null,"sha256":null}'


def test_an_error_carries_the_last_lines_of_the_log_where_there_are_any() -> None:
    assert EngineError("x").log_tail == ()
    assert EngineError("x", ["a", "b"]).log_tail == ("a", "b")


def made(**deployment: Any) -> Engine:
    return engine("reference", Model("smol"), {}, deployment=Deployment(**deployment))


class TestAccess:
    def test_without_anything_secret_nothing_is_carried(self) -> None:
        access = access_to(Deployment(url="http://127.0.0.1:8000/v1"))
        assert (access.headers, access.query, access.path("/v1/models")) == ({}, "", "/v1/models")

    def test_a_key_of_the_environment_is_a_bearer_token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BAKEOFF_TEST_KEY", SENTINEL)
        deployment = Deployment(url="http://x", api_key_env="BAKEOFF_TEST_KEY")
        assert access_to(deployment).headers == {"authorization": f"Bearer {SENTINEL}"}
        assert access_to(deployment, "x-api-key").headers == {"x-api-key": SENTINEL}

    def test_a_key_with_a_line_end_is_refused_without_showing_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BAKEOFF_TEST_KEY", "key-sentinel\n")
        assert access_to(Deployment(api_key_env="BAKEOFF_TEST_KEY")).headers["authorization"] == "Bearer key-sentinel"
        monkeypatch.setenv("BAKEOFF_TEST_KEY", "key\nsentinel")
        with pytest.raises(BadOption, match="BAKEOFF_TEST_KEY holds a line end") as raised:
            access_to(Deployment(api_key_env="BAKEOFF_TEST_KEY"))
        assert "sentinel" not in str(raised.value)

    def test_a_key_that_is_not_set_is_the_users_mistake(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("BAKEOFF_TEST_KEY", raising=False)
        with pytest.raises(BadOption) as caught:
            access_to(Deployment(api_key_env="BAKEOFF_TEST_KEY"))
        assert str(caught.value) == "the environment variable BAKEOFF_TEST_KEY is not set; export the key in it"

    def test_user_and_query_of_an_address_are_carried_and_known_as_secrets(self) -> None:
        access = made(url="https://me:pass%2Fsentinel@x.org/v1?key=query-sentinel").access
        token = base64.b64encode(b"me:pass/sentinel").decode()
        assert access.headers == {"authorization": f"Basic {token}"}
        assert access.path("/v1/completions") == "/v1/completions?key=query-sentinel"
        assert access.path("/metrics?all=1") == "/metrics?all=1&key=query-sentinel"
        for secret in ("pass/sentinel", "pass%2Fsentinel", token, "query-sentinel"):
            assert secret not in masked(f"<{secret}>")

    def test_given_headers_stand_above_the_addresss_user_and_their_names_are_lower_case(self) -> None:
        access = made(url="http://me:pass-sentinel@x", headers={"Authorization": "Bearer own-sentinel"}).access
        assert access.headers == {"authorization": "Bearer own-sentinel"}
        assert masked("own-sentinel") == "•••", "without its first word too"

    def test_what_is_printed_of_it_has_names_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BAKEOFF_TEST_KEY", SENTINEL)
        access = access_to(Deployment(url="http://x?sig=query-sentinel", api_key_env="BAKEOFF_TEST_KEY"))
        assert repr(access) == "Access(headers=['authorization'])"
