"""Passages of exact length, whatever precedes them, and each with a beginning of its own."""

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bakeoff.workloads import Tokenizer, WorkloadError
from bakeoff.workloads.rng import Rng
from bakeoff.workloads.text import MARKS, Style, Writer, writer
from tests.workloads.small_tokenizers import checkpoint

KINDS = ["small", "digits", "merging", "bare", pytest.param("smollm2", marks=pytest.mark.model)]
STYLES: tuple[Style, ...] = ("prose", "code")
QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
ENDS = st.sampled_from(["", ".", "\n", " ", "):", "\n    ", "2024", "é", "<|im_start|>user\n", "<|im_end|>", "日本"])


class Counting(Tokenizer):
    """The same tokenizer, which counts the characters that it encodes."""

    encoded_chars = 0

    def encode(self, text: str) -> list[int]:
        self.encoded_chars += len(text)
        return super().encode(text)


def passage(tokenizer: Tokenizer, mark: int, tokens: int = 20, seed: str = "7", style: Style = "prose") -> str:
    return writer(tokenizer).passage(tokens, Rng(seed, str(mark)), mark, style)


@pytest.mark.parametrize("kind", KINDS)
@QUICK
@given(
    tokens=st.integers(1, 400), seed=st.text(max_size=8), mark=st.integers(0, 2 * MARKS), style=st.sampled_from(STYLES),
    before=st.text(max_size=12), end=ENDS,
)  # fmt: skip
def test_a_passage_adds_exactly_its_tokens_to_whatever_stands_before_it(
    request: pytest.FixtureRequest, kind: str, tokens: int, seed: str, mark: int, style: Style, before: str, end: str
) -> None:
    tokenizer = request.getfixturevalue(kind)
    text = writer(tokenizer).passage(tokens, Rng(seed), mark, style)
    assert tokenizer.encode(before + end + text)[:-tokens] == tokenizer.encode(before + end)
    assert text == writer(tokenizer).passage(tokens, Rng(seed), mark, style)


@pytest.mark.parametrize("kind", KINDS)
@QUICK
@given(parts=st.lists(st.tuples(st.integers(1, 60), st.sampled_from(STYLES)), min_size=1, max_size=8))
def test_joined_passages_have_the_sum_of_their_tokens(
    request: pytest.FixtureRequest, kind: str, parts: list[tuple[int, Style]]
) -> None:
    tokenizer = request.getfixturevalue(kind)
    texts = [passage(tokenizer, mark, tokens, style=style) for mark, (tokens, style) in enumerate(parts)]
    assert tokenizer.count("".join(texts)) == sum(tokens for tokens, _ in parts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_passages_differ_at_their_first_token_and_thousands_within_two(
    request: pytest.FixtureRequest, kind: str
) -> None:
    tokenizer = request.getfixturevalue(kind)
    ids = [tokenizer.encode(passage(tokenizer, mark, 4)) for mark in range(8000)]
    assert len({first for first, *_ in ids[:90]}) == 90
    assert len({(first, second) for first, second, *_ in ids}) == 8000


@pytest.mark.parametrize(("kind", "count"), [("bare", 80), pytest.param("smollm2", 3000, marks=pytest.mark.model)])
def test_passages_also_differ_where_a_template_removes_the_space(
    request: pytest.FixtureRequest, kind: str, count: int
) -> None:
    tokenizer = request.getfixturevalue(kind)
    texts = [passage(tokenizer, mark, 4).lstrip() for mark in range(count)]
    for edge in ("", "\n", "<|im_start|>user\n"):
        at = tokenizer.count(edge)
        assert len({tokenizer.encode(edge + text)[at] for text in texts}) == count


@pytest.mark.parametrize("kind", KINDS)
def test_the_third_token_is_the_seeds_alone(request: pytest.FixtureRequest, kind: str) -> None:
    """Two plans differ from their third token on even if their marks are equal."""
    tokenizer = request.getfixturevalue(kind)
    ids = [tokenizer.encode(passage(tokenizer, 5, seed=str(seed))) for seed in range(40)]
    assert len({(first, second) for first, second, *_ in ids}) == 1
    assert len({third for _, _, third, *_ in ids}) > 20


@pytest.mark.parametrize("kind", KINDS)
@QUICK
@given(
    tokens=st.integers(6, 200), change=st.integers(-190, 60), seed=st.text(max_size=8), style=st.sampled_from(STYLES)
)
def test_more_adds_and_removes_exactly(
    request: pytest.FixtureRequest, kind: str, tokens: int, change: int, seed: str, style: Style
) -> None:
    tokenizer = request.getfixturevalue(kind)
    change = max(change, 3 - tokens)
    text = passage(tokenizer, 3, tokens, seed, style)
    changed = writer(tokenizer).more(text, change, Rng(seed))
    assert tokenizer.count(changed) == tokens + change
    if change >= 0:
        assert changed.startswith(text)
    else:
        assert changed.startswith(text[: len(changed) // 4])


def test_more_leaves_the_first_word_whatever_is_asked(small: Tokenizer) -> None:
    assert writer(small).more(" about list step", -100, Rng("7")) == " about"


@pytest.mark.parametrize("kind", KINDS)
def test_single_token_words_are_plain_and_one_token_behind_anything(request: pytest.FixtureRequest, kind: str) -> None:
    tokenizer = request.getfixturevalue(kind)
    words = writer(tokenizer).words[:500]
    assert all(word[0] == " " and word[1:].isalpha() and word.islower() and len(word) > 4 for word in words)
    assert len(set(words)) == len(words) > 90
    for a, b in itertools.pairwise(words):
        assert tokenizer.count(a + b) == 2


def test_prose_reads_as_a_request_and_sentences_and_code_as_python(small: Tokenizer) -> None:
    prose, code = passage(small, 0, 3000), passage(small, 0, 3000, style="code")
    sentences = [sentence.strip() for sentence in prose.replace("?", ".").split(".")]
    assert " how " in sentences[0]
    assert all(sentence[0].isupper() for sentence in sentences[1:-1])
    assert len(set(sentences)) == len(sentences), "a grammar that repeats itself would fill prefix caches"
    assert "\n" not in prose
    assert code.count("\ndef ") > 5
    whole_functions = code[code.index("\ndef ") : code.rindex("\n\ndef ")]
    compile(whole_functions, "code", "exec")


def test_the_time_to_write_grows_like_the_text(tmp_path: Path) -> None:
    """Costs are learnt once: no text is encoded again as a whole, and later passages encode less and less."""
    tokenizer = Counting(checkpoint(tmp_path))
    made = Writer(tokenizer)
    before = tokenizer.encoded_chars
    encoded_chars: list[int] = []
    for seed in range(6):
        assert len(made.passage(10_000, Rng(str(seed)))) > 20_000
        encoded_chars.append(tokenizer.encoded_chars - before)
        before = tokenizer.encoded_chars
    assert encoded_chars[0] < 40_000
    assert encoded_chars[5] < encoded_chars[0] / 2


def test_a_tokenizer_without_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="this tokenizer has no single-token words"):
        Writer(Tokenizer(checkpoint(tmp_path, merges=0)))
