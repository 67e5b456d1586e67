"""Spans of models' calls: graphs against edges written out from recorded times and contents, and every stored form."""

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.workloads.graph import Links
from bakeoff.workloads.traces.call_graph import RecordedCall, parents_of
from bakeoff.workloads.traces.formats import detect
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.types import Message, ToolCall
from tests.workloads.traces.samples import read, refusal, write

FIXTURES = Path(__file__).parents[4] / "shared/data/agent-sessions"
with_fixtures = pytest.mark.skipif(not FIXTURES.exists(), reason="needs the test traces of inference-perf")

SIMPLE = [("", 0.0, 2.5, []), ("", 3.0, 5.0, [0]), ("", 6.0, 8.0, [1])]
PARALLEL = [("", 0.0, 2.0, []), ("", 2.5, 5.0, [0]), ("", 3.0, 5.5, [0]), ("", 6.0, 8.0, [1, 2]), ("", 8.5, 10.0, [3])]
MARKET, ENVIRONMENT, TECHNOLOGY = "market-analyst-agent", "environmental-agent", "technology-agent"
RESEARCH = [
    ("", 0.0, 1.5, []),
    (MARKET, 2.0, 5.0, [0]),  # these three hold no answer, so they wait for what had ended
    (ENVIRONMENT, 2.5, 6.0, [0]),
    (TECHNOLOGY, 3.0, 7.0, [0]),
    ("", 8.0, 11.0, [1, 2, 3]),  # holds their three reports
    ("", 12.0, 13.5, [4]),  # holds the summary
    (MARKET, 14.0, 17.0, [5]),
    (TECHNOLOGY, 14.5, 18.0, [5]),
    ("policy-analyst-agent", 15.0, 18.5, [5]),
    ("", 19.0, 22.0, [6, 7, 8]),
    ("", 23.0, 24.5, [9]),
    ("financial-analyst-agent", 25.0, 28.0, [10]),
]
"""Agent, recorded start and end in seconds, and the calls that it waits for, read off the files by hand."""


def starts_s(rows: list[TraceRow], answers_s: list[float]) -> list[float]:
    return Links.of(rows).times_s(answers_s)[0]  # type: ignore[arg-type]


@with_fixtures
@pytest.mark.parametrize(
    ("file", "session", "expected"),
    [
        ("otel_simple_chain.json", "paris_conversation_chain", SIMPLE),
        ("otel_parallel_requests.json", "test_trace_002", PARALLEL),
        ("otel_multi_agent_research.json.gz", "test_trace_004", RESEARCH),
    ],
)
def test_edges_and_pauses_of_the_published_traces(file: str, session: str, expected: list[Any]):
    path = FIXTURES / file
    assert detect(str(path)) == "otel"
    rows = read("otel", path)
    assert [row.agent for row in rows] == [agent for agent, _, _, _ in expected]
    if expected is SIMPLE:
        assert [row.parents for row in rows] == [None] * 3, "a conversation"
    else:
        assert [row.parents for row in rows] == [tuple(parents) for *_, parents in expected]
    ends = [end for _, _, end, _ in expected]
    pauses = [start - max((ends[k] for k in parents), default=0.0) for _, start, _, parents in expected]
    assert [row.think_s for row in rows] == pytest.approx(pauses)
    assert starts_s(rows, [end - start for _, start, end, _ in expected]) == pytest.approx([c[1] for c in expected])
    opened = gzip.open if file.endswith(".gz") else open
    with opened(path, "rt") as recorded:
        attributes = [span["attributes"] for span in json.load(recorded)["spans"]]
    for row, recorded in zip(rows, attributes, strict=True):
        assert (row.session, row.at_s, row.input_tokens, row.output_tokens) == (session, None, None, None)
        assert [{"role": m.role, "content": m.content} for m in row.messages] == json.loads(
            recorded["gen_ai.input.messages"]
        )
        assert row.answer == recorded["gen_ai.output.text"]


def call(
    span: str, start_s: float, end_s: float, messages: Any = None, answer: str | None = None, **fields: Any
) -> dict[str, Any]:
    """A call's span; of ``fields``, those with a double underscore are attributes, such as ``usage__input_tokens``."""
    attributes = {f"gen_ai.{key.replace('__', '.')}": value for key, value in fields.items() if "__" in key}
    attributes |= {"gen_ai.operation.name": "chat"}
    if messages is not None:
        attributes["gen_ai.input.messages"] = json.dumps(messages)
    if answer is not None:
        attributes["gen_ai.output.messages"] = json.dumps([{"role": "assistant", "content": answer}])
    rest = {key: value for key, value in fields.items() if "__" not in key}
    return around(span, start_s, end_s, f"chat {span}", attributes) | rest


def around(
    span: str, start_s: float, end_s: float, name: str, attributes: dict[str, Any] | None = None, parent: str = ""
) -> dict[str, Any]:
    return {
        "trace_id": "t", "span_id": span, "parent_span_id": parent or None, "name": name,
        "start_time": f"2026-02-25T10:00:{start_s:09.6f}", "end_time": f"2026-02-25T10:00:{end_s:09.6f}Z",
        "attributes": attributes or {}, "status": {"code": 1, "message": ""},
    }  # fmt: skip


def used(span: str, start_s: float, end_s: float, parent: str = "", **fields: Any) -> dict[str, Any]:
    """A call of which only lengths are recorded."""
    lengths = {"usage__input_tokens": 100, "usage__output_tokens": 7}
    return call(span, start_s, end_s, **lengths, **fields) | {"parent_span_id": parent}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def session(tmp_path: Path, *spans: dict[str, Any]) -> list[TraceRow]:
    return read("otel", write(tmp_path / "a.json", json.dumps({"spans": spans}, indent=1)))


def links(rows: list[TraceRow]) -> list[tuple[int, ...] | None]:
    return [row.parents for row in rows]


LONG = "The longest river of the island has a length of ninety kilometres."


def test_lengths_alone_wait_for_all_that_had_ended_and_no_edge_is_implied_by_others(tmp_path: Path):
    rows = session(
        tmp_path, used("a", 0, 1), used("d", 4, 9), used("b", 2, 3), used("c", 2.5, 5), used("e", 6, 7), used("f", 8, 9)
    )
    assert links(rows) == [(), (0,), (0,), (1,), (1, 2), (4,)]
    assert [row.think_s for row in rows] == pytest.approx([0.0, 1.0, 1.5, 1.0, 1.0, 1.0])
    assert {(row.input_tokens, row.output_tokens, row.messages, row.answer) for row in rows} == {(100, 7, (), None)}


def test_a_call_that_starts_before_any_has_ended_counts_from_the_sessions_start(tmp_path: Path):
    rows = session(tmp_path, used("a", 1, 9), used("b", 1.5, 3))
    assert links(rows) == [(), ()]
    assert [row.think_s for row in rows] == pytest.approx([0.0, 0.5])


def test_contents_decide_against_times(tmp_path: Path):
    """Two conversations alternate; each call continues its own, although the other had ended later."""
    rows = session(
        tmp_path,
        call("a1", 0, 1, [user("A?")], "yes"),
        call("b1", 0, 2, [user("B?")], "yes"),
        call("a2", 3, 4, [user("A?"), assistant("yes"), user("Why A?")], "so"),
        call("b2", 5, 6, [user("B?"), assistant("yes "), user("Why B?")], "so"),
    )
    assert links(rows) == [(), (), (0,), (1,)]
    assert [row.think_s for row in rows] == pytest.approx([0.0, 0.0, 2.0, 3.0])


def test_a_conversation_that_goes_on_waits_even_if_a_late_end_was_recorded(tmp_path: Path):
    """A span may be closed after its answer was used; a text alone does not prove that."""
    later = [user("A?"), assistant("yes"), user(f"Is it? {LONG}")]
    rows = session(
        tmp_path,
        call("a", 0, 3, [user("A?")], "yes"),
        call("b", 0, 4, [user("B?")], LONG),
        call("c", 2.9, 5, later, "so"),
    )
    assert links(rows) == [(), (), (0,)]
    assert rows[2].think_s == 0.0


def test_an_answer_in_a_result_of_a_tool_is_waited_for_even_as_json(tmp_path: Path):
    quoted = f'It said "no".\n{LONG}'
    rows = session(
        tmp_path,
        call("a", 0, 1, [user("Ask two")], "I ask"),
        call("b", 2, 3, [user("River?")], quoted),
        call("c", 2, 4, [user("Lake?")], "A lake, of which nobody will say anything."),
        call("d", 5, 6, [user("Ask two"), assistant("I ask"), user(json.dumps({"found": quoted}))], "Done"),
    )
    assert links(rows) == [(), (0,), (0,), (1,)]


def test_short_or_quoted_texts_and_those_of_the_system_are_nobodys_answers(tmp_path: Path):
    rows = session(
        tmp_path,
        call("a", 0, 1, [user("Label?")], "positive"),
        call("b", 1.5, 2, [user(f"Repeat: {LONG}")], LONG),
        call("c", 2.5, 3, [user("Rule?")], f"Rule: {LONG}"),
        call("x", 0, 9, [user("Slow")], "late"),
        call("d", 4, 5, [{"role": "system", "content": f"Rule: {LONG}"}, assistant("positive"), user(LONG)], "x"),
    )
    assert links(rows)[-1] == (3,), "by time"


TOOL_CALL = {"type": "tool_call", "id": "call_9", "name": "look", "arguments": {"b": 1, "a": [2]}}


def test_parts_become_messages_and_a_tools_result_waits_for_its_call(tmp_path: Path):
    later = [
        {"role": "user", "parts": [{"type": "text", "content": "Look"}]},
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "hm"},
                {"type": "tool_call", "id": "call_9", "name": "look", "arguments": '{"a": [2], "b": 1}'},
            ],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_9", "response": {"seen": True}}]},
        {"role": "developer", "content": [{"type": "text", "text": "Go "}, "on"]},
    ]
    first = call("a", 0, 1, [{"role": "user", "parts": [{"type": "text", "content": "Shortened"}]}])
    first["attributes"] |= {
        "gen_ai.output.messages": [{"role": "assistant", "parts": [{"type": "text", "content": "Sure"}, TOOL_CALL]}],
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief"}]),
        "gen_ai.tool.definitions": json.dumps(
            [{"type": "function", "name": "look", "parameters": {"type": "object"}}, {"type": "web_search"}]
        ),
    }
    other = call("b", 1.2, 1.4, [user("Other")], "Else", usage__output_tokens=0)
    rows = session(tmp_path, first, other, call("c", 2, 3, later, "Seen"))
    assert links(rows) == [(), (0,), (0,)]
    assert rows[0].messages == (Message("system", "Be brief"), Message("user", "Shortened"))
    assert rows[0].answer == 'Sure\nlook({"b":1,"a":[2]})'
    assert json.loads(rows[0].tools or "") == [
        {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    ]
    assert rows[1].output_tokens == 1
    assert rows[2].messages == (
        Message("user", "Look"),
        Message("assistant", "", (ToolCall("call_9", "look", '{"a": [2], "b": 1}'),)),
        Message("tool", '{"seen":true}', (), "call_9"),
        Message("system", "Go on"),
    )


def test_numbered_attributes_are_messages_too(tmp_path: Path):
    numbered = {
        "gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Look",
        "gen_ai.prompt.1.role": "assistant", "gen_ai.prompt.1.tool_calls.0.id": "1",
        "gen_ai.prompt.1.tool_calls.0.name": "look", "gen_ai.prompt.1.tool_calls.0.arguments": "{}",
        "gen_ai.prompt.2.role": "tool", "gen_ai.prompt.2.content": "seen", "gen_ai.prompt.2.tool_call_id": "1",
        "gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": "Fine",
        "llm.request.functions.0.name": "look", "llm.request.functions.0.parameters": '{"type": "object"}',
        "gen_ai.usage.completion_tokens": 3,
    }  # fmt: skip
    (row,) = session(tmp_path, around("a", 0, 1, "openai.chat", numbered))
    assert row.messages == (
        Message("user", "Look"),
        Message("assistant", "", (ToolCall("1", "look", "{}"),)),
        Message("tool", "seen", (), "1"),
    )
    assert (row.answer, row.output_tokens, '"parameters":{"type":"object"}' in (row.tools or "")) == ("Fine", 3, True)


def test_sub_agents_are_waited_for_when_their_spans_had_ended_even_if_nobody_quotes_them(tmp_path: Path):
    history = [user("Go"), assistant("I send two")]
    rows = session(
        tmp_path,
        around("main", 0, 20, "invoke_agent main", {"gen_ai.operation.name": "invoke_agent"}),
        call("m1", 0, 1, [user("Go")], "I send two", parent_span_id="main"),
        around("tool", 1, 5, "execute_tool task", {"gen_ai.agent.name": "main"}, "main"),
        around("s1", 1, 5, "invoke_agent Explore", {"gen_ai.agent.name": "Explore"}, "tool"),
        call("s1a", 1.5, 2, [user("North")], "n", parent_span_id="s1"),
        call("s1b", 3, 4, [user("North"), assistant("n"), user("More")], "n2", parent_span_id="s1"),
        around("s2", 1, 30, "invoke_agent Explore", {"gen_ai.operation.name": "invoke_agent"}, "main"),
        call("s2a", 1.5, 4.5, [user("South")], "s", parent_span_id="s2", agent__name="Explore"),
        call("m2", 6, 7, [*history, user("Summaries")], "ok", parent_span_id="main"),
    )
    assert [row.agent for row in rows] == ["", "Explore-2", "Explore", "Explore-2", ""]
    assert links(rows) == [(), (0,), (0,), (1,), (3,)], "the second sub-agent goes on in the background"
    assert rows[4].think_s == pytest.approx(2.0)


def test_agents_of_one_name_in_turn_are_one_agent(tmp_path: Path):
    rows = session(
        tmp_path,
        used("m", 0, 1, agent__name="main"),
        around("x", 2, 4, "invoke_agent Explore"),
        used("x1", 2, 3, "x"),
        around("y", 5, 7, "invoke_agent Explore"),
        used("y1", 5, 6, "y"),
        used("z", 8, 9, agent__id="other"),
    )
    assert [row.agent for row in rows] == ["", "Explore", "Explore", "other"]


def test_failed_repeated_wrapping_and_other_spans_are_left_out(tmp_path: Path):
    failed = used("failed", 2, 3) | {"status": {"code": "STATUS_CODE_ERROR"}}
    embedding = used("e", 4, 5)
    embedding["attributes"]["gen_ai.operation.name"] = "embeddings"
    rows = session(
        tmp_path, used("a", 0, 1), used("a", 0, 1), failed, embedding, used("outer", 6, 7), used("b", 6, 7, "outer"),
        used("c", 6, 7, name="chat b"),
    )  # fmt: skip
    assert links(rows) == [None, None], "a and b"
    assert rows[1].think_s == pytest.approx(5.0)


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    """The spans as OpenTelemetry's collector exports them."""

    def pairs(values: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"key": key, "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}}
            for key, v in values.items()
        ]

    def nanoseconds(stamp: str) -> str:
        return str(1_772_013_600 * 10**9 + round(float(stamp.rstrip("Z")[17:]) * 1e9))

    converted = [
        {
            "traceId": span["trace_id"], "spanId": span["span_id"], "parentSpanId": "", "name": span["name"], "kind": 3,
            "startTimeUnixNano": nanoseconds(span["start_time"]), "endTimeUnixNano": nanoseconds(span["end_time"]),
            "attributes": pairs(span["attributes"]), "status": {},
        }
        for span in spans
    ]  # fmt: skip
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"scope": {}, "spans": converted}]}]}


def test_all_forms_of_storage_give_the_same_sessions(tmp_path: Path):
    """Spans of two sessions alternate; the traces t1 and t2 are one conversation."""
    one: list[dict[str, Any]] = [
        call("a", 0, 1, [user("One")], "1", usage__input_tokens=9) | {"trace_id": "t1"},
        call("b", 2, 3, [user("One"), assistant("1"), user("Two")], "2") | {"trace_id": "t2"},
    ]
    for span in one:
        span["attributes"] |= {"gen_ai.conversation.id": "talk"}
    other = [call("c", 0, 1, [user("Three")], "3") | {"trace_id": "t3"}]
    mixed = [one[0], other[0], one[1]]
    sdk = [
        {
            "name": span["name"], "context": {"trace_id": span["trace_id"], "span_id": span["span_id"]},
            "kind": "SpanKind.CLIENT", "parent_id": None, "start_time": span["start_time"] + "Z",
            "end_time": span["end_time"], "status": {"status_code": "OK"}, "attributes": span["attributes"],
            "resource": {"attributes": {"service.name": "s"}},
        }
        for span in mixed
    ]  # fmt: skip
    forms: dict[str, list[dict[str, Any]]] = {
        "sessions.jsonl": [{"session_id": "t3", "spans": other}, {"session_id": "talk", "spans": one}],
        "spans.jsonl": mixed,
        "sdk.jsonl": sdk,
        "batches.jsonl": [otlp(*mixed[:2]), otlp(mixed[2])],
        "bare.jsonl": otlp(*mixed)["resourceSpans"][0]["scopeSpans"][0]["spans"],
    }
    expected = [("t3", None, 0.0, 1), ("talk", None, 0.0, 1), ("talk", None, 1.0, 3)]
    rows: list[TraceRow] = []
    for name, objects in forms.items():
        path = write(tmp_path / name, "\n".join(map(json.dumps, objects)))
        assert detect(str(path)) == "otel", name
        rows = read("otel", path)
        assert [(row.session, row.parents, row.think_s, len(row.messages)) for row in rows] == expected, name
    path = write(tmp_path / "export.json", json.dumps(otlp(*mixed), indent=1))
    assert detect(str(path)) == "otel"
    assert sorted(read("otel", path), key=lambda row: str(row.session)) == rows


def test_messages_of_an_export_may_be_values_of_an_event(tmp_path: Path):
    def values(value: Any) -> dict[str, Any]:
        if isinstance(value, list):
            return {"arrayValue": {"values": [values(item) for item in value]}}
        if isinstance(value, dict):
            return {"kvlistValue": {"values": [{"key": key, "value": values(item)} for key, item in value.items()]}}
        return {"stringValue": value}

    exported = otlp(call("a", 0, 1, usage__output_tokens=4), call("b", 2, 3))
    spans = exported["resourceSpans"][0]["scopeSpans"][0]["spans"]
    prompt = {"role": "user", "parts": [{"type": "text", "content": "Go"}]}
    pairs = [{"key": "gen_ai.input.messages", "value": values([prompt])}]
    spans[0]["events"] = [{"name": "gen_ai.client.inference.operation.details", "attributes": pairs}]
    spans[1]["status"] = {"code": 2}
    (row,) = read("otel", write(tmp_path / "a.json", json.dumps(exported)))
    assert (row.messages, row.output_tokens) == ((Message("user", "Go"),), 4)
    spans[0]["endTimeUnixNano"] = "never"
    message = refusal("otel", write(tmp_path / "a.json", json.dumps(exported)))
    assert message.startswith(", span 1: startTimeUnixNano or endTimeUnixNano: invalid literal")


def test_a_folder_is_its_files_and_a_trace_is_not_spread_over_two(tmp_path: Path):
    write(tmp_path / "a.json", json.dumps({"trace_id": "t", "spans": [used("a", 0, 1)]}))
    write(tmp_path / "b.json.gz", json.dumps({"trace_id": "t", "spans": [used("b", 0, 1)]}))
    assert detect(str(tmp_path)) == "otel"
    assert [row.session for row in read("otel", tmp_path)] == ["t", "t-2"]
    write(tmp_path / "c.json", json.dumps(otlp(used("c", 0, 1))))
    assert refusal("otel", tmp_path) == "/c.json: repeats the session 't' of a.json; join the two files"


IMAGE = [{"role": "user", "parts": [{"type": "blob", "content": "aaaa"}]}]


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([], ": has no calls of a model; their spans have attributes gen_ai.*"),
        ([call("a", 0, 1)], ", span 1: has no gen_ai.usage.input_tokens; without it, all calls of the first session"),
        (
            [call("a", 0, 1, [user("A")])],
            ", span 1: has neither an answer (gen_ai.output.messages) nor its length (gen",
        ),
        ([call("a", 0, 1, IMAGE)], ", span 1: a message has a part of type 'blob'; only text can be replayed"),
        ([call("a", 0, 1, "x"), call("a", 0, 1, [3])], ", span 2: gen_ai.input.messages: Expected `object`, got `int`"),
        ([used("a", 0, 1), call("b", 0, 1, usage__input_tokens=-1)], ", span 2: gen_ai.usage.input_tokens must be a w"),
        ([used("a", 0, 1) | {"start_time": "soon"}], ", span 1: 'soon' is not a time stamp"),
        ([used("", 0, 1)], ", span 1: has no span_id"),
        ([used("a", 0, 1) | {"end_time": "9" * 20}], f", span 1: '{'9' * 20}' ns since 1970 is no time of a recording"),
        ([{"span_id": "a"}], ", span 1: Object missing required field `start_time`"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(spans: list[dict[str, Any]], message: str, tmp_path: Path):
    spans = [span if n == 0 or span.get("span_id") != "a" else span | {"span_id": "z"} for n, span in enumerate(spans)]
    assert refusal("otel", write(tmp_path / "a.json", json.dumps({"spans": spans}))).startswith(message)


def test_what_cannot_be_replayed_names_its_row(tmp_path: Path):
    first = json.dumps({"session_id": "a", "spans": [call("a", 0, 1, [user("A")], "a")]})
    second = json.dumps({"session_id": "b", "spans": [used("a", 0, 1)]})
    assert refusal("otel", write(tmp_path / "a.jsonl", f"{first}\n{second}")) == (
        ", row 2, span 1: has no gen_ai.input.messages, but the first session has them in all calls; keep such "
        "sessions in a file of their own"
    )
    lone = json.dumps(used("a", 0, 1) | {"trace_id": None})
    path = write(tmp_path / "b.jsonl", f"{first}\n{lone}")
    assert refusal("otel", path) == ", row 2: has no trace_id; a span that is not in a session needs one"


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), min_size=1, max_size=12))
def test_edges_by_time_keep_the_order_of_all_calls_and_have_no_other(times: list[tuple[int, int]]):
    """Against the closure of "had ended before", computed for each pair."""
    calls = [RecordedCall(float(start), float(start + length)) for start, length in sorted(times)]
    parents = parents_of(calls)
    pairs = itertools.combinations(range(len(calls)), 2)
    before = {(a, b) for a, b in pairs if calls[a].end_s <= calls[b].start_s}
    reached: set[tuple[int, int]] = set()
    for position, waits_for in enumerate(parents):
        for parent in waits_for:
            others = {a for a, b in reached if b == parent} | {parent}
            reached |= {(a, position) for a in others}
    assert reached == before
    for position, waits_for in enumerate(parents):
        assert not any((a, b) in before for a, b in itertools.permutations(waits_for, 2)), position
