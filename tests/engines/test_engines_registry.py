"""Adapters by name: every mistake is one line that says what would have been right."""

import pytest

from engines import ADAPTERS, EngineError, Model, check_options, engine
from engines.adapters.reference import ReferenceEngine, ReferenceOptions
from engines.errors import BadOption, UnknownEngine
from engines.registry import option_names

NEEDED = {"openai": {"url": "http://127.0.0.1:1"}, "reference": {}, "transformers": {}}


def test_every_listed_adapter_can_be_made_and_says_its_name() -> None:
    assert ADAPTERS == ("openai", "reference", "transformers")
    for name in ADAPTERS:
        made = engine(name, Model("smol", "/models/smol"), NEEDED[name])
        assert (made.adapter, made.dialect.name) == (name, name)


def test_options_are_checked_without_making_anything() -> None:
    assert check_options("reference", {"max_num_seqs": 8}) == ReferenceOptions(max_num_seqs=8)
    assert option_names("openai") == ("url", "model", "api_key_env")


def test_checked_options_reach_the_engine() -> None:
    made = engine("reference", Model("smol"), {"url": "http://127.0.0.1:9/v1"})
    assert isinstance(made, ReferenceEngine)
    assert made.url == "http://127.0.0.1:9"


@pytest.mark.parametrize("make", [check_options, lambda name, options: engine(name, Model("m"), options)])
@pytest.mark.parametrize(
    ("adapter", "options", "error", "message"),
    [
        ("transformer", {}, UnknownEngine,
         "unknown engine 'transformer'; did you mean 'transformers'? known: openai, reference, transformers"),
        ("zzz", {}, UnknownEngine, "unknown engine 'zzz'; known: openai, reference, transformers"),
        ("openai", {"url": "http://x", "modle": "m"}, BadOption,
         "engine 'openai' has no option 'modle'; did you mean 'model'? known: url, model, api_key_env"),
        ("openai", {}, BadOption, "engine 'openai': Object missing required field `url`"),
        ("reference", {"block_size": "16"}, BadOption,
         "engine 'reference': Expected `int | null`, got `str` - at `$.block_size`"),
        ("transformers", {"continuous_batching": 1}, BadOption,
         "engine 'transformers': Expected `bool`, got `int` - at `$.continuous_batching`"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_the_nearest_right_name(
    make: object, adapter: str, options: dict[str, object], error: type[EngineError], message: str
) -> None:
    assert callable(make)
    with pytest.raises(error) as caught:
        make(adapter, options)
    assert str(caught.value) == message
