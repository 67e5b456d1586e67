"""Which answers are right."""

import json
from typing import Any

import pytest

from bakeoff.harness.client.decode.scoring import Answer, is_right
from bakeoff.workloads.types import Check, Expected

SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
AREA = {"type": "object", "properties": {"base": {"type": "number"}, "unit": {"type": "string"}}, "required": ["base"]}
RIGHT_CALL = {"area": {"base": [3, 3.0], "unit": ["square m", ""]}}


def right(check: Check, value: str, text: str = "", *pieces: Any, finish: str = "stop") -> bool | None:
    return is_right(Expected(check, value), Answer(text, [json.dumps(piece) for piece in pieces], finish))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so 3 + 4 = 7.\n#### 7", True), ("#### $1,007", False), ("It is 7", True), ("7 apples, not 8", False),
        ("#### 7\nI used 3 steps.", True), ("the answer is \\boxed{7}", True), ("7.0", True), ("-7", False),
        ("#### seven, so 7", True), ("none", False), ("", False), ("#### 6\nNo: #### 7", True),
        ("#### 3 + 4 = 7", True), ("#### 7 in 3 steps", True), ("\\boxed{7\\text{ dollars}} in 3 steps", True),
    ],
)  # fmt: skip
def test_a_number_is_the_marked_one_or_the_last(text: str, expected: bool) -> None:
    assert right(Check.NUMBER, "7", text) is expected


@pytest.mark.parametrize("text", ["70,000", "\\boxed{70{,}000}", "70\u202f000", "\\boxed{70,\\!000}", "$70,000.00"])
def test_thousands_are_separated_in_many_ways(text: str) -> None:
    assert right(Check.NUMBER, "70000", text) is True


def test_nothing_is_not_a_number_and_a_cut_answer_is_wrong() -> None:
    assert right(Check.NUMBER, "eighteen", "I do not know") is False
    assert right(Check.NUMBER, "7", "First, 7", finish="length") is False


@pytest.mark.parametrize(
    ("text", "expected"), [('{"a": 1}', True), (' {"a": 1}\n', True), ('{"a": "1"}', False), ("{", False), ("", False)]
)
def test_json_follows_its_schema(text: str, expected: bool) -> None:
    assert right(Check.SCHEMA, SCHEMA, text) is expected
    assert right(Check.SCHEMA, SCHEMA, text, finish="length") is None


def call(name: str, arguments: str, index: int = 0) -> list[Any]:
    """A call in two pieces, as servers stream it."""
    first = [{"index": index, "id": "t", "function": {"name": name, "arguments": arguments[:4]}}]
    return [first, [{"index": index, "function": {"arguments": arguments[4:]}}]]


@pytest.mark.parametrize(
    ("arguments", "fits", "matches"),
    [
        ('{"base": 3, "unit": "Square-M"}', True, True), ('{"base": 3}', True, True), ('{"base": 4}', True, False),
        ('{"base": "3"}', False, False), ('{"unit": "m"}', False, False), ("{", False, False),
        ('{"base": 3, "unit": "foot"}', True, False),
    ],
)  # fmt: skip
def test_a_call_fits_its_function_and_is_the_expected_one(arguments: str, fits: bool, matches: bool) -> None:
    any_call = json.dumps({"functions": {"area": AREA}})
    assert right(Check.CALLS, any_call, "", *call("area", arguments)) is fits
    this_call = json.dumps({"functions": {"area": AREA}, "calls": [RIGHT_CALL]})
    assert right(Check.CALLS, this_call, "", *call("area", arguments)) is matches


def test_calls_come_in_any_order_and_all_of_them() -> None:
    both = [{"area": {"base": [1]}}, {"area": {"base": [2]}}]
    expected = json.dumps({"functions": {"area": AREA}, "calls": both})
    first, second = call("area", '{"base": 2}'), call("area", '{"base": 1}', index=1)
    assert right(Check.CALLS, expected, "", *first, *second) is True
    assert right(Check.CALLS, expected, "", *first) is False
    assert right(Check.CALLS, expected, "", *first, *second, *call("area", '{"base": 1}', index=2)) is False


def test_two_calls_at_one_index_are_two() -> None:
    both = [{"area": {"base": [1]}}, {"area": {"base": [2]}}]
    expected = json.dumps({"functions": {"area": AREA}, "calls": both})

    def whole(base: int, call_id: str | None) -> list[Any]:
        named = {"index": 0, "function": {"name": "area", "arguments": f'{{"base": {base}}}'}}
        return [named if call_id is None else named | {"id": call_id}]

    assert right(Check.CALLS, expected, "", whole(2, "c1"), whole(1, "c2")) is True
    assert right(Check.CALLS, expected, "", whole(2, None), whole(1, None)) is True, "a name behind complete arguments"


def test_pieces_may_repeat_the_name_and_calls_may_lack_their_index() -> None:
    both = json.dumps({"functions": {"area": AREA}, "calls": [{"area": {"base": [1]}}, {"area": {"base": [2]}}]})
    once = json.dumps({"functions": {"area": AREA}, "calls": [{"area": {"base": [1]}}]})
    named = [[{"index": 0, "function": {"name": "area", "arguments": part}}] for part in ('{"base"', ": 1}")]
    assert right(Check.CALLS, once, "", *named) is True
    whole = [[{"id": f"t{n}", "function": {"name": "area", "arguments": f'{{"base": {n}}}'}}] for n in (1, 2)]
    assert right(Check.CALLS, both, "", *whole) is True


def test_calls_are_also_read_from_the_text() -> None:
    """A server without a parser of calls leaves them where the model wrote them."""
    expected = json.dumps({"functions": {"area": AREA}})
    written = '<tool_call>\n{"name": "area", "arguments": {"base": 3}}\n</tool_call>'
    assert right(Check.CALLS, expected, written) is True
    assert right(Check.CALLS, expected, written.replace("area", "volume")) is False
    assert right(Check.CALLS, expected, "I cannot call {anything}") is False
