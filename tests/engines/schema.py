"""Validates bodies against an OpenAPI document: names, types, bounds and required fields, as far as our specs use them.

Unknown names are errors too: an engine that ignores them would never report a misspelt name.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SPECS = Path(__file__).parents[3] / "shared" / "protocols" / "specs"
_TYPES: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict,
                          "array": list, "null": type(None)}  # fmt: skip


def load_spec(name: str) -> dict[str, Any]:
    """A published document; skips the test if it is not on this machine."""
    if not (SPECS / name).is_file():
        pytest.skip(f"{name} is not on this machine")
    return json.loads((SPECS / name).read_text(encoding="utf-8"))


def body_problems(spec: dict[str, Any], path: str, body: bytes) -> list[str]:
    """The errors in the body of a POST to ``path``."""
    content = spec["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return problems(json.loads(body), content["schema"], spec)


def problems(value: Any, schema: dict[str, Any], spec: dict[str, Any], at: str = "body") -> list[str]:
    """The errors in ``value``."""
    parts = [_followed(part, spec) for part in _parts(schema, spec)]
    names = {name for part in parts for name in part.get("properties", {})}
    closed = bool(names) and not any(part.get("additionalProperties") for part in parts)
    unknown = [name for name in value if name not in names] if isinstance(value, dict) and closed else []
    return [*(f"{at}.{name} is unknown" for name in unknown), *_wrong(value, schema, spec, at)]


def _wrong(value: Any, schema: dict[str, Any], spec: dict[str, Any], at: str) -> Iterator[str]:
    schema = _followed(schema, spec)
    if value is None and schema.get("nullable"):
        return
    for part in schema.get("allOf", ()):
        yield from _wrong(value, part, spec, at)
    choices = [list(_wrong(value, part, spec, at)) for part in (*schema.get("oneOf", ()), *schema.get("anyOf", ()))]
    if choices and all(choices):
        yield from min(choices, key=len)
    kind = schema.get("type")
    if kind and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind in {"integer", "number"})):
        yield f"{at} is no {kind}"
        return
    least, above = schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf)
    if kind in {"integer", "number"} and (value < least or value <= above):
        yield f"{at} is too small"
    if value not in schema.get("enum", [value]):
        yield f"{at} is none of {schema['enum']}"
    yield from _wrong_inside(value, schema, spec, at)


def _wrong_inside(value: Any, schema: dict[str, Any], spec: dict[str, Any], at: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{at} lacks {name}" for name in schema.get("required", ()) if name not in value)
        for name, inner in schema.get("properties", {}).items():
            yield from problems(value[name], inner, spec, f"{at}.{name}") if name in value else ()
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from problems(item, schema["items"], spec, f"{at}[{number}]")


def _parts(schema: dict[str, Any], spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema and all schemas of which it is composed."""
    schema = _followed(schema, spec)
    yield schema
    for kind in ("allOf", "oneOf", "anyOf"):
        for part in schema.get(kind, ()):
            yield from _parts(part, spec)


def _followed(schema: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = spec["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema
