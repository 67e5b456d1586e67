"""Random words: the wanted lengths, and no shared prefix."""

import itertools

import pytest

from bakeoff.workloads import BadOption, PromptReader, Random, Seed, Tokenizer, Turn, workload

REQUESTS = 300
SEED = Seed.of("7")
KINDS = ["small", "digits", "merging", "bare", pytest.param("smollm2", marks=pytest.mark.model)]


def turns(kind: Random, tokenizer: Tokenizer, seed: Seed = SEED, count: int = REQUESTS) -> list[Turn]:
    return [session.turns[0] for session in itertools.islice(kind.sessions(tokenizer, seed), count)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("made", [Random(100, spread=0.9), Random(12, spread=0.4), Random(2000, spread=0.1)])
def test_prompt_lengths_are_exact_with_what_the_model_puts_before_them(
    request: pytest.FixtureRequest, kind: str, made: Random
) -> None:
    tokenizer = request.getfixturevalue(kind)
    planned = turns(made, tokenizer, count=60)
    reader = PromptReader(tokenizer)
    assert [reader.count(turn) for turn in planned] == [turn.input_tokens for turn in planned]


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_prompts_share_their_first_eight_tokens(request: pytest.FixtureRequest, kind: str) -> None:
    """Half a block of most prefix caches; also between two plans of the same shape."""
    tokenizer = request.getfixturevalue(kind)
    all_turns = [*turns(Random(32), tokenizer, count=200), *turns(Random(32), tokenizer, Seed("7", "b"), count=200)]
    assert len({tuple(tokenizer.encode(turn.prompt or "")[:8]) for turn in all_turns}) == 400


def test_other_words_have_the_same_lengths(small: Tokenizer) -> None:
    first, second = (turns(Random(40, 10, 0.5), small, Seed("7", words), 50) for words in ("a", "b"))
    assert [(turn.input_tokens, turn.output_tokens) for turn in first] == [
        (turn.input_tokens, turn.output_tokens) for turn in second
    ]
    assert all(a.prompt != b.prompt for a, b in zip(first, second, strict=True))
    other = turns(Random(40, 10, 0.5), small, Seed("8", "a"), 50)
    assert [turn.input_tokens for turn in other] != [turn.input_tokens for turn in first]


def test_without_spread_all_lengths_are_alike(small: Tokenizer) -> None:
    assert {(turn.input_tokens, turn.output_tokens) for turn in turns(Random(20, 5), small, count=50)} == {(20, 5)}


def test_spread_fills_its_interval_and_leaves_it_nowhere(small: Tokenizer) -> None:
    planned = turns(Random(input_tokens=20, output_tokens=100, spread=0.5), small, count=1000)
    inputs, outputs = [turn.input_tokens for turn in planned], [turn.output_tokens for turn in planned]
    assert set(inputs) == set(range(10, 31))
    assert (min(outputs), max(outputs)) == (50, 150)
    assert sum(outputs) / 1000 == pytest.approx(100, abs=4)  # over four standard errors
    assert len({i - o // 5 for i, o in zip(inputs, outputs, strict=True)}) > 20, "drawn one by one"


def test_a_wide_spread_never_asks_for_nothing(bare: Tokenizer) -> None:
    planned = turns(Random(input_tokens=1, output_tokens=1, spread=0.99), bare, count=200)
    assert {turn.input_tokens for turn in planned} == {2}, "what the model puts before every text, and a word"
    assert {turn.output_tokens for turn in planned} == {1, 2}
    reader = PromptReader(bare)
    assert {reader.count(turn) for turn in planned} == {2}


def test_requests_are_completions_with_a_name_of_their_own(small: Tokenizer) -> None:
    sessions = list(itertools.islice(Random().sessions(small, SEED), 2))
    assert [session.id for session in sessions] == ["random-0", "random-1"]
    assert all(session.turns[0].messages is None for session in sessions)
    assert all(word.isalpha() for session in sessions for word in (session.turns[0].prompt or "").split())
    assert Random().notes() == [
        "random: meaningless words, unlike real traffic; do not choose an engine by this workload"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_tokens": 0}, "workload 'random': input_tokens and output_tokens must be at least 1"),
        ({"output_tokens": 0}, "workload 'random': input_tokens and output_tokens must be at least 1"),
        ({"spread": 1.0}, "workload 'random': spread must be at least 0 and below 1, not 1.0"),
        ({"spread": -0.1}, "workload 'random': spread must be at least 0 and below 1, not -0.1"),
        ({"input_token": 3}, r"workload 'random' has no option 'input_token'; did you mean 'input_tokens'\?"),
    ],
)
def test_options_out_of_range_are_refused_in_one_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        workload("random", options)
