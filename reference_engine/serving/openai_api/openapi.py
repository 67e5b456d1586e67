"""GET /openapi.json: the server describes itself, in OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.0).

Everything is derived from the running code: paths and summaries from the router and the handlers' docstrings, bodies
and answers from the structs that decode and encode them.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from bakeoff.reference_engine.serving.openai_api.answers import (
    Answer,
    ChatChoice,
    ChatChunkChoice,
    ErrorAnswer,
    TextChoice,
)
from bakeoff.reference_engine.serving.openai_api.fields import NEUTRAL, ChatFields, CompletionFields

Schema = dict[str, Any]

_BODIES: dict[str, type[msgspec.Struct]] = {
    "/v1/completions": CompletionFields,
    "/v1/chat/completions": ChatFields,
}
_CHOICES: dict[str, tuple[type[msgspec.Struct], type[msgspec.Struct]]] = {
    "/v1/completions": (TextChoice, TextChoice),
    "/v1/chat/completions": (ChatChoice, ChatChunkChoice),
}
"""By path: the type of a whole answer's choices, and of those in an event of a stream."""
_TEXT = {"/metrics"}
_EMPTY = {"/health"}


def document(router: web.UrlDispatcher, version: str) -> Schema:
    """The whole document, ready for a JSON encoder.

    Args:
        router: with every route.
        version: of the server.
    """
    paths: dict[str, Schema] = {}
    for route in router.routes():
        if route.resource is not None and route.method != "HEAD":  # every GET has one
            path = route.resource.canonical
            paths.setdefault(path, {})[route.method.lower()] = _operation(path, route.handler.__doc__ or "")
    kinds = (*_BODIES.values(), Answer, ErrorAnswer, *dict.fromkeys(kind for two in _CHOICES.values() for kind in two))
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    for kind in _BODIES.values():
        _narrow(schemas[kind.__name__]["properties"])
    return {
        "openapi": "3.1.0",
        "info": {"title": "Bakeoff's reference engine", "version": version},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _narrow(properties: Schema) -> None:
    """Restricts fields that are not implemented to their harmless values and null."""
    for name in NEUTRAL.keys() & properties.keys():
        properties[name] = {"enum": [*NEUTRAL[name], None], "default": None}


def _operation(path: str, doc: str) -> Schema:
    operation: Schema = {"summary": doc.strip().partition("\n")[0], "responses": _responses(path)}
    if path in _BODIES:
        operation["requestBody"] = {"required": True, "content": _json(_reference(_BODIES[path]))}
    return operation


def _responses(path: str) -> Schema:
    """The responses of a path; errors are the same everywhere."""
    failure = _json(_reference(ErrorAnswer))
    return {
        "200": {"description": "Done", **_content(path)},
        "4XX": {"description": "The request is at fault; the message says how", "content": failure},
        "503": {"description": "The model is loading, or the server stops or has crashed", "content": failure},
    }


def _content(path: str) -> Mapping[str, Schema]:
    if path in _EMPTY:
        return {}
    if path in _TEXT:
        return {"content": {"text/plain": {"schema": {"type": "string"}}}}
    if path not in _CHOICES:
        return {"content": _json({"type": "object"})}
    whole, chunk = _CHOICES[path]
    events = f"One event per token, each {chunk.__name__} in an Answer, then [DONE]; where stream is true"
    # Without a type: some readers apply it to the text, others to each event (OpenAPI 3.2 supports both).
    stream = {"text/event-stream": {"schema": {"description": events}}}
    return {"content": _json(_answer(whole)) | stream}


def _answer(choice: type[msgspec.Struct]) -> Schema:
    choices = {"type": "array", "items": _reference(choice)}
    return {"allOf": [_reference(Answer), {"properties": {"choices": choices}}]}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _reference(kind: type[msgspec.Struct]) -> Schema:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
