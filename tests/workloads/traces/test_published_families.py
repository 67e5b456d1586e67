"""The prompt families of ``benchmarks/speculation``: real text, small enough for a small model on two cores."""

import ast
import re
from pathlib import Path

import pytest

from bakeoff.harness.experiment.reading import load_experiment
from bakeoff.workloads import Seed, Session, Tokenizer, workload

FOLDER = Path(__file__).parents[3] / "benchmarks" / "speculation"
NAMES = ["chat", "code-editing", "maths", "rag", "summarise"]
MAX_PROMPT_TOKENS = 400


def sessions(name: str, tokenizer: Tokenizer) -> list[Session]:
    path = str(FOLDER / "families" / f"{name}.jsonl")
    return list(workload("trace", {"path": path}).sessions(tokenizer, Seed.of("1")))


def texts(name: str, tokenizer: Tokenizer) -> list[str]:
    return [message.content for session in sessions(name, tokenizer) for message in session.turns[0].messages or ()]


@pytest.mark.parametrize("experiment", ["speculation.toml", "engines.toml"])
def test_the_folder_has_these_families_and_the_experiment_one_of_them(experiment: str) -> None:
    assert sorted(path.stem for path in (FOLDER / "families").iterdir()) == NAMES
    named = load_experiment(FOLDER / experiment).workload.options["path"]
    assert (FOLDER.parents[1] / named).is_file()


@pytest.mark.parametrize("name", NAMES)
def test_a_family_has_twelve_prompts_each_of_one_turn(name: str, small: Tokenizer) -> None:
    all_sessions = sessions(name, small)
    assert len(all_sessions) == len(set(texts(name, small))) == 12
    assert all(len(session.turns) == 1 and 64 <= session.turns[0].output_tokens <= 128 for session in all_sessions)


@pytest.mark.model
@pytest.mark.parametrize("name", NAMES)
def test_no_prompt_is_too_long_for_two_cores(name: str, smollm2: Tokenizer) -> None:
    assert all(session.turns[0].input_tokens <= MAX_PROMPT_TOKENS for session in sessions(name, smollm2))


def test_code_is_one_whole_function_of_20_to_40_lines(small: Tokenizer) -> None:
    for text in texts("code-editing", small):
        (code,) = re.findall(r"```python\n(.*?)\n```", text, re.DOTALL)
        (function,) = ast.parse(code).body
        assert isinstance(function, ast.FunctionDef)
        assert 20 <= len(code.splitlines()) <= 40


def test_texts_to_summarise_have_150_to_250_words(small: Tokenizer) -> None:
    assert all(150 <= len(text.partition("\n\n")[2].split()) <= 250 for text in texts("summarise", small))


def test_passages_are_numbered_and_followed_by_the_question(small: Tokenizer) -> None:
    for text in texts("rag", small):
        _, *passages, question = text.split("\n\n")
        assert [passage[:4] for passage in passages] == [f"[{number}] " for number in range(1, len(passages) + 1)]
        assert len(passages) in {2, 3}
        assert question.startswith("Question: ")
