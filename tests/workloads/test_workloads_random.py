"""Random words: lengths as asked, no shared prefix."""

import itertools

import pytest

from workloads import BadOption, Random, Tokenizer, Turn, workload

REQUESTS = 300
KINDS = ["small", "digits", pytest.param("smollm2", marks=pytest.mark.model)]


def turns(kind: Random, tokenizer: Tokenizer, seed: str = "7", count: int = REQUESTS) -> list[Turn]:
    return [session.turns[0] for session in itertools.islice(kind.sessions(tokenizer, seed), count)]


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_lengths_are_exact(request: pytest.FixtureRequest, kind: str) -> None:
    tokenizer = request.getfixturevalue(kind)
    planned = turns(Random(input_tokens=100, spread=0.9), tokenizer)
    assert [tokenizer.count(turn.prompt or "") for turn in planned] == [turn.input_tokens for turn in planned]


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_prompts_share_their_first_eight_tokens(request: pytest.FixtureRequest, kind: str) -> None:
    tokenizer = request.getfixturevalue(kind)
    heads = [tuple(tokenizer.encode(turn.prompt or "")[:8]) for turn in turns(Random(32), tokenizer, count=200)]
    assert len(set(heads)) == 200


def test_without_spread_all_lengths_are_alike(small: Tokenizer) -> None:
    assert {(turn.input_tokens, turn.output_tokens) for turn in turns(Random(20, 5), small, count=50)} == {(20, 5)}


def test_spread_fills_its_interval_and_leaves_it_nowhere(small: Tokenizer) -> None:
    planned = turns(Random(input_tokens=20, output_tokens=100, spread=0.5), small, count=1000)
    inputs, outputs = [turn.input_tokens for turn in planned], [turn.output_tokens for turn in planned]
    assert set(inputs) == set(range(10, 31))
    assert (min(outputs), max(outputs)) == (50, 150)
    assert sum(outputs) / 1000 == pytest.approx(100, abs=4)  # over four standard errors
    assert len({i - o // 5 for i, o in zip(inputs, outputs, strict=True)}) > 20, "drawn one by one"


def test_a_wide_spread_never_asks_for_nothing(small: Tokenizer) -> None:
    planned = turns(Random(input_tokens=1, output_tokens=1, spread=0.99), small, count=200)
    assert {turn.input_tokens for turn in planned} == {1, 2}
    assert {turn.output_tokens for turn in planned} == {1, 2}


def test_requests_are_completions_with_a_name_of_their_own(small: Tokenizer) -> None:
    sessions = list(itertools.islice(Random().sessions(small, "7"), 2))
    assert [session.id for session in sessions] == ["random-0", "random-1"]
    assert all(session.turns[0].messages is None for session in sessions)
    assert Random().notes() == ["random: meaningless words, which real traffic is not; do not choose an engine by it"]


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
