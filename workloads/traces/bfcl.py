"""``bfcl``: questions with functions to call, of the Berkeley Function-Calling Leaderboard.

Patil et al., ICML 2025 (Apache-2.0). The right calls are in a file of their own, in ``possible_answer`` beside it;
without that file, any call that fits a function counts as right.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.checks import check_output_tokens
from bakeoff.workloads.traces.reading import bad, records
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.types import Check, Expected, ExpectedCalls, Message

_TYPES = {"dict": "object", "float": "number", "tuple": "array", "hashmap": "object", "any": None}
"""Type names of the leaderboard → those of JSON schemas; None for no type."""
_ANSWERS = "possible_answer"


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str


class _Function(msgspec.Struct, frozen=True):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class _Line(msgspec.Struct, frozen=True):
    id: str
    question: list[list[_Message]]
    function: list[_Function] = []


class _Answers(msgspec.Struct, frozen=True):
    id: str
    ground_truth: list[dict[str, dict[str, list[Any]]]]


class Bfcl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """JSON lines of question and function; answers are scored."""

    path: str
    """The file of JSON lines, plain or gzip."""
    answers: str | None = None
    """The file of right calls. Default: the file of the same name in ``possible_answer`` beside it, if it is there."""
    output_tokens: int = 512
    """Bound on each answer, which the model ends itself."""

    def __post_init__(self) -> None:
        check_output_tokens(self.output_tokens)

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        del seed  # the trace leaves nothing to chance
        right = self._right_calls()
        for row, line in records(self.path, msgspec.json.Decoder(_Line)):
            if len(line.question) != 1 or not line.function:
                raise bad(
                    self.path,
                    row,
                    f"has {len(line.question)} turns; only questions of one turn with functions can be scored",
                )
            if right is not None and line.id not in right:
                raise bad(
                    self.path, row, f"has no right calls in {self._answers_file()}; give the answers of this file"
                )
            yield self._row(line, None if right is None else right[line.id])

    def notes(self) -> list[str]:
        """How answers are scored."""
        scored = "the right calls" if self._answers_file() else "any call that fits one of the functions"
        return [f"bfcl: recorded questions with their functions; an answer is right if it makes {scored}"]

    def _row(self, line: _Line, right: list[dict[str, dict[str, list[Any]]]] | None) -> TraceRow:
        functions = {_name(function.name): _schema(function.parameters) for function in line.function}
        calls = None if right is None else [{_name(name): given for name, given in call.items()} for call in right]
        tools = [
            {
                "type": "function",
                "function": {
                    "name": _name(function.name),
                    "description": function.description,
                    "parameters": functions[_name(function.name)],
                },
            }
            for function in line.function
        ]
        expected = msgspec.json.encode(ExpectedCalls(functions, calls)).decode()
        return TraceRow(
            None,
            None,
            self.output_tokens,
            messages=tuple(Message(message.role, message.content) for message in line.question[0]),
            tools=msgspec.json.encode(tools).decode(),
            expected=Expected(Check.CALLS, expected),
        )

    def _answers_file(self) -> str | None:
        if self.answers is not None:
            return self.answers
        beside = Path(self.path).parent / _ANSWERS / Path(self.path).name
        return str(beside) if beside.is_file() else None

    def _right_calls(self) -> dict[str, list[dict[str, dict[str, list[Any]]]]] | None:
        file = self._answers_file()
        if file is None:
            return None
        return {answers.id: answers.ground_truth for _, answers in records(file, msgspec.json.Decoder(_Answers))}


def _name(name: str) -> str:
    """A function's name as APIs allow it."""
    return name.replace(".", "_")


def _schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema from the leaderboard's, whose types are those of Python."""
    schema = dict(parameters)
    if isinstance(kind := schema.get("type"), str) and kind.lower() in _TYPES:
        schema["type"] = _TYPES[kind.lower()]
        if schema["type"] is None:
            del schema["type"]
    if isinstance(schema.get("properties"), dict):
        schema["properties"] = {name: _schema(inner) for name, inner in schema["properties"].items()}
    if isinstance(schema.get("items"), dict):
        schema["items"] = _schema(schema["items"])
    return schema
