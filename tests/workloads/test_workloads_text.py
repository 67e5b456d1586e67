"""Prose cut to an exact number of tokens, whatever the tokenizer does at the cut."""

import itertools
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.workloads.small_tokenizers import checkpoint
from workloads import Tokenizer, WorkloadError
from workloads.rng import Rng
from workloads.text import exact_text, random_words, sentences

KINDS = ["small", "digits", pytest.param("smollm2", marks=pytest.mark.model)]
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class OddCounts:
    """A tokenizer that can never count an even number."""

    vocabulary: ClassVar = {" word": 5}

    def encode(self, text: str) -> list[int]:
        return [5] * (len(text.split()) | 1)

    def decode(self, ids: list[int]) -> str:
        return " word" * len(ids)

    def count(self, text: str) -> int:
        return len(text.split())


class Counting(Tokenizer):
    """The same tokenizer, which notes how much it was given to encode."""

    encoded_chars = 0

    def encode(self, text: str) -> list[int]:
        self.encoded_chars += len(text)
        return super().encode(text)


@pytest.mark.parametrize("kind", KINDS)
@QUICK
@given(tokens=st.integers(1, 400), seed=st.text(max_size=8))
def test_prose_has_exactly_the_wanted_tokens(request: pytest.FixtureRequest, kind: str, tokens: int, seed: str) -> None:
    tokenizer = request.getfixturevalue(kind)
    text = exact_text(tokenizer, tokens, Rng(seed))
    assert tokenizer.count(text) == tokens
    assert text.isprintable()
    assert text == text.strip(), "a template may strip it, and the count would change"
    assert text == exact_text(tokenizer, tokens, Rng(seed))


@pytest.mark.parametrize("kind", KINDS)
@QUICK
@given(tokens=st.integers(1, 300), seed=st.text(max_size=8))
def test_random_words_have_exactly_the_wanted_tokens(
    request: pytest.FixtureRequest, kind: str, tokens: int, seed: str
) -> None:
    tokenizer = request.getfixturevalue(kind)
    text = random_words(tokenizer, tokens, Rng(seed))
    assert tokenizer.count(text) == tokens
    assert all(word.isascii() and word.isalpha() for word in text.split())


def test_prose_is_a_request_followed_by_sentences() -> None:
    text = list(itertools.islice(sentences(Rng("7")), 200))
    assert all(sentence[0].isupper() and sentence[-1] in ".?" for sentence in text)
    assert " how " in text[0]
    assert any(sentence.endswith("?") for sentence in text)
    assert len(set(text)) > 190, "a grammar that repeats itself would fill prefix caches"


def test_long_prose_is_not_encoded_again_for_every_sentence(tmp_path: Path) -> None:
    """The time to write n tokens grows like n, not like n²: ten thousand requests are planned in a minute."""
    tokenizer = Counting(checkpoint(tmp_path))
    text = exact_text(tokenizer, 4_000, Rng("7"))
    assert tokenizer.encoded_chars < 12 * len(text)


def test_a_tokenizer_that_knows_only_bytes_still_gets_exact_prose(tmp_path: Path) -> None:
    tokenizer = Tokenizer(checkpoint(tmp_path, merges=0))
    assert tokenizer.count(exact_text(tokenizer, 50, Rng("7"))) == 50


def test_random_words_from_a_tokenizer_without_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="this tokenizer has no single-token words"):
        random_words(Tokenizer(checkpoint(tmp_path, merges=0)), 8, Rng("7"))


def test_a_length_that_cannot_be_met_is_an_error_and_no_endless_loop() -> None:
    assert OddCounts().count(random_words(OddCounts(), 3, Rng("7"))) == 3
    with pytest.raises(WorkloadError, match="no text of exactly 4 tokens was found with this tokenizer"):
        random_words(OddCounts(), 4, Rng("7"))
