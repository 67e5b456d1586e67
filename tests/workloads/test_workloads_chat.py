"""Chat traffic: as many tokens as asked for, template included, and no two long prompts alike."""

import itertools
from pathlib import Path

import pytest

from tests.workloads.small_tokenizers import checkpoint
from workloads import BadOption, Chat, Tokenizer, Turn, workload
from workloads.lengths import AZURE_CONVERSATION_INPUT, AZURE_CONVERSATION_OUTPUT

REQUESTS = 300
KINDS = ["small", "digits", "merging", pytest.param("smollm2", marks=pytest.mark.model)]


def turns(chat: Chat, tokenizer: Tokenizer, seed: str = "7", count: int = REQUESTS) -> list[Turn]:
    return [session.turns[0] for session in itertools.islice(chat.sessions(tokenizer, seed), count)]


def content(turn: Turn) -> str:
    assert turn.messages is not None
    (message,) = turn.messages
    return message.content


def rendered_tokens(tokenizer: Tokenizer, turn: Turn) -> int:
    return tokenizer.count(tokenizer.render_chat([{"role": "user", "content": content(turn)}]))


@pytest.mark.parametrize("scale", [0.125, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_input_lengths_are_exact_with_the_template_counted(
    request: pytest.FixtureRequest, kind: str, scale: float
) -> None:
    tokenizer = request.getfixturevalue(kind)
    planned = turns(Chat(scale=scale), tokenizer)
    assert [rendered_tokens(tokenizer, turn) for turn in planned] == [turn.input_tokens for turn in planned]


@pytest.mark.parametrize("kind", ["digits", "merging", pytest.param("smollm2", marks=pytest.mark.model)])
def test_the_wanted_length_is_met_with_every_tokenizer_and_template(
    request: pytest.FixtureRequest, small: Tokenizer, kind: str
) -> None:
    """Apart from prompts that the template alone fills, every model is asked for the same lengths."""
    pairs = zip(turns(Chat(), small, count=60), turns(Chat(), request.getfixturevalue(kind), count=60), strict=True)
    same = [ours.input_tokens == theirs.input_tokens for ours, theirs in pairs if ours.input_tokens > 50]
    assert len(same) > 50
    assert all(same)


def test_lengths_are_the_traces_times_the_scale(small: Tokenizer) -> None:
    planned = turns(Chat(scale=0.5), small)
    for table, lengths in (
        (AZURE_CONVERSATION_INPUT, [turn.input_tokens for turn in planned]),
        (AZURE_CONVERSATION_OUTPUT, [turn.output_tokens for turn in planned]),
    ):
        for level in (0.25, 0.5, 0.75):
            below = sum(length <= 0.5 * table.at(level) + 0.5 for length in lengths) / REQUESTS
            assert below == pytest.approx(level, abs=0.1)  # four standard errors of a share of 300


def test_input_and_output_lengths_are_drawn_independently(small: Tokenizer) -> None:
    planned = turns(Chat(scale=0.125), small, count=1000)
    long_in = sum(turn.input_tokens > 126 for turn in planned) / 1000
    long_out = sum(turn.output_tokens > 14 for turn in planned) / 1000
    both = sum(turn.input_tokens > 126 and turn.output_tokens > 14 for turn in planned) / 1000
    assert both == pytest.approx(long_in * long_out, abs=0.04)  # over five standard errors


def test_a_session_is_one_question_with_a_name_of_its_own(small: Tokenizer) -> None:
    sessions = list(itertools.islice(Chat(scale=0.125).sessions(small, "7"), 3))
    assert [session.id for session in sessions] == ["chat-0", "chat-1", "chat-2"]
    for session in sessions:
        (turn,) = session.turns
        assert (turn.prompt, turn.think_s) == (None, 0.0)
        assert [message.role for message in turn.messages or ()] == ["user"]


@pytest.mark.parametrize("scale", [1.0, 0.125, 0.01])
@pytest.mark.parametrize("kind", ["small", pytest.param("smollm2", marks=pytest.mark.model)])
def test_no_two_prompts_share_their_first_eight_tokens(request: pytest.FixtureRequest, kind: str, scale: float) -> None:
    """Half a block of vLLM's prefix cache, however short the prompts are."""
    tokenizer = request.getfixturevalue(kind)
    chat = Chat(scale=scale, max_input_tokens=150)  # what a prompt begins with does not depend on its length
    heads = [tuple(tokenizer.encode(content(turn))[:8]) for turn in turns(chat, tokenizer, count=200)]
    assert len(set(heads)) == len(heads) == 200


def test_a_prompt_depends_on_its_number_only_and_not_on_those_before_it(small: Tokenizer) -> None:
    """So that a level of load can start at any session without changing what is said there."""
    assert [content(turn) for turn in turns(Chat(scale=0.25), small, count=5)] == [
        content(turn) for turn in turns(Chat(scale=0.25), small, count=50)[:5]
    ]
    assert content(turns(Chat(), small, "7", 1)[0]) != content(turns(Chat(), small, "8", 1)[0])


def test_long_inputs_are_clipped_to_the_limit_with_the_template_counted(small: Tokenizer) -> None:
    free = turns(Chat(scale=0.25), small)
    clipped = turns(Chat(scale=0.25, max_input_tokens=100), small)
    assert max(turn.input_tokens for turn in free) > 1000
    assert max(turn.input_tokens for turn in clipped) == 100
    assert [turn.input_tokens for turn in clipped] == [min(100, turn.input_tokens) for turn in free]
    assert [turn.output_tokens for turn in clipped] == [turn.output_tokens for turn in free]


def test_tiny_scales_leave_a_few_words_to_say_and_two_tokens_to_answer(small: Tokenizer) -> None:
    planned = turns(Chat(scale=0.001), small)
    assert {small.count(content(turn)) for turn in planned} <= set(range(4, 16))
    assert {turn.output_tokens for turn in planned} == {2}
    assert [rendered_tokens(small, turn) for turn in planned] == [turn.input_tokens for turn in planned]


def test_a_prompt_that_cannot_be_made_exact_says_its_true_length(tmp_path: Path) -> None:
    """A template that repeats the content makes every count odd or even: the plan may miss, but never lie."""
    tokenizer = Tokenizer(checkpoint(tmp_path, template="{{ messages[0].content }}|{{ messages[0].content }}"))
    planned = turns(Chat(scale=0.125), tokenizer, count=20)
    assert [rendered_tokens(tokenizer, turn) for turn in planned] == [turn.input_tokens for turn in planned]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0}, "workload 'chat': scale must be above 0 and at most 16, not 0.0"),
        ({"scale": 17}, "workload 'chat': scale must be above 0 and at most 16, not 17.0"),
        ({"scale": "1"}, r"workload 'chat': Expected `float`, got `str` - at `\$.scale`"),
        ({"max_input_tokens": 0}, "workload 'chat': max_input_tokens must be at least 1, not 0"),
        ({"scales": 1}, r"workload 'chat' has no option 'scales'; did you mean 'scale'\?"),
    ],
)
def test_options_out_of_range_are_refused_in_one_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        workload("chat", options)


def test_notes_tell_source_synthesis_and_scale() -> None:
    (plain,) = Chat().notes()
    assert "Azure conversation trace 2023" in plain
    assert "synthetic" in plain
    (scaled,) = Chat(scale=0.125).notes()
    assert scaled == f"{plain}; every length × 0.125 so that this machine can bear it"
