"""Structured output in OpenAI's and vLLM's fields, and its grammar."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.sampling.grammar import JSON_OBJECT, Grammars
from bakeoff.reference_engine.serving.openai_api.fields import ChatFields, GenerationFields, ResponseFormat
from bakeoff.reference_engine.serving.openai_api.tools import Tools, tools_of

Wish = tuple[str, Callable[[Grammars, Any], str], Any]  # the field, its compiler, its value


def wishes_of(fields: GenerationFields) -> list[Wish]:
    """Every constraint in a body; more than one is a contradiction.

    Raises:
        RequestError: a format without its schema, or tools that are not as they must be.
    """
    options = fields.structured_outputs
    wishes: list[Wish] = [
        ("response_format", Grammars.of_json_schema, _schema_of(fields.response_format)),
        ("guided_json", Grammars.of_json_schema, fields.guided_json),
        ("guided_regex", Grammars.of_regex, fields.guided_regex),
    ]
    if options is not None:
        wishes += [
            ("structured_outputs.json", Grammars.of_json_schema, options.json),
            ("structured_outputs.regex", Grammars.of_regex, options.regex),
            ("structured_outputs.choice", Grammars.of_choice, options.choice),
            ("structured_outputs.json_object", Grammars.of_json_schema, JSON_OBJECT if options.json_object else None),
        ]
    tools = tools_of(fields) if isinstance(fields, ChatFields) else None
    if tools is not None and tools.forced is not None:
        wishes.append(("tool_choice", _of_forced_calls, tools))
    return [wish for wish in wishes if wish[2] is not None]


async def grammar_of(fields: GenerationFields, grammars: Grammars) -> str | None:
    """The compiled grammar of a checked body; None if the output is not constrained.

    Raises:
        RequestError: 400, naming the field and its error.
    """
    for param, compile_it, wish in wishes_of(fields):
        try:
            # Usually milliseconds, but a schema can be large; the library releases the interpreter lock.
            return await asyncio.to_thread(compile_it, grammars, wish)
        except RequestError as error:
            raise RequestError(str(error), param=param) from error
    return None


def _of_forced_calls(grammars: Grammars, tools: Tools) -> str:
    try:
        schema = tools.schema
    except RecursionError as error:
        raise RequestError("parameters of the tools are nested too deeply; make them flatter") from error
    return grammars.of_json_schema(schema)


def _schema_of(wanted: ResponseFormat | None) -> Mapping[str, Any] | bool | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return JSON_OBJECT
    if wanted.json_schema is None:
        raise RequestError("response_format of type json_schema needs json_schema.schema", param="response_format")
    return wanted.json_schema.schema
