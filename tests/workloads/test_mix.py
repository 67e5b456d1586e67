"""Classes of traffic: whose session it is, in which shares, and that no class depends on the others."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from bakeoff.workloads import Seed, Session, Tokenizer, workload
from bakeoff.workloads.mix import Mix, Part
from bakeoff.workloads.shapes import SessionShape, chosen_sessions, session_shapes
from tests.workloads.small_tokenizers import checkpoint

SHORT = Part("short", 3.0, workload("random", {"input_tokens": 4, "output_tokens": 2}))
LONG = Part("long", 1.0, workload("random", {"input_tokens": 9, "output_tokens": 7}))
TALK = Part("talk", 1.0, workload("multi-turn", {"scale": 0.02}))
SEED = Seed.of("7")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(checkpoint(tmp_path_factory.mktemp("tokenizer"), bare=True, merges=800))


def first(sessions: Iterator[Session], count: int) -> list[Session]:
    return list(itertools.islice(sessions, count))


def test_a_session_is_of_the_class_that_its_lengths_have(tokenizer: Tokenizer):
    for session in first(Mix([SHORT, LONG]).sessions(tokenizer, SEED), 60):
        assert session.turns[0].output_tokens == {"short": 2, "long": 7}[session.traffic_class]
        assert session.id.startswith(f"{session.traffic_class}:")


def test_classes_have_their_shares(tokenizer: Tokenizer):
    """800 draws of 3/4 have a standard deviation of 12."""
    sessions = first(Mix([SHORT, LONG]).sessions(tokenizer, SEED), 800)
    assert sum(session.traffic_class == "short" for session in sessions) == pytest.approx(600, abs=40)
    assert len({session.id for session in sessions}) == 800


def test_sessions_of_a_class_are_the_same_beside_any_other(tokenizer: Tokenizer):
    alone, with_long, with_talk = (
        first((s for s in Mix(parts).sessions(tokenizer, SEED) if s.traffic_class == "short"), 10)
        for parts in ([SHORT], [SHORT, LONG], [TALK, SHORT])
    )
    assert alone == with_long == with_talk


def test_shapes_and_chosen_sessions_are_those_of_the_sessions(tokenizer: Tokenizer):
    mix = Mix([SHORT, TALK, LONG])
    sessions = first(mix.sessions(tokenizer, SEED), 30)
    shapes = list(itertools.islice(session_shapes(mix, tokenizer, SEED), 30))
    assert shapes == [SessionShape.of(session.turns) for session in sessions]
    wanted = {number: len(sessions[number].turns) for number in (0, 3, 4, 11, 29)}
    assert list(chosen_sessions(mix, tokenizer, SEED, wanted)) == [sessions[number] for number in wanted]


def test_it_ends_with_the_first_class_that_has_no_more(tokenizer: Tokenizer, tmp_path: Path):
    file = tmp_path / "few.jsonl"
    file.write_text('{"prompt": "one"}\n{"prompt": "two"}\n', encoding="utf-8")
    few = Part("few", 1.0, workload("trace", {"path": str(file), "format": "questions"}))
    sessions = list(Mix([few, SHORT]).sessions(tokenizer, SEED))
    assert sum(session.traffic_class == "few" for session in sessions) == 2


def test_a_load_that_ends_earlier_leaves_out_the_same_turns(tokenizer: Tokenizer):
    (alone,) = first(
        workload("multi-turn", {"scale": 0.02}).within(1.0).sessions(tokenizer, Seed("7/talk", "7/talk")), 1
    )  # type: ignore[attr-defined]
    (mixed,) = first(Mix([TALK]).within(1.0).sessions(tokenizer, SEED), 1)
    assert mixed.turns == alone.turns
