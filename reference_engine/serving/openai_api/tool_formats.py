"""How models write calls of functions into their answers: one format for each kind of chat template.

A scanner is a generator that gets one character of an answer after another. So calls can be passed on while they are
written, whatever pieces the text comes in, and each character is looked at once.
"""

import functools
import json
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

Scanner = Generator[None, str, str]
"""Returns the first character that is not its own; "" if it has read none."""

_BAR = "\uff5c"
_DEEPSEEK_CALLS = f"<{_BAR}tool▁calls▁begin{_BAR}>"
_BLANKS = frozenset(" \t\r\n")


class NotACallError(Exception):
    """What looked like a call is ordinary text."""


class CallPart(NamedTuple):
    """A piece of a call.

    Attributes:
        number: of the call in the answer, from 0.
        name: of the function, with the first piece; None with later ones.
        arguments: the next characters of the arguments, an object in JSON.
    """

    number: int
    name: str | None
    arguments: str


class Calls:
    """The calls of one answer, in the order in which a scanner finds them.

    Args:
        schemas: of the arguments of each function that may be called, by its name.
        most: calls to report; further ones are dropped. None for all.

    Attributes:
        schemas: as given.
        count: calls so far, dropped ones included.
    """

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]], most: int | None = None) -> None:
        self.schemas, self._most = schemas, most
        self.count: int = 0
        self._name: str | None = None
        self._arguments: list[str] = []
        self._done: list[CallPart] = []

    def begin(self, name: str) -> None:
        """A call whose function is known now."""
        self._close()
        self.count += 1
        self._name = name

    def add(self, arguments: str) -> None:
        """The next characters of the arguments of the latest call."""
        self._arguments.append(arguments)

    def take(self) -> list[CallPart]:
        """The pieces since the last call of this method."""
        self._close()
        parts, self._done = self._done, []
        return parts

    def _close(self) -> None:
        is_wanted = self._most is None or self.count <= self._most
        if is_wanted and (self._name is not None or self._arguments):
            self._done.append(CallPart(self.count - 1, self._name, "".join(self._arguments)))
        self._name, self._arguments = None, []


class ToolFormat(NamedTuple):
    """How a kind of model calls functions.

    Attributes:
        marks: texts that a chat template of this kind contains, all of them.
        begin: text before a call; "" if the answer as a whole is calls.
        end: text behind it; "" if none follows.
        scan: reads the calls between.
    """

    marks: tuple[str, ...]
    begin: str
    end: str
    scan: Callable[[Calls], Scanner]


def _blanks(char: str = " ") -> Scanner:
    """Skips blanks from `char` on."""
    while char in _BLANKS:
        char = yield
    return char


def _expect(wanted: str, char: str) -> None:
    if char != wanted:
        raise NotACallError


def _until(end: str) -> Scanner:
    """The text before `end`, which is passed over."""
    text: list[str] = []
    tail = ""
    while tail != end:
        char = yield
        text.append(char)
        tail = (tail + char)[-len(end) :]
    return "".join(text)[: -len(end)]


def _string() -> Scanner:
    """A JSON string whose first quote was read, in JSON."""
    text = ['"']
    char = ""
    while char != '"':
        char = yield
        text.append(char)
        if char == "\\":
            text.append((yield))
    return "".join(text)


def _decoded(string: str) -> str:
    try:
        return json.loads(string, strict=False)
    except ValueError as error:
        raise NotACallError from error


def _value(char: str, add: Callable[[str], None]) -> Scanner:
    """A JSON value that begins with `char`, passed to `add` as it comes.

    Returns:
        The character behind it, if only that shows where a number or a word ends.
    """
    if char == '"':
        add((yield from _string()))
        return ""
    if char not in "{[":
        while char not in _BLANKS and char not in ",}]":
            add(char)
            char = yield
        return char
    depth = 0
    while True:
        if char == '"':
            add((yield from _string()))
        else:
            add(char)
            depth += (char in "{[") - (char in "}]")
            if not depth:
                return ""
        char = yield


def _skip(_: str) -> None:
    return


def _object(calls: Calls, *, is_known: bool = False) -> Scanner:
    """An object with the name of a function and its arguments, whose first brace was read.

    Args:
        calls: gets the call.
        is_known: whether other names than those of the functions make it no call.
    """
    is_begun = has_arguments = False
    early: list[str] = []  # arguments that come before the name
    char = " "
    while (char := (yield from _blanks(char))) != "}":
        if char == ",":
            char = " "
            continue
        _expect('"', char)
        key = _decoded((yield from _string()))
        _expect(":", (yield from _blanks()))
        char = yield from _blanks()
        if key == "name":
            _expect('"', char)
            name = _decoded((yield from _string()))
            if is_known and name not in calls.schemas:
                raise NotACallError
            calls.begin(name)
            calls.add("".join(early))
            is_begun, unread = True, ""
        elif key in ("arguments", "parameters"):
            has_arguments = True
            unread = yield from _arguments(char, calls.add if is_begun else early.append)
        else:
            unread = yield from _value(char, _skip)
        char = unread or " "
    if not is_begun:
        raise NotACallError
    if not has_arguments:
        calls.add("{}")
    return ""


def _arguments(char: str, add: Callable[[str], None]) -> Scanner:
    """The value of arguments: an object, or one as JSON in a string, or null."""
    if char == '"':
        add(_decoded((yield from _string())))
        return ""
    if char == "n":
        add("{}")
        return (yield from _value(char, _skip))
    return (yield from _value(char, add))


def _objects(calls: Calls, char: str = " ") -> Scanner:
    """Objects, or a list of them; see `_object`."""
    char = yield from _blanks(char)
    is_list = char == "["
    if is_list:
        char = yield from _blanks()
    _expect("{", char)
    while char == "{":
        yield from _object(calls)
        if not is_list:
            return ""
        char = yield from _blanks()
        if char == ",":
            char = yield from _blanks()
    _expect("]", char)
    return ""


def _llama(calls: Calls) -> Scanner:
    """Objects without anything around them, perhaps behind a mark; other objects are ordinary text."""
    char = yield from _blanks()
    if char == "<":
        for wanted in "|python_tag|>":
            _expect(wanted, (yield))
        char = yield from _blanks()
    while True:
        _expect("{", char)
        yield from _object(calls, is_known=True)
        char = yield from _blanks()
        if char != ";":
            return char
        char = yield from _blanks()


def _named(calls: Calls, name: str, char: str = " ") -> Scanner:
    """The arguments of a function that was named before."""
    char = yield from _blanks(char)
    _expect("{", char)
    calls.begin(name.strip())
    return (yield from _value(char, calls.add))


def _mistral(calls: Calls) -> Scanner:
    """A list of objects, or a name, perhaps marks in brackets and a call's id, and arguments."""
    char = yield from _blanks()
    if char in ("[", "{"):
        return (yield from _objects(calls, char))
    name: list[str] = []
    while char not in "[{":
        name.append(char)
        char = yield
    while char == "[":
        yield from _until("]")
        char = yield
        while char not in "[{":
            char = yield
    return (yield from _named(calls, "".join(name), char))


def _deepseek(calls: Calls) -> Scanner:
    """Calls with a mark before and behind each; V3 writes the kind of the tool before its name, later ones do not."""
    while True:
        before = yield from _until(f"{_BAR}>")
        if before.endswith("calls▁end"):
            return ""
        if not before.endswith("call▁begin"):
            continue
        name = yield from _until(f"<{_BAR}tool▁sep{_BAR}>")
        if name.strip() == "function":
            name = yield from _until("\n")
        char = " "
        while char != "{":  # V3 writes a fence around the arguments
            char = yield
        yield from _named(calls, name, char)


def _tagged(calls: Calls) -> Scanner:
    """A function and its parameters in tags, as Qwen3-Coder writes them; the schema says what is no string."""
    yield from _until("<function=")
    name = (yield from _until(">")).strip()
    properties = calls.schemas.get(name, {}).get("properties") or {}
    calls.begin(name)
    is_first = True
    while True:
        kind = yield from _until(">")
        if kind.strip() == "</function":
            calls.add("{}" if is_first else "}")
            return ""
        key = kind.partition("<parameter=")[2]
        text = (yield from _until("</parameter>")).removeprefix("\n").removesuffix("\n")
        calls.add(f"{'{' if is_first else ', '}{json.dumps(key)}: {_typed(text, properties.get(key))}")
        is_first = False


def _typed(text: str, schema: object) -> str:
    """A parameter in JSON: a string where the schema says so or the text is no JSON."""
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    if kinds == "string":
        return json.dumps(text, ensure_ascii=False)
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
    return text


FORMATS = (
    ToolFormat(("<tool_call>", "<function="), "<tool_call>", "</tool_call>", _tagged),  # Qwen3-Coder
    ToolFormat(("<tool_call>",), "<tool_call>", "</tool_call>", _objects),  # Hermes, Qwen2.5, Qwen3, SmolLM3
    ToolFormat(("[TOOL_CALLS]",), "[TOOL_CALLS]", "", _mistral),
    ToolFormat((_DEEPSEEK_CALLS,), _DEEPSEEK_CALLS, "", _deepseek),
    ToolFormat(("<|tool|>",), "<|tool_call|>", "<|/tool_call|>", _objects),  # Phi-4-mini
    ToolFormat(("<|python_tag|>",), "", "", _llama),  # Llama 3.1
    ToolFormat(('"parameters"',), "", "", _llama),  # Llama 3.2
)
"""The first one whose marks a template contains is its format."""


def tool_format_of(template: str | None) -> ToolFormat | None:
    """The format that a chat template teaches; None if it has no place for functions, or an unknown one."""
    if template is None or "tools" not in template:
        return None
    return next((form for form in FORMATS if all(mark in template for mark in form.marks)), None)


LISTED = ToolFormat((), "", "", _objects)
"""An answer that is a list of calls, as a grammar makes it."""


def call_of(name: str) -> ToolFormat:
    """An answer that is the arguments of one function, as a grammar makes it."""
    return ToolFormat((), "", "", functools.partial(_named, name=name))
