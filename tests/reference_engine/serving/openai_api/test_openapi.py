import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.serving.openai_api.fields import ChatFields, CompletionFields
from bakeoff.reference_engine.serving.openai_api.openapi import document
from bakeoff.reference_engine.serving.openai_api.parsing import parse_body
from bakeoff.reference_engine.serving.server import make_app
from bakeoff.reference_engine.serving.service import Service
from tests.reference_engine.server_calls import CHAT, HELLO, TEXT, with_server

APP = make_app(Service(EngineConfig(model="tiny")))
DOCUMENT = document(APP.router, "1.2.3")
KINDS = {TEXT: CompletionFields, CHAT: ChatFields}


def validator(*path):
    """Of the schema at a place in the document."""
    schema = DOCUMENT
    for step in path:
        schema = schema[step]
    kind = jsonschema.Draft202012Validator
    return kind({"$ref": "#/it", "it": schema, "components": DOCUMENT["components"]})


def body_validator(path):
    return validator("paths", path, "post", "requestBody", "content", "application/json", "schema")


def all_schemas(node):
    if isinstance(node, dict):
        yield from ([node["schema"]] if "schema" in node and "$ref" not in node else [])
        for value in node.values():
            yield from all_schemas(value)


def references(node):
    if isinstance(node, dict):
        yield from ([node["$ref"]] if "$ref" in node else [])
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_it_names_every_route_with_its_method():
    served = {(route.method.lower(), route.resource.canonical) for route in APP.router.routes()}
    described = {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert described == {(method, path) for method, path in served if method != "head"}
    assert {("post", TEXT), ("post", CHAT), ("get", "/openapi.json")} <= described


def test_it_is_openapi_3_1():
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"]["version"] == "1.2.3"
    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            assert operation["summary"].endswith(".")
            assert all(answer["description"] for answer in operation["responses"].values())
    for schema in [*DOCUMENT["components"]["schemas"].values(), *all_schemas(DOCUMENT["paths"])]:
        jsonschema.Draft202012Validator.check_schema(schema)
    named = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert set(references(DOCUMENT)) <= named


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, {"prompt": "hello", "max_tokens": 3, "watermark": {"delta": 2.0, "gamma": 0.25, "key": 15485863}}),
        (TEXT, {"prompt": ["hello", [5, 6]], "max_tokens": 3, "n": 2, "logprobs": 2, "return_token_ids": True}),
        (CHAT, {"messages": HELLO, "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "stop": ["x"], "tools": []}),
    ],
)
def test_what_is_asked_and_answered_is_as_described(serve, path, body):
    async def test(s):
        body_validator(path).validate(body)
        content = ("paths", path, "post", "responses", "200", "content", "application/json", "schema")
        validator(*content).validate(await s.post(path, body))
        content = ("paths", path, "post", "responses", "4XX", "content", "application/json", "schema")
        validator(*content).validate(await s.post(path, {"no": "such"}, status=400))
        async with s.client.get("/openapi.json") as answer:
            assert answer.content_type == "application/json"
            assert (await answer.json())["paths"] == DOCUMENT["paths"]

    with_server(serve, test)


VALUES = st.none() | st.booleans() | st.integers(-200, 200) | st.floats(-3, 3) | st.text(max_size=3) | st.just([])
NESTED = VALUES | st.lists(VALUES, max_size=3) | st.dictionaries(st.text(max_size=3), VALUES, max_size=2)


@given(st.data(), st.sampled_from([TEXT, CHAT]))
def test_a_body_that_the_document_forbids_is_refused(data, path):
    kind = KINDS[path]
    required = {"prompt": "x"} if path == TEXT else {"messages": HELLO}
    # What prompts and messages hold is looked at when they are tokenised: test_server_mistakes.py.
    name = data.draw(st.sampled_from([name for name in kind.__struct_fields__ if name not in required]))
    body = required | {name: data.draw(NESTED)}
    if not body_validator(path).is_valid(body):
        with pytest.raises(RequestError):
            parse_body(json.dumps(body).encode(), kind)
