"""A replayed trace keeps its lengths and pauses, with generated or with recorded words."""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bakeoff.workloads import BadOption, NoTokenizer, PromptReader, Tokenizer, workload
from tests.workloads.replays import SEED, common_tokens, replay, sessions, table, written

KINDS = ["small", "digits", pytest.param("smollm2", marks=pytest.mark.model)]
HEADER = "at_s,input_tokens,output_tokens,session"
CHAT = ("0,60,10,a", "5,40,10,b", "30,110,20,a", "31,150,10,", "42,300,5,a", "50,30,5,a")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("api", ["completions", "chat"])
def test_sessions_of_lengths_grow_their_own_prompt_and_no_other(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, api: str
) -> None:
    tokenizer = request.getfixturevalue(kind)
    made = replay(table(tmp_path, HEADER, *CHAT), api=api)
    reader = PromptReader(tokenizer)
    by_id = {session.id: session for session in sessions(made, tokenizer)}
    assert list(by_id) == ["a", "b", "trace-2"]
    assert [by_id[name].start_s for name in by_id] == [0.0, 5.0, 31.0]
    ids = {name: [list(reader.ids(turn)) for turn in session.turns] for name, session in by_id.items()}
    assert {name: [len(prompt) for prompt in prompts] for name, prompts in ids.items()} == {
        "a": [60, 110, 300, 32 if (api, kind) == ("chat", "smollm2") else 30], "b": [40], "trace-2": [150],
    }  # fmt: skip
    first, second, third, shrunk = ids["a"]
    assert second[:60] == first
    assert third[:110] == second
    assert shrunk[: len(second)] != second[: len(shrunk)], "a recorded prompt that shrinks begins afresh"
    head = common_tokens(*(reader.ids(turn).copy() for turn in (by_id["b"].turns[0], by_id["trace-2"].turns[0])))
    template = tokenizer.count(tokenizer.render_chat([{"role": "user", "content": ""}])) if api == "chat" else 1
    assert common_tokens(first, ids["b"][0]) <= template + 4
    assert head <= template + 4


def test_think_times_are_the_recorded_ones_or_the_time_between_arrivals(small: Tokenizer, tmp_path: Path) -> None:
    (a, b, _) = sessions(replay(table(tmp_path, HEADER, *CHAT)), small)
    assert [turn.think_s for turn in a.turns] == [0.0, 30.0, 12.0, 8.0]
    assert [turn.think_s for turn in b.turns] == [0.0]
    timed = table(tmp_path, "at_s,input_tokens,output_tokens,session,think_s", "0,60,10,a,", "9,90,10,a,2.5")
    assert [turn.think_s for session in sessions(replay(timed), small) for turn in session.turns] == [0.0, 2.5]
    clockless = table(tmp_path, "input_tokens,output_tokens,session", "60,10,a", "90,10,a")
    (session,) = sessions(replay(clockless), small)
    assert (session.start_s, [turn.think_s for turn in session.turns]) == (None, [0.0, 0.0])


def test_requests_above_the_limit_are_left_out(small: Tokenizer, tmp_path: Path) -> None:
    path = table(tmp_path, HEADER, *CHAT)
    lengths = {
        limit: [
            [turn.input_tokens for turn in session.turns]
            for session in sessions(replay(path, max_input_tokens=limit), small)
        ]
        for limit in (None, 299, 149, 35)
    }
    assert lengths == {
        None: [[60, 110, 300, 30], [40], [150]],
        299: [[60, 110, 30], [40], [150]],
        149: [[60, 110, 30], [40]],
        35: [[30]],
    }
    for limit in (299, 149, 35):
        outlined = replay(path, max_input_tokens=limit).outlines(SEED)
        assert [[turn.input_tokens for turn in session.turns] for session in outlined] == lengths[limit]


def test_the_limit_is_looked_at_after_scaling(small: Tokenizer, tmp_path: Path) -> None:
    made = replay(table(tmp_path, HEADER, *CHAT), scale=0.5, max_input_tokens=149)
    lengths = [[(turn.input_tokens, turn.output_tokens) for turn in session.turns] for session in sessions(made, small)]
    assert lengths == [[(30, 5), (55, 10), (15, 2)], [(20, 5)], [(75, 5)]]


def test_within_a_load_are_the_turns_that_it_can_reach(small: Tokenizer, tmp_path: Path) -> None:
    made = replay(table(tmp_path, HEADER, *CHAT))  # a's user pauses for 30, 12 and 8 s
    whole = sessions(made, small)
    for reach_s, reachable in ((0.0, 1), (30.0, 2), (41.9, 2), (50.0, 4)):
        a, *others = sessions(made.within(reach_s), small)
        assert a.turns == whole[0].turns[: len(a.turns)]
        assert reachable <= len(a.turns) <= reachable + 1
        assert others == whole[1:]
        outlined = next(iter(made.within(reach_s).outlines(SEED)))
        assert [turn.input_tokens for turn in outlined.turns] == [turn.input_tokens for turn in a.turns]


def test_a_trace_with_a_clock_knows_its_own_rate(tmp_path: Path) -> None:
    assert replay(table(tmp_path, HEADER, *CHAT)).own_rate_per_s() == 2 / 31.0
    assert replay(table(tmp_path, "input_tokens,output_tokens", "60,10", "60,10")).own_rate_per_s() is None
    assert replay(table(tmp_path, HEADER, CHAT[0])).own_rate_per_s() is None


def test_only_the_first_rows_are_read_where_that_is_asked(small: Tokenizer, tmp_path: Path) -> None:
    made = replay(table(tmp_path, HEADER, *CHAT), max_rows=3)
    assert [len(session.turns) for session in sessions(made, small)] == [2, 1]


def test_outlines_of_lengths_say_what_the_prompts_share(small: Tokenizer, tmp_path: Path) -> None:
    made = replay(table(tmp_path, HEADER, *CHAT))
    (a, *_) = made.outlines(SEED)
    assert [turn.input_tokens for turn in a.turns] == [60, 110, 300, 30]
    assert [turn.segments for turn in a.turns] == [
        (("new 0.0", 60),),
        (("new 0.0", 60), ("answer 0.0", 10), ("new 0.1", 40)),
        (("new 0.0", 60), ("answer 0.0", 10), ("new 0.1", 40), ("answer 0.1", 20), ("new 0.2", 170)),
        (("new 0.3", 30),),
    ]
    assert not made.has_words


REAL: list[Mapping[str, Any]] = [
    {"messages": [{"role": "system", "content": "Be  brief."}, {"role": "user", "content": "Why? "}], "max_tokens": 7},
    {"prompt": " Once upon a time", "max_tokens": 9},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"api": "chat"}, {"scale": 0.5}])
def test_real_text_passes_through_and_is_counted(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    tokenizer = request.getfixturevalue(kind)
    made = replay(written(tmp_path / "t.jsonl", "\n".join(map(json.dumps, REAL))), **options)
    chat, completion = (session.turns[0] for session in sessions(made, tokenizer))
    assert [(message.role, message.content) for message in chat.messages or ()] == [
        ("system", "Be  brief."),
        ("user", "Why? "),
    ]
    assert (completion.prompt, completion.messages, chat.prompt) == (" Once upon a time", None, None)
    assert (chat.output_tokens, completion.output_tokens) == (7, 9)
    reader = PromptReader(tokenizer)
    assert [turn.input_tokens for turn in (chat, completion)] == [reader.count(turn) for turn in (chat, completion)]
    assert made.has_words
    with pytest.raises(NoTokenizer, match="the trace has text but no lengths; give a tokenizer's folder"):
        next(made.outlines(SEED))


def test_a_recorded_answer_says_how_long_it_is(small: Tokenizer, tmp_path: Path) -> None:
    talk = {"id": "a", "conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "the keeper"}]}
    (session,) = sessions(replay(written(tmp_path / "t.json", json.dumps([talk]))), small)
    assert [turn.output_tokens for turn in session.turns] == [small.count("the keeper")]


def test_starts_are_those_of_the_sessions_and_need_no_grouping(small: Tokenizer, tmp_path: Path) -> None:
    made = replay(table(tmp_path, HEADER, *CHAT))
    assert list(made.starts(SEED)) == [0.0, 5.0, 31.0]
    assert list(replay(table(tmp_path, "input_tokens,output_tokens", "60,10")).starts(SEED)) == []


def test_a_trace_without_times_can_start_over_with_other_synthetic_text(small: Tokenizer, tmp_path: Path) -> None:
    made = replay(table(tmp_path, "input_tokens,output_tokens", "60,10", "40,5"), repeat=True)
    repeated = list(itertools.islice(made.sessions(small, SEED), 5))
    assert [session.id for session in repeated] == [f"trace-{number}" for number in range(5)]
    assert [session.turns[0].input_tokens for session in repeated] == [60, 40, 60, 40, 60]
    reader = PromptReader(small)
    first, third = (list(reader.ids(repeated[number].turns[0])) for number in (0, 2))
    assert common_tokens(first, third) <= 5
    outlines = list(itertools.islice(made.outlines(SEED), 5))
    assert [outline.id for outline in outlines] == [session.id for session in repeated]
    assert made.notes()[0].endswith("; repeated")


def test_real_text_that_starts_over_is_the_same_text(small: Tokenizer, tmp_path: Path) -> None:
    lines = [
        json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 7}) for text in ("One?", "Two?")
    ]
    made = replay(written(tmp_path / "t.jsonl", "\n".join(lines)), repeat=True)
    repeated_turns = [session.turns[0] for session in itertools.islice(made.sessions(small, SEED), 4)]
    assert repeated_turns[2:] == repeated_turns[:2]


def test_a_repeated_trace_that_sends_nothing_ends(small: Tokenizer, tmp_path: Path) -> None:
    path = table(tmp_path, "input_tokens,output_tokens", "60,10")
    assert sessions(replay(path, repeat=True, max_input_tokens=8), small) == []


def test_a_trace_with_times_is_not_repeated(small: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="a trace with times cannot be repeated; leave out repeat"):
        sessions(replay(table(tmp_path, HEADER, *CHAT), repeat=True), small)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0}, "workload 'trace': scale must be above 0 and at most 16, not 0.0"),
        ({"format": "azur"}, "workload 'trace': format must be one of "),
        ({"max_rows": 0}, "workload 'trace': max_rows must be at least 1, not 0"),
        ({"formt": "csv"}, "workload 'trace' has no option 'formt'; did you mean 'format'?"),
    ],
)
def test_options_out_of_range_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption) as caught:
        workload("trace", {"path": "x.csv", **options})
    assert str(caught.value).startswith(message)
    assert len(str(caught.value).splitlines()) == 1
