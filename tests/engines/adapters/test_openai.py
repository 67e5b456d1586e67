"""Adapter of running OpenAI-compatible servers: dialect, notes and secrecy of the key."""

import asyncio
import copy

import msgspec
import pytest

from bakeoff.engines import Deployment, Engine, Model, attached, engine
from bakeoff.engines.adapters.openai import OpenAiEngine
from bakeoff.engines.dialects import Dialect, OpenAiDialect, OpenAiServiceDialect, ResponsesDialect
from bakeoff.engines.errors import BadOption
from bakeoff.engines.request_shape import plain_dialect
from bakeoff.engines.secrets import masked_data
from bakeoff.workloads import Turn

SENTINEL = "sk-sentinel-0451"
WITH_KEY = Deployment(url="https://api.example.org/v1", api_key_env="BAKEOFF_TEST_KEY")


def made(**deployment: str) -> Engine:
    at_address = Deployment(**{"url": "http://127.0.0.1:8000/v1", **deployment})
    return engine("openai", Model("smol"), {}, deployment=at_address)


def test_it_runs_already_and_says_nothing_of_itself() -> None:
    attached_engine = made()
    assert attached_engine.url == "http://127.0.0.1:8000"
    assert attached_engine.launch(9000) is None
    assert asyncio.run(attached_engine.describe(attached(attached_engine.url))) == {}


def test_requests_use_the_experiments_model_name_unless_told_otherwise() -> None:
    assert made().model_id == "smol"
    assert made(served_model_name="gpt-x").model_id == "gpt-x"


def test_the_key_is_carried_by_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAKEOFF_TEST_KEY", SENTINEL)
    assert engine("openai", Model("smol"), {}, deployment=WITH_KEY).access.headers == {
        "authorization": f"Bearer {SENTINEL}"
    }
    assert made().access.headers == {}


def test_the_key_is_in_nothing_that_is_printed_or_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAKEOFF_TEST_KEY", SENTINEL)
    held = engine("openai", Model("smol"), {}, deployment=WITH_KEY)
    assert isinstance(held, OpenAiEngine)
    server = attached(held.url or "", held.access)
    texts = [
        repr(held.setup), repr(held), repr(held.dialect), str(vars(held)), repr(server), str(vars(server)),
        str(asyncio.run(held.describe(server))), repr(copy.copy(held.access)),
        msgspec.json.encode(held.setup.deployment).decode(), str(masked_data(msgspec.to_builtins(held.access))),
    ]  # fmt: skip
    assert [text for text in texts if SENTINEL in text] == []
    assert "BAKEOFF_TEST_KEY" in texts[0], "the name of the variable may be told"


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BAKEOFF_TEST_KEY", raising=False)
    with pytest.raises(BadOption) as caught:
        engine("openai", Model("smol"), {}, deployment=WITH_KEY)
    assert str(caught.value) == "the environment variable BAKEOFF_TEST_KEY is not set; export the key in it"


def test_without_an_address_there_is_nothing_to_speak_to() -> None:
    with pytest.raises(BadOption, match="engine 'openai' needs the url of a server that runs already"):
        engine("openai", Model("smol"), {})


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(BadOption, match="url must begin with http"):
        made(url="127.0.0.1:8000")


SERVICE = "https://api.openai.com/v1"
ELSEWHERE = "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("url", "options", "kind", "padded"),
    [
        (ELSEWHERE, {}, OpenAiDialect, True),
        (SERVICE, {}, OpenAiServiceDialect, False),
        (ELSEWHERE, {"official": True}, OpenAiServiceDialect, False),
        (SERVICE, {"official": False}, OpenAiDialect, True),
        ("http://api.openai.com.example.org", {}, OpenAiDialect, True),
        (ELSEWHERE, {"api": "responses"}, ResponsesDialect, True),
        (SERVICE, {"api": "responses"}, ResponsesDialect, False),
    ],
)
def test_the_options_name_the_routes_and_the_service_is_known_by_its_address(
    url: str, options: dict[str, object], kind: type[Dialect], padded: bool
) -> None:
    """Only the service is asked not to pad its events; other servers may refuse the field."""
    made = engine("openai", Model("m"), options, deployment=Deployment(url=url))
    assert type(plain_dialect(made.dialect)) is kind
    assert (b"include_obfuscation" not in made.dialect.request(Turn(1, 1, prompt="x"), "m").body) is padded


def test_routes_that_it_does_not_have_are_refused() -> None:
    with pytest.raises(BadOption, match="engine 'openai': Invalid enum value 'assistants'"):
        engine("openai", Model("m"), {"api": "assistants"}, deployment=Deployment(url=ELSEWHERE))


@pytest.mark.parametrize(
    ("url", "options", "excerpts"),
    [
        (ELSEWHERE, {}, ("compare figures per token",)),
        (SERVICE, {}, ("compare figures per token",)),
        (ELSEWHERE, {"api": "responses"}, ("figures per token", "template come on top")),
    ],
)
def test_notes_explain_its_metrics(url: str, options: dict[str, object], excerpts: tuple[str, ...]) -> None:
    notes = engine("openai", Model("m"), options, deployment=Deployment(url=url)).notes
    assert len(notes) == len(excerpts)
    assert all(part in note for part, note in zip(excerpts, notes, strict=True))
