"""The functions that a chat may call: checks them, and chooses how calls are asked for and found."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, cast

import msgspec

from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.serving.openai_api.fields import ChatFields
from bakeoff.reference_engine.serving.openai_api.tool_formats import LISTED, ToolFormat, call_of, tool_format_of

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class _Function(msgspec.Struct, frozen=True):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    parameters: dict[str, Any] | None = None


class _Tool(msgspec.Struct, frozen=True):
    type: Literal["function"]
    function: _Function


class _NamedFunction(msgspec.Struct, frozen=True):
    name: str


class _NamedTool(msgspec.Struct, frozen=True):
    type: Literal["function"]
    function: _NamedFunction


class Tools(NamedTuple):
    """The functions of one request.

    Attributes:
        schemas: of the arguments of each function, by its name.
        described: as the client sent them, for the template.
        forced: the function that must be called; "" for any one; None if the model may answer without a call.
        most: calls in one answer; None for any number.
    """

    schemas: Mapping[str, Mapping[str, Any]]
    described: Sequence[Mapping[str, Any]]
    forced: str | None
    most: int | None

    @property
    def schema(self) -> Mapping[str, Any]:
        """What an answer must match that must be a call, of `forced` or of any function."""
        if self.forced:
            return self.schemas[self.forced]
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": name}, "parameters": _moved(schema, number)},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
            for number, (name, schema) in enumerate(self.schemas.items())
        ]
        most = {} if self.most is None else {"maxItems": self.most}
        return {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}}

    def format_of(self, template: str | None) -> ToolFormat | None:
        """How calls stand in an answer; None if the template's way is not known.

        Args:
            template: of the model's chats.
        """
        if self.forced is None:
            return tool_format_of(template)
        return call_of(self.forced) if self.forced else LISTED


def tools_of(fields: ChatFields) -> Tools | None:
    """The functions that a chat may call; None if it may call none.

    Raises:
        RequestError: 400, naming the field, for functions that are not described as they must be, or a choice among
            functions that are not there.
    """
    choice = fields.tool_choice
    if not fields.tools or choice == "none":
        if choice not in (None, "none", "auto"):
            raise RequestError("tool_choice needs tools; give the functions, or leave it out", param="tool_choice")
        return None
    schemas: dict[str, Mapping[str, Any]] = {}
    for number, raw in enumerate(fields.tools):
        try:
            function = msgspec.convert(raw, _Tool).function
        except msgspec.ValidationError as error:
            raise RequestError(f"tools[{number}]: {error}", param="tools") from error
        if function.name in schemas:
            raise RequestError(f"tools[{number}]: there are two functions named {function.name}", param="tools")
        schemas[function.name] = function.parameters or _ANY_OBJECT
    forced = _forced(choice)
    if forced and forced not in schemas:
        raise RequestError(f"tool_choice names {forced}, which is not among the tools", param="tool_choice")
    return Tools(schemas, fields.tools, forced, 1 if fields.parallel_tool_calls is False else None)


def _forced(choice: object) -> str | None:
    if choice is None or choice == "auto":
        return None
    if choice == "required":
        return ""
    try:
        return msgspec.convert(choice, _NamedTool).function.name
    except msgspec.ValidationError as error:
        raise RequestError(
            'tool_choice must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}',
            param="tool_choice",
        ) from error


def _moved(schema: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """A schema whose references to its own parts are right where `Tools.schema` puts it."""
    place = f"#/items/anyOf/{number}/properties/parameters"

    def move(node: object) -> object:
        if isinstance(node, list):
            return [move(part) for part in cast("list[object]", node)]
        if not isinstance(node, dict):
            return node
        moved = {key: move(part) for key, part in cast("dict[str, object]", node).items()}
        target = moved.get("$ref")
        if isinstance(target, str) and target.startswith("#"):
            moved["$ref"] = f"{place}{target[1:]}"
        return moved

    return cast("Mapping[str, Any]", move(schema))


def with_parsed_arguments(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message for the template, which takes arguments of earlier calls as objects; clients send them as JSON."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_parsed(call) for call in cast("list[object]", calls)]}


def _with_parsed(call: object) -> object:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(arguments, str):
        return call
    try:
        return {**call, "function": {**function, "arguments": json.loads(arguments)}}
    except (ValueError, RecursionError):
        return call
