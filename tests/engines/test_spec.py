"""Shared settings: their spelling for each engine, and refusals in one line."""

import msgspec
import pytest

from bakeoff.engines import EngineSpec, Speculation
from bakeoff.engines.errors import BadOption
from bakeoff.engines.spec import Cannot, Setting, Spellings, flag, key, one_of, option_argv, spelt, switch, variable

SPELLINGS: Spellings = {
    "dtype": one_of(("float16", "bfloat16"), flag("--dtype")),
    "max_num_seqs": flag("--parallel"),
    "max_model_len": key("build.max_seq_len"),
    "enable_prefix_caching": switch("--cache", "--no-cache"),
    "enable_chunked_prefill": switch(None, "--whole-prompts"),
    "memory_fraction": variable("MEMORY_SHARE"),
    "seed": Cannot("it has none"),
    "speculation": lambda value: Setting(("--draft", str(value.num_tokens))) if value.model else Cannot("no model"),
}


def spelt_as(**values: object) -> Setting:
    return spelt(msgspec.convert(values, EngineSpec), SPELLINGS, "small")


def refusal(**values: object) -> str:
    with pytest.raises(BadOption) as caught:
        spelt_as(**values)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_not_set_is_not_told() -> None:
    assert spelt_as() == Setting()


def test_each_setting_is_spelt_in_the_engines_own_words() -> None:
    assert spelt_as(dtype="float16").argv == ("--dtype", "float16")
    assert spelt_as(max_num_seqs=32).argv == ("--parallel", "32")
    assert spelt_as(max_model_len=2048).config == {"build.max_seq_len": 2048}
    assert spelt_as(memory_fraction=0.5).env == {"MEMORY_SHARE": "0.5"}
    assert spelt_as(speculation={"method": "draft", "num_tokens": 4, "model": "/m"}).argv == ("--draft", "4")


def test_a_switch_is_a_word_or_nothing() -> None:
    assert spelt_as(enable_prefix_caching=True).argv == ("--cache",)
    assert spelt_as(enable_prefix_caching=False).argv == ("--no-cache",)
    assert spelt_as(enable_chunked_prefill=True) == Setting(), "it does that by itself"
    assert spelt_as(enable_chunked_prefill=False).argv == ("--whole-prompts",)
    assert variable("ON")(True).env == {"ON": "1"}
    assert variable("ON")(False).env == {"ON": "0"}


def test_several_settings_are_told_together_in_the_order_of_the_spec() -> None:
    all_of_it = spelt_as(memory_fraction=0.5, max_num_seqs=8, dtype="bfloat16", max_model_len=16)
    assert all_of_it == Setting(
        ("--dtype", "bfloat16", "--parallel", "8"), {"MEMORY_SHARE": "0.5"}, {"build.max_seq_len": 16}
    )


def test_what_an_engine_cannot_do_is_refused_with_its_reason() -> None:
    assert refusal(seed=1) == "engine 'small' cannot be told seed: it has none; leave it out for this engine"
    assert refusal(tensor_parallel_size=2) == (
        "engine 'small' cannot be told tensor_parallel_size: it has no such setting; leave it out for this engine"
    )
    assert refusal(dtype="float32") == (
        "engine 'small' cannot be told dtype: it knows float16, bfloat16, not 'float32'; leave it out for this engine"
    )
    assert "no model" in refusal(speculation={"method": "ngram", "num_tokens": 4})


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, not 0"),
        ({"max_model_len": -1}, "max_model_len must be at least 1, not -1"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be at least 1, not 0"),
        ({"memory_fraction": 0}, "memory_fraction must be above 0 and at most 1, not 0"),
        ({"memory_fraction": 1.5}, "memory_fraction must be above 0 and at most 1, not 1.5"),
        ({"cpu_offload_gb": -1}, "cpu_offload_gb must be at least 0, not -1"),
        ({"speculation": {"method": "ngram"}}, "missing required field `num_tokens`"),
        ({"max_seqs": 1}, "unknown field `max_seqs`"),
    ],
)
def test_what_no_engine_can_do_is_refused_when_it_is_read(values: dict[str, object], complaint: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=complaint):
        msgspec.convert(values, EngineSpec)


def test_an_engines_own_settings_stand_above_the_shared_ones() -> None:
    shared = EngineSpec(dtype="float32", max_num_seqs=8, enable_prefix_caching=True)
    assert shared.under(EngineSpec()) == shared
    assert shared.under(EngineSpec(max_num_seqs=1, enable_prefix_caching=False)) == EngineSpec(
        dtype="float32", max_num_seqs=1, enable_prefix_caching=False
    )


def test_what_is_set_can_be_listed() -> None:
    assert EngineSpec().given() == {}
    draft = Speculation("ngram", 3)
    assert EngineSpec(enable_prefix_caching=False, speculation=draft).given() == {
        "enable_prefix_caching": False,
        "speculation": draft,
    }


def test_an_adapters_own_options_are_flags_of_their_names() -> None:
    class Own(msgspec.Struct, omit_defaults=True):
        block_size: int | None = None
        eager: bool | None = None
        policy: str | None = None

    assert option_argv(Own()) == ()
    assert option_argv(Own(16, True, "fcfs")) == ("--block-size", "16", "--eager", "--policy", "fcfs")
    assert option_argv(Own(eager=False)) == ("--no-eager",)
