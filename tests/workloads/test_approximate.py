"""Prompts without the model's tokenizer have approximately the wanted length."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.workloads import APPROXIMATE, NoTokenizer, Seed, Tokenizer, plan_closed, tokenizer_at, workload
from bakeoff.workloads.text.code import code_units
from bakeoff.workloads.text.prose import prose_units

APPROXIMATELY = tokenizer_at(APPROXIMATE)


@given(st.text())
def test_no_character_is_lost(text: str):
    assert APPROXIMATELY.decode(APPROXIMATELY.encode(text)) == text
    assert APPROXIMATELY.count(text) == len(APPROXIMATELY.encode(text))


@pytest.mark.model
def test_it_counts_within_a_tenth_of_a_real_tokenizer(model_folder: Path):
    real = Tokenizer(model_folder)
    for units in (prose_units, code_units):
        text = "".join(itertools.islice(units(Seed("a", "b").wording("words")), 1000))
        assert APPROXIMATELY.count(text) == pytest.approx(real.count(text), rel=0.1)
    words = list(APPROXIMATELY.vocabulary)
    assert len(words) > 300
    assert all(real.count(f"a {word[1:]}") == real.count("a") + 1 for word in words)


@pytest.mark.parametrize("name", ["chat", "rag", "random"])
def test_workloads_are_planned_with_it(name: str):
    for planned in plan_closed(workload(name, {}), APPROXIMATELY, Seed("a", "b"), 3):
        for turn in planned.session.turns:
            text = turn.prompt or APPROXIMATELY.render_chat([vars_of(message) for message in turn.messages])
            assert APPROXIMATELY.count(text) == pytest.approx(turn.input_tokens, rel=0.05, abs=4)


def vars_of(message: object) -> dict[str, str]:
    return {"role": getattr(message, "role", ""), "content": getattr(message, "content", "")}


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path):
    with pytest.raises(NoTokenizer, match=r"has no tokenizer\.json"):
        tokenizer_at(str(tmp_path))
