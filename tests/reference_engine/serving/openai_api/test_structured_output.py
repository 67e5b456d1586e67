"""Output that must match a schema, a pattern or a choice, made by a model that knows nothing of any of them."""

import json
import re

import jsonschema
import numpy as np
import pytest
from llguidance import LLParserLimits

from bakeoff.reference_engine.core.request import FinishReason, Request, SamplingParams
from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.loading.checkpoint import open_checkpoint
from bakeoff.reference_engine.offline import generate
from bakeoff.reference_engine.sampling import grammar as grammar_module
from bakeoff.reference_engine.sampling.grammar import JSON_OBJECT, Grammars
from tests.reference_engine.server_calls import CHAT, HELLO, TEXT, is_idle, with_server

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", None, True]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SCHEMAS = [
    PERSON,
    {"type": "boolean"},
    {"enum": ["Zürich", "東京", 7]},
    {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4}]},
]
PATTERNS = [r"\d{3}-[a-z]{2,5}", r"(foo|bar)+!{1,2}", r"[äöü]{4}", r"\w{1,9}@\w{1,9}\.(com|org)"]
EOS = {0, 2}


@pytest.fixture(scope="module")
def tokenizer(checkpoint_dir):
    return open_checkpoint(checkpoint_dir).tokenizer


@pytest.fixture(scope="module")
def grammars(tokenizer):
    return Grammars(tokenizer, 266, EOS)


def texts(engine, tokenizer, grammar, count=8, tokens=230):
    """Texts of requests that ended by themselves, drawn at a high temperature, and the number of those that did not."""
    params = [
        SamplingParams(max_tokens=tokens, temperature=1.5, seed=seed, grammar=grammar, stop_token_ids=frozenset(EOS))
        for seed in range(count)
    ]
    outputs = generate(engine, [[5, 6, 7]] * count, params)
    ended = [output for output in outputs if output[-1] in EOS]
    assert all(not EOS & set(output[:-1]) for output in ended)
    return [tokenizer.decode(output[:-1]) for output in ended], count - len(ended)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: next(iter(schema)))
def test_texts_of_a_random_model_match_the_schema(tiny_engine, tokenizer, grammars, schema):
    outputs, endless = texts(tiny_engine(), tokenizer, grammars.of_json_schema(schema))
    for text in outputs:
        jsonschema.validate(json.loads(text), schema)
    assert len(outputs) > endless  # blanks between JSON tokens may use up the limit


def test_any_json_object_is_an_object(tiny_engine, tokenizer, grammars):
    outputs, _ = texts(tiny_engine(), tokenizer, grammars.of_json_schema(JSON_OBJECT), count=16)
    assert outputs
    assert all(isinstance(json.loads(text), dict) for text in outputs)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_of_a_random_model_match_the_pattern_from_end_to_end(tiny_engine, tokenizer, grammars, pattern):
    outputs, endless = texts(tiny_engine(), tokenizer, grammars.of_regex(pattern), count=20)
    assert not endless
    assert all(re.fullmatch(pattern, text) for text in outputs)
    assert len(set(outputs)) > 4


def test_a_choice_is_one_of_its_texts(tiny_engine, tokenizer, grammars):
    choices = ["yes", "no", 'a "quoted"\nline', "ünï"]
    outputs, endless = texts(tiny_engine(), tokenizer, grammars.of_choice(choices), count=24)
    assert not endless
    assert set(outputs) <= set(choices)
    assert len(set(outputs)) > 2


def test_preempted_requests_go_on_where_they_were(tiny_engine, tokenizer, grammars):
    engine = tiny_engine(num_blocks=12, block_size=8, enable_prefix_caching=False)
    outputs, endless = texts(engine, tokenizer, grammars.of_regex("(ab|cd){20,30}"), tokens=80)
    assert engine.preemptions > 0
    assert not endless
    assert all(re.fullmatch("(ab|cd){20,30}", text) for text in outputs)


def allowed(state, token_ids):
    state.follow(token_ids, 0)
    words = np.zeros(9, np.int32)
    state.fill(words)
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def test_the_end_is_allowed_exactly_where_the_grammar_allows_it(tokenizer, grammars):
    state = grammars.start(grammars.of_regex("ab?"))
    a, b = tokenizer.encode("ab")
    assert allowed(state, []) == {a}
    assert allowed(state, [a]) == {b} | EOS
    assert allowed(state, [a, b]) == EOS


def test_the_latest_grammars_stay_compiled(tokenizer):
    grammars = Grammars(tokenizer, 266, EOS)
    first, *later = [grammars.of_regex(f"a{{{count}}}") for count in range(1, 129)]
    grammars.compile(first)
    extra = grammars.of_regex("b")
    assert [grammars.is_compiled(source) for source in (first, later[0], later[1], extra)] == [
        True,
        False,
        True,
        True,
    ]


def test_states_of_one_grammar_do_not_know_each_other(tokenizer, grammars):
    grammar = grammars.of_regex("ab|cd")
    first, second = grammars.start(grammar), grammars.start(grammar)
    a, b, c = tokenizer.encode("abc")
    assert allowed(first, [a]) == {b}
    assert allowed(second, []) == {a, c}


def test_a_greedy_request_beside_a_bound_one_is_left_alone(tiny_engine, grammars):
    engine = tiny_engine()
    free = SamplingParams(max_tokens=6, temperature=0.0)
    bound = SamplingParams(max_tokens=6, temperature=0.0, grammar=grammars.of_regex("x{9}"))
    alone = generate(engine, [[5, 6]], [free])[0]
    together = generate(engine, [[5, 6], [5, 6]], [bound, free])
    assert together[1] == alone
    assert set(together[0]) == {together[0][0]} != set(alone)


@pytest.mark.parametrize(
    ("compile_it", "message"),
    [
        (lambda g: g.of_regex("(ab"), "the regular expression cannot be used: unclosed group"),
        (lambda g: g.of_regex("(?=a)b"), "look-around"),
        (lambda g: g.of_json_schema("{"), "the JSON schema cannot be read"),
        (lambda g: g.of_json_schema({"type": "objec"}), "the JSON schema cannot be used: Invalid type: objec"),
        (lambda g: g.of_json_schema({"not": {}}), 'Unimplemented keys: ["not"]'),
        (lambda g: g.of_json_schema({"type": "integer", "minimum": 5, "maximum": 1}), "minimum (5) is greater"),
        (lambda g: g.of_json_schema([1]), "the JSON schema cannot be"),
        (lambda g: g.of_choice([]), "the list of choices is empty"),
    ],
)
def test_what_cannot_be_a_grammar_is_refused_in_one_line(grammars, compile_it, message):
    with pytest.raises(RequestError, match=re.escape(message)) as caught:
        compile_it(grammars)
    assert "\n" not in str(caught.value)


def test_a_request_that_is_cut_short_says_so(tiny_engine, grammars):
    engine = tiny_engine()
    engine.add(Request("a", [5], SamplingParams(max_tokens=3, grammar=grammars.of_regex("z{9}"))))
    outputs = [output for _ in range(4) for output in engine.step().outputs]
    assert outputs[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "constraint",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}},
        {"guided_json": PERSON},
        {"guided_json": json.dumps(PERSON)},
        {"structured_outputs": {"json": PERSON}},
    ],
)
def test_each_way_to_ask_for_a_schema_gets_it(serve, constraint):
    async def test(s):
        body = {"messages": HELLO, "max_tokens": 190, "temperature": 1.5, "seed": 4, "n": 3, "logprobs": True}
        answer = await s.post(CHAT, body | constraint)
        ended = [choice for choice in answer["choices"] if choice["finish_reason"] == "stop"]
        assert ended
        for choice in ended:
            jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)

    with_server(serve, test)


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"guided_regex": "[ab]{5}"}, "[ab]{5}"),
        ({"structured_outputs": {"regex": "[ab]{5}"}}, "[ab]{5}"),
        ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
        ({"response_format": {"type": "json_object"}}, r"\{.*"),
        ({"structured_outputs": {"json_object": True}}, r"\{.*"),
        ({"response_format": {"type": "text"}, "max_tokens": 1}, "(?s)."),
    ],
)
def test_streams_are_bound_too(serve, constraint, pattern):
    async def test(s):
        events = await s.stream(TEXT, {"prompt": "x", "max_tokens": 20, "temperature": 1.2, "seed": 2} | constraint)
        text = "".join(event["choices"][0]["text"] for event in events)
        assert re.fullmatch(pattern, text, re.DOTALL)

    with_server(serve, test)


@pytest.mark.parametrize(
    ("constraint", "param", "message"),
    [
        ({"guided_regex": "(ab"}, "guided_regex", "unclosed group"),
        ({"guided_json": {"type": "nothing"}}, "guided_json", "Invalid type: nothing"),
        ({"guided_json": "no JSON"}, "guided_json", "cannot be read"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "length >= 1"),
        ({"structured_outputs": {"grammar": "x"}}, "grammar", "unknown field `grammar`"),
        ({"response_format": {"type": "xml"}}, "response_format", "Invalid enum value"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "needs json_schema.schema"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "guided_json and guided_regex both say"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs.regex", "both say"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "contradict each other"),
        ({"guided_regex": "a", "min_tokens": 3}, "min_tokens", "contradict each other"),
    ],
)
def test_each_mistake_is_named(serve, constraint, param, message):
    async def test(s):
        error = (await s.post(TEXT, {"prompt": "x"} | constraint, status=400))["error"]
        assert message in error["message"]
        assert error["param"] == param

    with_server(serve, test)


def optional(count):
    """A schema of so many optional texts."""
    return {"type": "object", "properties": {f"key_{n}": {"type": "string"} for n in range(count)},
            "additionalProperties": False}  # fmt: skip


def test_a_schema_of_a_thousand_optional_properties_is_followed(serve):
    async def test(s):
        form = {"type": "json_schema", "json_schema": {"name": "wide", "schema": optional(1000)}}
        body = {"messages": HELLO, "max_tokens": 40, "temperature": 0, "response_format": form}
        choice = (await s.post(CHAT, body))["choices"][0]
        text = choice["message"]["content"]
        assert text.startswith("{")
        assert choice["finish_reason"] == "length" or json.loads(text).keys() <= {f"key_{n}" for n in range(1000)}
        assert text != "{"

    with_server(serve, test)


@pytest.mark.parametrize("stream", [True, False])
def test_a_grammar_that_is_given_up_is_an_error_and_no_stop(serve, monkeypatch, stream):
    monkeypatch.setattr(grammar_module, "_LIMITS", LLParserLimits(max_items_in_row=200))

    async def test(s):
        schema = {"type": "array", "items": optional(100), "minItems": 1}
        form = {"type": "json_schema", "json_schema": {"name": "wide", "schema": schema}}
        body = {"messages": HELLO, "max_tokens": 40, "temperature": 0, "response_format": form}
        if stream:
            (*_, last) = await s.stream(CHAT, body)
        else:
            last = await s.post(CHAT, body, status=400)
        assert "its grammar became too complex" in last["error"]["message"]
        await s.until(lambda: is_idle(s))

    with_server(serve, test)


def test_a_grammar_whose_first_token_is_too_complex_is_refused(tokenizer, monkeypatch):
    monkeypatch.setattr(grammar_module, "_LIMITS", LLParserLimits(step_max_items=1))
    with pytest.raises(RequestError, match="the list of choices cannot be used"):
        Grammars(tokenizer, 266, EOS).of_choice([f"{n}" for n in range(300)])


def chained(links):
    """Definitions of which each refers to the next one."""
    defs = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(links)}
    return {"$defs": defs | {f"d{links}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


def test_schemas_that_would_overflow_the_librarys_stack_are_refused(grammars):
    nested = {"type": "integer"}
    for _ in range(600):
        nested = {"type": "array", "items": nested}
    entered = {**chained(3000), "properties": {f"a{n}": {"$ref": f"#/$defs/d{n}"} for n in range(3000)}}
    for schema in (chained(3000), nested, entered):
        with pytest.raises(RequestError, match="more than 500 levels"):
            grammars.of_json_schema(schema)
    tree = {"$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "$ref": "#/$defs/node"}
    for schema in (chained(100), tree):
        grammars.of_json_schema(schema)


def test_long_grammars_are_refused_and_leave_the_cache_first(tokenizer, monkeypatch):
    with pytest.raises(RequestError, match="1,048,576 are the most"):
        Grammars(tokenizer).of_regex("a" * (1 << 20))
    monkeypatch.setattr(grammar_module, "_CACHED_CHARACTERS", 200)
    grammars = Grammars(tokenizer)
    sources = [grammars.of_choice([letter * 60]) for letter in "abcd"]
    assert [grammars.is_compiled(source) for source in sources] == [False, False, True, True]
