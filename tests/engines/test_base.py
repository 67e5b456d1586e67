"""Value types of the engine interface, and credentials of requests."""

import base64
from typing import Any

import msgspec
import pytest

from bakeoff.engines import Deployment, Engine, EngineError, Model, engine
from bakeoff.engines.base import access_to
from bakeoff.engines.errors import BadOption
from bakeoff.engines.secrets import masked

SENTINEL = "sk-sentinel-0451"


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
