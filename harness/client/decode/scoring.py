"""Whether an answer is right: its number, its JSON, or its calls of functions.

Numbers follow GSM8K (Cobbe et al. 2021: the answer stands behind ``####``), calls the Berkeley Function-Calling
Leaderboard (Patil et al. 2025). Both come as they stand in the answer, so a server that cuts reasoning or calls out of
the text is judged as its users see it.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from bakeoff.engines.dialects.failures import UNREADABLE
from bakeoff.engines.dialects.values import mapping, text
from bakeoff.workloads.types import Check, Expected, ExpectedCalls

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?|-?\$?\.\d+")
_MARKED = re.compile(r"####\s*([^\n]*)|\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,\\!|\\,|[\u00a0\u2009\u202f])(?=\d{3})")
"""What LaTeX and typographers put between thousands."""
_LENGTH = frozenset({"length", "max_tokens", "max_output_tokens", "limit"})
"""Finish reasons of an answer that its bound cut."""


class Call(msgspec.Struct, frozen=True):
    """A call of a function."""

    name: str
    arguments: dict[str, Any]


class Answer(msgspec.Struct, frozen=True):
    """What is scored of an answer.

    Attributes:
        text: without reasoning.
        call_pieces: streamed pieces of its calls, in the form of their dialect.
        finish: reason of its end.
    """

    text: str
    call_pieces: list[str]
    finish: str

    @property
    def is_cut(self) -> bool:
        """Whether its bound ended it."""
        return self.finish.lower() in _LENGTH


def is_right(expected: Expected, answer: Answer) -> bool | None:
    """Whether an answer is right; one that its bound cut is wrong, and JSON that was cut is not judged (None)."""
    match expected.check:
        case Check.NUMBER:
            found = last_number(answer.text)
            return found is not None and not answer.is_cut and found == _decimal(expected.value)
        case Check.SCHEMA:
            return None if answer.is_cut else _follows(answer.text, expected.value)
        case Check.CALLS:
            return not answer.is_cut and are_right(
                calls_of(answer), msgspec.json.decode(expected.value, type=ExpectedCalls)
            )


def last_number(words: str) -> Decimal | None:
    """The number behind the last mark of an answer, else the last number of the text; None if there is none.

    Behind a mark it is the first number, or the first one behind the last ``=``.
    """
    words = _THOUSANDS.sub(",", words)
    marked = [first or second for first, second in _MARKED.findall(words)]
    for place in reversed(marked):
        if numbers := _NUMBER.findall(place.rpartition("=")[2]) or _NUMBER.findall(place):
            return _decimal(numbers[0])
    return _decimal((_NUMBER.findall(words) or [""])[-1])


def calls_of(answer: Answer) -> list[Call] | None:
    """The calls of an answer: streamed as calls, else written in its text; None if one has no readable arguments."""
    found: list[tuple[str, Any]] = list(_streamed(answer.call_pieces)) or [
        (text(value.get("name")), value.get("arguments", value.get("parameters")))
        for value in _objects(answer.text)
        if text(value.get("name")) and {"arguments", "parameters"} & value.keys()
    ]
    calls: list[Call] = []
    for name, arguments in found:
        given = arguments
        if isinstance(given, str):
            try:
                given = msgspec.json.decode(given or "{}")
            except UNREADABLE:
                return None
        if not isinstance(given, dict):
            return None
        calls.append(Call(name, given))
    return calls


def are_right(calls: Sequence[Call] | None, expected: ExpectedCalls) -> bool:
    """Whether calls fit their functions, and are the expected ones, in any order."""
    if not calls or not all(_fits(call, expected.functions) for call in calls):
        return False
    if expected.calls is None:
        return True
    open_calls = list(expected.calls)
    for call in calls:
        match = next((wanted for wanted in open_calls if _matches(call, wanted)), None)
        if match is None:
            return False
        open_calls.remove(match)
    return not open_calls


class _Streamed(msgspec.Struct):
    """A call of a chat, as far as its pieces have come."""

    id: str = ""
    name: str = ""
    arguments: str = ""

    def is_followed_by(self, call_id: str, name: str, arguments: str) -> bool:
        """Whether a piece at the same index begins another call, as some servers number all of them 0."""
        has_other_id = bool(call_id and self.id) and call_id != self.id
        return bool(name) and (has_other_id or bool(arguments)) and _is_whole(self.arguments, if_empty=has_other_id)


def _is_whole(arguments: str, *, if_empty: bool) -> bool:
    try:
        return isinstance(msgspec.json.decode(arguments), dict) if arguments else if_empty
    except UNREADABLE:
        return False


def _streamed(pieces: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Name and arguments of each call of a chat, whose pieces belong together by their index."""
    calls, at_key = list[_Streamed](), dict[Any, _Streamed]()
    last: Any = 0
    for piece in pieces:
        try:
            decoded = msgspec.json.decode(piece)
        except UNREADABLE:
            continue
        for number, part in enumerate(decoded if isinstance(decoded, list) else [{"function": decoded}]):
            row = mapping(part)
            key = last = row.get("index", row.get("id") or (number or last))
            function, call_id = mapping(row.get("function")), text(row.get("id"))
            name, given = text(function.get("name")), function.get("arguments")
            arguments = msgspec.json.encode(given).decode() if isinstance(given, dict) else text(given)
            call = at_key.get(key)
            if call is None or call.is_followed_by(call_id, name, arguments):
                call = at_key[key] = _Streamed()
                calls.append(call)
            call.id = call.id or call_id
            call.name += "" if name == call.name else name  # some servers repeat it in every piece
            call.arguments += arguments
    return [(call.name, call.arguments) for call in calls]


def _objects(words: str) -> Iterable[Mapping[str, Any]]:
    """The JSON objects in a text, outermost ones, as models write calls where no parser of the server takes them."""
    decoder, place = json.JSONDecoder(), 0
    while (place := words.find("{", place)) >= 0:
        try:
            value, place = decoder.raw_decode(words, place)
        except (ValueError, RecursionError):
            place += 1
            continue
        if isinstance(value, dict):
            yield value


def _fits(call: Call, functions: Mapping[str, Any]) -> bool:
    schema = functions.get(call.name)
    return schema is not None and not any(_validator(msgspec.json.encode(schema)).iter_errors(call.arguments))


def _matches(call: Call, wanted: Mapping[str, Mapping[str, list[Any]]]) -> bool:
    parameters = wanted.get(call.name)
    if parameters is None or not call.arguments.keys() <= parameters.keys():
        return False
    return all(
        any(_equal(call.arguments[name], value) for value in values) if name in call.arguments else "" in values
        for name, values in parameters.items()
    )


def _equal(given: Any, wanted: Any) -> bool:  # noqa: ANN401  (any JSON value)
    """Whether two values are equal; texts without case, spaces and punctuation, as BFCL compares them."""
    if isinstance(given, str) and isinstance(wanted, str):
        return _plain(given) == _plain(wanted)
    if isinstance(given, list) and isinstance(wanted, list):
        return len(given) == len(wanted) and all(map(_equal, given, wanted))
    if isinstance(given, dict) and isinstance(wanted, dict):
        allowed = all(any(_equal(given[name], value) for value in _several(wanted.get(name))) for name in given)
        return allowed and all(name in given or "" in _several(values) for name, values in wanted.items())
    return type(given) is type(wanted) and given == wanted if isinstance(given, bool) else given == wanted


def _several(values: Any) -> list[Any]:  # noqa: ANN401
    return values if isinstance(values, list) else [values]


def _plain(words: str) -> str:
    return re.sub(r"[ ,./\-_*^]", "", words).lower().replace("'", '"')


def _follows(words: str, schema: str) -> bool:
    try:
        value = msgspec.json.decode(words.strip())
    except UNREADABLE:
        return False
    return not any(_validator(schema.encode()).iter_errors(value))


@lru_cache(maxsize=1024)
def _validator(schema: bytes) -> "Validator":
    from jsonschema.validators import Draft202012Validator, validator_for  # noqa: PLC0415  (slow, and rarely needed)

    decoded = msgspec.json.decode(schema)
    return validator_for(decoded, default=Draft202012Validator)(decoded)


def _decimal(words: str) -> Decimal | None:
    try:
        return Decimal(words.replace(",", "").replace("$", "").strip().rstrip("."))
    except InvalidOperation:
        return None
