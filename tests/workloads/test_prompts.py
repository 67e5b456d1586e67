"""Reading a prompt as the continuation of the last one gives the ids of the whole prompt, whatever the last one was."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers

from bakeoff.workloads import Message, PromptReader, Tokenizer, Turn, prompt_reader
from tests.workloads.small_tokenizers import checkpoint, trained

QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
KINDS = ["small", "digits", "merging", pytest.param("smollm2", marks=pytest.mark.model)]
ROLES = st.sampled_from(["system", "user", "assistant"])
PIECES = st.sampled_from(
    [
        " the keeper",
        "the",
        " 2024",
        "\n",
        " ",
        "é",
        "日",
        "<|im_end|>",
        "<|im_start|>",
        "<|im_",
        "end|>",
        "|>",
        "<",
        "a",
    ]
)
CONTENTS = st.lists(PIECES, max_size=6).map("".join)
MESSAGES = st.builds(Message, ROLES, CONTENTS)
CHATS = st.lists(MESSAGES, min_size=1, max_size=5)


class Counting(Tokenizer):
    """The same tokenizer, which records the texts that it encodes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.encoded: list[str] = []

    def encode(self, text: str) -> list[int]:
        self.encoded.append(text)
        return super().encode(text)


def turn(messages: Sequence[Message]) -> Turn:
    return Turn(0, 1, messages=tuple(messages))


def whole(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    text = tokenizer.render_chat([{"role": message.role, "content": message.content} for message in messages])
    return tokenizer.encode(text)


@st.composite
def histories(draw: st.DrawFn) -> list[list[Message]]:
    """Chats in order of arrival: each grows, shrinks or branches from an earlier one, or is new."""
    chats = [draw(CHATS)]
    for _ in range(draw(st.integers(1, 8))):
        kept = draw(st.sampled_from(chats))
        kept = kept[: draw(st.integers(0, len(kept)))]
        more = draw(st.lists(MESSAGES, max_size=3))
        chats.append([*kept, *more] or draw(CHATS))
    return chats


def odd_tokenizer(folder: Path, change: Callable[[Any], object]) -> Tokenizer:
    """A tokenizer that treats spaces or special tokens in an unusual way."""
    checkpoint(folder)
    inner = trained()
    change(inner)
    inner.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


def metaspace(inner: Any) -> None:
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")


def always_metaspace(inner: Any) -> None:
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")


def greedy_on_the_right(inner: Any) -> None:
    inner.add_special_tokens([AddedToken("<|im_end|>", special=True, rstrip=True)])


def greedy_on_the_left(inner: Any) -> None:
    inner.add_special_tokens([AddedToken("<|im_start|>", special=True, lstrip=True)])


def normalised_first(inner: Any) -> None:
    inner.normalizer = normalizers.Lowercase()
    inner.add_tokens([AddedToken("KEEPER", normalized=True)])


WALLS = {
    metaspace: True,
    always_metaspace: True,
    greedy_on_the_right: False,
    greedy_on_the_left: False,
    normalised_first: False,
}
"""Changes to a tokenizer, and whether its special tokens still separate texts."""


@pytest.fixture(scope="module", params=WALLS, ids=lambda change: change.__name__)
def odd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, bool]:
    """An unusual tokenizer, and whether its special tokens separate texts."""
    return odd_tokenizer(tmp_path_factory.mktemp("odd"), request.param), WALLS[request.param]


@pytest.mark.parametrize("kind", KINDS)
@QUICK
@given(chats=histories())
def test_ids_are_those_of_the_whole_prompt_whatever_came_before(
    request: pytest.FixtureRequest, kind: str, chats: list[list[Message]]
) -> None:
    tokenizer = request.getfixturevalue(kind)
    reader = PromptReader(tokenizer)
    for chat in chats:
        assert reader.ids(turn(chat)) == whole(tokenizer, chat)


@pytest.mark.slow
@QUICK
@given(chats=histories())
def test_ids_are_right_too_where_special_tokens_are_no_walls(
    odd: tuple[Tokenizer, bool], chats: list[list[Message]]
) -> None:
    tokenizer, walls = odd
    assert tokenizer.special_tokens == (("<|endoftext|>", "<|im_start|>", "<|im_end|>") if walls else ())
    reader = PromptReader(tokenizer)
    for chat in chats:
        assert reader.ids(turn(chat)) == whole(tokenizer, chat)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<|im_start|> the", "<|im_end|> the"),
        ("<|im_end|> the", "<|im_start|> the"),
        ("the<|im_end|>", "the<|im_end|"),
        ("the<|im_end|", "the<|im_end|>"),
        ("the<|im_start|>", "the<|im_"),
        ("", "<|im_end|>"),
    ],
)
def test_a_special_token_that_stands_where_another_stood_is_not_taken_for_it(
    small: Tokenizer, before: str, after: str
) -> None:
    reader = PromptReader(small)
    for content in (before, after, before):
        chat = [Message("user", content), Message("assistant", "the")]
        assert reader.ids(turn(chat)) == whole(small, chat)


def test_tokens_of_equal_length_at_one_place_are_told_apart(tmp_path: Path) -> None:
    def two_alike(inner: Any) -> None:
        inner.add_special_tokens(["<|a|>", "<|b|>", "<|a|>>"])

    tokenizer = odd_tokenizer(tmp_path, two_alike)
    reader = PromptReader(tokenizer)
    for content in ("the<|a|>the", "the<|b|>the", "the<|a|>>the", "the<|a|>the"):
        chat = [Message("user", content)]
        assert reader.ids(turn(chat)) == whole(tokenizer, chat)


def test_a_growing_conversation_costs_its_new_part_each(tmp_path: Path) -> None:
    tokenizer = Counting(checkpoint(tmp_path))
    reader = PromptReader(tokenizer)
    chat = [Message("user", "the keeper writes " * 2000)]
    reader.ids(turn(chat))
    tokenizer.encoded.clear()
    for k in range(20):
        chat += [Message("assistant", f"a short note {k}"), Message("user", f"and the weather {k}")]
        reader.ids(turn(chat))
    assert len(tokenizer.encoded) == 20
    assert max(map(len, tokenizer.encoded)) < 200
    tokenizer.encoded.clear()
    reader.ids(turn(chat))
    assert tokenizer.encoded == [], "the same prompt once more costs nothing"


def test_completions_have_before_them_what_the_model_puts_there(small: Tokenizer) -> None:
    reader = PromptReader(small)
    start = small.encode("<|endoftext|>")
    assert reader.ids(Turn(0, 1, prompt="the keeper")) == start + small.encode("the keeper")
    assert reader.count(Turn(0, 1, prompt="")) == 1
    chat = [Message("user", "the")]
    assert reader.ids(turn(chat)) == whole(small, chat), "a chat brings its own"


def test_there_is_one_reader_for_each_tokenizer(small: Tokenizer, digits: Tokenizer) -> None:
    assert prompt_reader(small) is prompt_reader(small)
    assert prompt_reader(small) is not prompt_reader(digits)


@pytest.mark.slow
def test_conversations_that_alternate_cost_their_new_parts(tmp_path: Path) -> None:
    tokenizer = Counting(checkpoint(tmp_path))
    reader = PromptReader(tokenizer)
    system = Message("system", "the keeper writes " * 500)
    chats = [[system, Message("user", f"agent {k} " * 2000)] for k in range(5)]
    for chat in chats:
        reader.ids(turn(chat))
    tokenizer.encoded.clear()
    for k in range(10):
        for chat in chats:
            chat += [Message("assistant", f"a short note {k}"), Message("user", f"and the weather {k}")]
            assert reader.ids(turn(chat)) == whole(tokenizer, chat)
    assert max(map(len, tokenizer.encoded[::2])) < 200, "every second one is the whole prompt, to compare with"
