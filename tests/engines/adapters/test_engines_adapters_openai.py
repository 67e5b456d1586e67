"""An address: nothing is launched, and the key is held but never told."""

import asyncio
import copy
import pickle

import msgspec
import pytest

from engines import Model, attached, engine
from engines.adapters.openai import OpenAiEngine, OpenAiOptions
from engines.errors import BadOption
from workloads import Turn

SENTINEL = "sk-sentinel-0451"
OPTIONS = {"url": "https://api.example.org/v1", "api_key_env": "BAKEOFF_TEST_KEY"}


def made(**options: str) -> OpenAiEngine:
    return OpenAiEngine(Model("smol"), OpenAiOptions(**{"url": "http://127.0.0.1:8000/v1", **options}))


def test_it_runs_already_and_says_nothing_of_itself() -> None:
    engine = made()
    assert engine.url == "http://127.0.0.1:8000"
    assert engine.launch(9000) is None
    assert asyncio.run(engine.describe(attached(engine.url))) == {}


def test_requests_use_the_experiments_model_name_unless_told_otherwise() -> None:
    assert made().model_id == "smol"
    assert made(model="gpt-x").model_id == "gpt-x"


def test_the_key_goes_into_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAKEOFF_TEST_KEY", SENTINEL)
    request = engine("openai", Model("smol"), OPTIONS).dialect.request(Turn(1, 1, prompt="x"), "smol")
    assert request.headers["authorization"] == f"Bearer {SENTINEL}"
    assert "authorization" not in made().dialect.request(Turn(1, 1, prompt="x"), "smol").headers


def test_the_key_is_in_nothing_that_is_printed_or_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAKEOFF_TEST_KEY", SENTINEL)
    options = msgspec.convert(OPTIONS, OpenAiOptions)
    held = OpenAiEngine(Model("smol"), options)
    server = attached(held.url)
    told = [
        repr(options), repr(held), repr(held.dialect), str(vars(held)), repr(server), str(vars(server)),
        str(asyncio.run(held.describe(server))),
        msgspec.json.encode(options).decode(), msgspec.json.encode(Model("smol")).decode(),
        pickle.dumps(options).decode("latin-1"), repr(copy.copy(options)),
    ]  # fmt: skip
    assert [text for text in told if SENTINEL in text] == []
    assert "BAKEOFF_TEST_KEY" in told[0], "the name of the variable may be told"


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BAKEOFF_TEST_KEY", raising=False)
    with pytest.raises(BadOption) as caught:
        engine("openai", Model("smol"), OPTIONS)
    assert str(caught.value) == "the environment variable BAKEOFF_TEST_KEY is not set; export the key in it"


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(BadOption, match="url must begin with http"):
        made(url="127.0.0.1:8000")
