"""Adapter of Anthropic's Messages API: key, options and notes."""

import asyncio
from typing import Any

import msgspec
import pytest

from bakeoff.engines import Deployment, EngineSpec, Model, Setup, attached, dialect, engine
from bakeoff.engines.adapters.anthropic import AnthropicEngine, AnthropicOptions
from bakeoff.engines.dialects import AnthropicDialect
from bakeoff.engines.errors import BadOption
from bakeoff.workloads import Turn

SERVICE = Deployment(url="https://api.anthropic.com", served_model_name="claude-x")
SENTINEL = "sk-ant-sentinel-0451"


def made(deployment: Deployment = SERVICE, **options: Any) -> AnthropicEngine:
    return AnthropicEngine(
        Setup(Model("smol"), options=msgspec.convert(options, AnthropicOptions), deployment=deployment)
    )


def test_it_runs_already_and_says_nothing_of_itself() -> None:
    service = made()
    assert (service.url, service.model_id, service.metrics) == ("https://api.anthropic.com", "claude-x", None)
    assert service.launch(9000) is None
    assert asyncio.run(service.describe(attached(service.url or ""))) == {}
    assert asyncio.run(service.reset_cache(attached(service.url or ""))) is False


def test_without_an_address_there_is_nothing_to_speak_to() -> None:
    with pytest.raises(BadOption, match="engine 'anthropic' needs the url of a server that runs already"):
        engine("anthropic", Model("m"), {})


def test_the_key_goes_by_its_own_header_and_without_a_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAKEOFF_TEST_KEY", SENTINEL)
    service = made(msgspec.structs.replace(SERVICE, api_key_env="BAKEOFF_TEST_KEY"))
    assert service.access.headers == {"x-api-key": SENTINEL}
    assert SENTINEL not in f"{service.access!r} {service.setup!r} {service.dialect!r}"


def test_another_header_can_be_given_beside_it() -> None:
    service = made(msgspec.structs.replace(SERVICE, headers={"Anthropic-Beta": "context-1m"}))
    assert service.access.headers == {"anthropic-beta": "context-1m"}


@pytest.mark.parametrize("cache", ["5m", "1h"])
def test_the_option_asks_for_a_cache(cache: str) -> None:
    body = made(cache=cache).dialect.request(Turn(1, 1, prompt="x"), "m").body
    assert f'"ttl":"{cache}"'.encode() in body
    assert b"cache_control" not in made().dialect.request(Turn(1, 1, prompt="x"), "m").body


def test_a_time_that_the_service_does_not_have_is_refused() -> None:
    with pytest.raises(BadOption, match="engine 'anthropic': Invalid enum value '2h'"):
        engine("anthropic", Model("m"), {"cache": "2h"}, deployment=SERVICE)


def test_shared_settings_are_not_told_to_it() -> None:
    engine("anthropic", Model("m"), {}, EngineSpec(seed=1, dtype="float16"), SERVICE)


def test_notes_explain_its_metrics() -> None:
    """Chunk gaps are not token gaps, and there is neither a forced length nor a seed."""
    notes = " ".join(made().notes)
    assert "compare figures per token" in notes
    assert "apportioned" in notes
    assert "no seed" in notes


def test_its_log_can_be_read_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BAKEOFF_TEST_KEY", raising=False)
    deployment = msgspec.structs.replace(SERVICE, api_key_env="BAKEOFF_TEST_KEY")
    assert type(dialect("anthropic", {"cache": "5m"}, deployment)) is AnthropicDialect
