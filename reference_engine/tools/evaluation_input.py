"""Input of an evaluation as tokens: pieces of a text, and the choices of multiple-choice questions."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bakeoff.reference_engine.core.files import read_text
from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.loading.tokenizer import Tokenizer

PIECE_TOKENS = 512
"""Tokens per piece of a text. Pieces do not see each other, so each is one observation of an interval."""


@dataclasses.dataclass(frozen=True, slots=True)
class TokenSequence:
    """Tokens, of which those at the end are predicted.

    Attributes:
        ids: all tokens.
        first: index of the first token whose successor is predicted.
    """

    ids: list[int]
    first: int


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """One multiple-choice question.

    Attributes:
        line: number of its line in the file, from 1.
        answer: index of the correct choice.
        choices: question and choice, of which the choice is predicted; one per choice.
        num_bytes: length of each choice in UTF-8.
    """

    line: int
    answer: int
    choices: list[TokenSequence]
    num_bytes: list[int]


class _QuestionLine(msgspec.Struct, frozen=True):
    """One line of a file of questions; other fields are ignored."""

    question: str
    choices: list[str]
    answer: int


def pieces_of(
    tokenizer: Tokenizer, text: str, max_tokens: int, piece_tokens: int = PIECE_TOKENS
) -> list[TokenSequence]:
    """Split a text into pieces.

    Tokens that the tokenizer puts before every text, such as a beginning-of-sequence token, begin each piece.
    Without such tokens, the first token of a piece is not predicted.

    Args:
        tokenizer: of the model.
        text: to split.
        max_tokens: tokens of the text to use, from its beginning.
        piece_tokens: tokens per piece; the last piece may be shorter.

    Raises:
        RequestError: there is nothing to predict.
    """
    if max_tokens < 2:
        raise RequestError(f"--max-tokens must be at least 2, not {max_tokens}")
    prefix = tokenizer.encode("")
    ids = tokenizer.encode(text, add_special_tokens=False)[:max_tokens]
    length = piece_tokens - len(prefix)
    first = max(0, len(prefix) - 1)
    pieces = [TokenSequence(prefix + ids[start : start + length], first) for start in range(0, len(ids), length)]
    pieces = [piece for piece in pieces if len(piece.ids) > first + 1]
    if not pieces:
        raise RequestError(f"a text of {len(ids)} tokens has nothing to predict; give a longer --text")
    return pieces


def questions_of(tokenizer: Tokenizer, path: Path, max_length: int) -> list[Question]:
    """Read questions from JSON lines with `question`, `choices` and `answer`, the index of the correct choice.

    A space separates question and choice unless the question ends with white space or the choice begins with it. The
    two are tokenised together. The choice's tokens are those after the longest beginning that they share with the
    tokens of the question alone, so that a token across the boundary counts as the choice's.

    Args:
        tokenizer: of the model.
        path: UTF-8 file.
        max_length: tokens of question and choice that the model can take.

    Raises:
        RequestError: the file cannot be read or is empty, or a line is malformed or too long; names file and line.
    """
    text = read_text(path).removesuffix("\n")
    if not text:
        raise RequestError(f"{path} is empty; give a line of JSON per question")
    # str.splitlines would also split at characters that JSON allows inside strings
    lines = enumerate(text.split("\n"), start=1)
    return [_question(tokenizer, line, number, f"{path}, line {number}", max_length) for number, line in lines]


def _question(tokenizer: Tokenizer, line: str, number: int, place: str, max_length: int) -> Question:
    try:
        entry = msgspec.json.decode(line, type=_QuestionLine)
    except msgspec.MsgspecError as error:
        raise RequestError(f"{place} is not a question: {error}") from error
    if len(entry.choices) < 2 or not all(choice.strip() for choice in entry.choices):
        raise RequestError(f"{place} is not a question: it needs two or more choices that are not empty")
    if not 0 <= entry.answer < len(entry.choices):
        raise RequestError(
            f"{place} is not a question: answer {entry.answer} is not the index of one of {len(entry.choices)} choices"
        )
    context = tokenizer.encode(entry.question)
    choices = [_continuation(tokenizer, context, entry.question, choice) for choice in entry.choices]
    longest = max(len(choice.ids) for choice in choices)
    if longest > max_length:
        raise RequestError(f"{place}: question and choice are {longest} tokens, the model takes {max_length}")
    if any(choice.first < 0 for choice in choices):
        raise RequestError(f"{place}: the question has no token before its choices; give a longer question")
    return Question(number, entry.answer, choices, [len(choice.encode()) for choice in entry.choices])


def _continuation(tokenizer: Tokenizer, context: Sequence[int], question: str, choice: str) -> TokenSequence:
    """Question and choice; `first` is -1 if they share no token with the question alone."""
    separator = "" if question[-1:].isspace() or choice[:1].isspace() else " "
    ids = tokenizer.encode(f"{question}{separator}{choice}")
    # At least one token is left to predict, even if the choice adds none of its own.
    longest = min(len(context), len(ids) - 1)
    shared = next((i for i in range(longest) if ids[i] != context[i]), longest)
    return TokenSequence(ids, shared - 1)
