"""A conversation's prompts have the wanted number of tokens, whatever the template adds."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bakeoff.workloads import PromptReader, Tokenizer, Turn
from bakeoff.workloads.conversation import Api, Conversation
from bakeoff.workloads.rng import Rng
from bakeoff.workloads.text import Style, writer
from tests.workloads.small_tokenizers import checkpoint

QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
KINDS = ["small", "digits", "merging", pytest.param("smollm2", marks=pytest.mark.model)]
APIS: tuple[Api, ...] = ("chat", "completions")
TURNS = st.lists(st.tuples(st.integers(0, 120), st.integers(1, 60)), min_size=1, max_size=5)


def count(tokenizer: Tokenizer, turn: Turn) -> int:
    return PromptReader(tokenizer).count(turn)


def opening(turn: Turn) -> str:
    """The first message of a chat, or a completion's prompt."""
    return turn.messages[0].content if turn.messages else turn.prompt or ""


def talk(
    tokenizer: Tokenizer, api: Api, turns: list[tuple[int, int]], *, system: str = "", style: Style = "prose"
) -> list[Turn]:
    """A conversation in which each prompt adds that many new tokens to the last prompt and its answer."""
    conversation, made = Conversation(tokenizer, api, system), list[Turn]()
    for k, (new_tokens, output_tokens) in enumerate(turns):
        rng = Rng("7", str(k))
        wanted = conversation.tokens + new_tokens
        made.append(conversation.ask(wanted, output_tokens, rng, mark=3, style=style))
        conversation.answer(output_tokens, rng, style)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("api", APIS)
@QUICK
@given(turns=TURNS, system_tokens=st.integers(0, 40), style=st.sampled_from(("prose", "code")))
def test_every_prompt_of_a_growing_conversation_is_exact(
    request: pytest.FixtureRequest, kind: str, api: Api, turns: list[tuple[int, int]], system_tokens: int, style: Style
) -> None:
    tokenizer = request.getfixturevalue(kind)
    system = writer(tokenizer).passage(system_tokens, Rng("system")) if system_tokens else ""
    made = talk(tokenizer, api, turns, system=system, style=style)
    assert [count(tokenizer, turn) for turn in made] == [turn.input_tokens for turn in made]
    room = 60  # for template, system prompt and the shortest question
    for (new_tokens, _), turn, last in zip(turns[1:], made[1:], zip(made, turns, strict=True), strict=False):
        if new_tokens > room:
            assert turn.input_tokens == last[0].input_tokens + last[1][1] + new_tokens


@pytest.mark.parametrize("kind", ["small", "digits", pytest.param("smollm2", marks=pytest.mark.model)])
@pytest.mark.parametrize("api", APIS)
def test_a_prompt_begins_with_the_last_one_and_its_answer(request: pytest.FixtureRequest, kind: str, api: Api) -> None:
    tokenizer = request.getfixturevalue(kind)
    reader = PromptReader(tokenizer)
    ids = [reader.ids(turn) for turn in talk(tokenizer, api, [(90, 20), (50, 30), (70, 10)])]
    assert ids[1][: len(ids[0])] == ids[0]
    assert ids[2][: len(ids[1])] == ids[1]
    assert [len(prompt) for prompt in ids] == [90, 90 + 20 + 50, 160 + 30 + 70]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("wanted", [0, 1, 5])
def test_a_question_that_does_not_fit_is_the_shortest_there_is_and_says_its_true_length(
    request: pytest.FixtureRequest, kind: str, api: Api, wanted: int
) -> None:
    tokenizer = request.getfixturevalue(kind)
    turn = Conversation(tokenizer, api).ask(wanted, 7, Rng("7"), mark=3)
    around = Conversation(tokenizer, api).overhead_tokens
    assert count(tokenizer, turn) == turn.input_tokens >= wanted
    assert turn.input_tokens <= max(wanted, around + 9), "two words, which a small tokenizer may cut up"
    assert turn.output_tokens == 7


def test_roles_and_what_else_a_request_asks_for_are_kept(small: Tokenizer) -> None:
    conversation = Conversation(small, "chat", " You are careful")
    first = conversation.ask(60, 5, Rng("1"), mark=0)
    conversation.answer(5, Rng("1"))
    second = conversation.ask(99, 6, Rng("2"), mark=0, think_s=2.5, json_schema="{}")
    assert [message.role for message in second.messages or ()] == ["system", "user", "assistant", "user"]
    assert (second.messages or ())[:2] == first.messages
    assert opening(first) == "You are careful"
    assert (second.prompt, second.think_s, second.json_schema, second.output_tokens) == (None, 2.5, "{}", 6)


def test_passages_before_a_question_are_sent_as_they_are(small: Tokenizer) -> None:
    rng, documents = Rng("7"), [writer(small).passage(30, Rng(str(k)), k) for k in range(3)]
    turn = Conversation(small, "chat").ask(200, 5, rng, mark=9, before=documents)
    assert opening(turn).startswith("".join(documents).lstrip())
    assert count(small, turn) == 200


def test_plain_text_begins_with_the_system_prompt_and_goes_on_with_each_question(small: Tokenizer) -> None:
    first, second = talk(small, "completions", [(40, 8), (30, 8)], system=" You are careful")
    assert (first.prompt or "").startswith("You are careful ")
    assert (second.prompt or "").startswith(first.prompt or "-")
    assert first.messages is second.messages is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_around_a_question_are_those_of_an_empty_prompt(request: pytest.FixtureRequest, kind: str) -> None:
    tokenizer = request.getfixturevalue(kind)
    for api in APIS:
        conversation = Conversation(tokenizer, api)
        turn = conversation.ask(conversation.overhead_tokens + 40, 1, Rng("7"), mark=1)
        assert abs(tokenizer.count(f" {opening(turn)}") - 40) <= 3, "apart from the words at the two edges"
        assert 0 <= conversation.head_tokens <= conversation.overhead_tokens


def test_words_that_a_template_joins_to_its_own_are_corrected(tmp_path: Path) -> None:
    """The last word's tokens depend on the text that the template appends without a space."""
    template = "{% for message in messages %}pre{{ message['content'] }}s{% endfor %}"
    tokenizer = Tokenizer(checkpoint(tmp_path, template=template))
    exact = 0
    for tokens in range(20, 60):
        made = talk(tokenizer, "chat", [(tokens, 7), (tokens, 5)])
        assert [turn.input_tokens for turn in made] == [tokens, 2 * tokens + 7]
        off = [count(tokenizer, turn) - turn.input_tokens for turn in made]
        exact += off.count(0)
        assert max(map(abs, off)) <= 3
    assert exact >= 76, "of 80: four words are tried"


def test_a_template_that_repeats_the_text_keeps_the_wanted_length(tmp_path: Path) -> None:
    """The check before a trial then finds and reports the prompts with a wrong length."""
    tokenizer = Tokenizer(checkpoint(tmp_path, template="{{ messages[0].content }}|{{ messages[0].content }}"))
    made = [Conversation(tokenizer, "chat").ask(tokens, 3, Rng(str(tokens)), mark=1) for tokens in range(60, 80)]
    assert [turn.input_tokens for turn in made] == list(range(60, 80))
    assert any(count(tokenizer, turn) != turn.input_tokens for turn in made)
