"""Secrets: registered by name or by value, and masked in all output."""

import pytest

from bakeoff.engines import secrets
from bakeoff.engines.secrets import (
    MASK,
    conceal,
    conceal_environment,
    conceal_named,
    known,
    masked,
    masked_data,
    names_secret,
    without_secrets,
)


@pytest.fixture(autouse=True)
def _none_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", set())


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN", "OPENAI_API_KEY", "api-key", "--api-key", "--hf_token", "password", "DB_PASSWORD", "x-api-key",
        "Authorization", "aws_secret", "Set-Cookie", "credentials",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert names_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "max_num_batched_tokens", "--max-tokens", "TOKENIZERS_PARALLELISM", "tokenizer", "author", "keyboard",
        "monkey", "num_tokens", "KEYS_PATH", "secretary", "PWD",
    ],
)  # fmt: skip
def test_names_that_only_look_like_them(name: str) -> None:
    assert not names_secret(name)


def test_what_was_said_to_be_secret_is_replaced_everywhere() -> None:
    conceal("hf-sentinel-1")
    assert masked("a hf-sentinel-1, and hf-sentinel-1") == f"a {MASK}, and {MASK}"
    data = {"env": {"T": "hf-sentinel-1"}, "argv": ["x", ("--t", "hf-sentinel-1")], "hf-sentinel-1": 1, "n": None}
    assert masked_data(data) == {"env": {"T": MASK}, "argv": ["x", ["--t", MASK]], MASK: 1, "n": None}


def test_a_headers_value_is_known_without_its_first_word() -> None:
    conceal("Bearer sk-sentinel-2")
    assert masked("got sk-sentinel-2") == f"got {MASK}"
    assert masked("Authorization: Bearer sk-sentinel-2") == f"Authorization: {MASK}"


def test_a_secret_is_known_as_an_address_spells_it() -> None:
    conceal("pass word+sentinel")
    assert "sentinel" not in masked("http://me:pass%20word%2Bsentinel@x")


def test_one_secret_inside_another_leaves_nothing_of_either() -> None:
    conceal("sentinel-1", "sentinel-1-and-more")
    assert masked("<sentinel-1-and-more>") == f"<{MASK}>"
    assert next(iter(known())) == "sentinel-1-and-more"


@pytest.mark.parametrize("value", ["", "a", "true", "token", "sk-1234", "completion", "2024-10-21", "1796006491"])
def test_short_values_words_and_numbers_are_left_since_they_are_everywhere(value: str) -> None:
    conceal(value, f"Bearer {value}")
    assert masked(f"that is {value} here") == f"that is {value} here"


def test_values_are_known_by_their_names() -> None:
    conceal_named({"HF_TOKEN": "by-name-sentinel", "OMP_NUM_THREADS": "innocent"})
    assert masked("by-name-sentinel innocent") == f"{MASK} innocent"


def test_an_engine_inherits_what_is_not_named_as_a_secret() -> None:
    innocent = {"PATH": "a", "PWD": "b", "SSH_AUTH_SOCK": "c", "TOKENIZERS_PARALLELISM": "d"}
    assert without_secrets({"HF_TOKEN": "e", **innocent, "X_KEY": "f"}) == innocent


def test_so_are_those_that_this_process_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "inherited-sentinel")
    conceal_environment()
    assert masked("inherited-sentinel") == MASK
