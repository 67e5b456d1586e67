"""Invalid rows are refused with the file, the row and a remedy; nothing is guessed."""

import json
from pathlib import Path
from typing import Any

import pytest

from bakeoff.workloads.errors import BadTrace
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.formats import trace_format
from tests.workloads.traces.samples import CALL, SESSION, read, refusal, write

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
BURST_6 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,472,18,490,API log\n"
BURST_8 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5.0,a,43,GPT-4,906,446,1352,Conversation log\n"
)
FLAT = "trace_id,req_index,input_tokens,output_tokens,prefix_hit_blocks,think_time_s\ns1,0,130,5,0,0.0\n"
CSV = "at_s,input_tokens,output_tokens,session,think_s\n1,100,10,a,\n"
CHAT = '{"messages": [{"role": "user", "content": "Hello"}]}\n'
BACK = "its time is before that of the previous row; sort the file by its time column"
WHOLE = "must be a whole number from"


def mooncake(**changes: object) -> str:
    row = {"timestamp": 27, "input_length": 600, "output_length": 5, "hash_ids": [0, 1], **changes}
    return json.dumps({key: value for key, value in row.items() if value != "absent"}) + "\n"


def turn(number: int, role: str, **fields: object) -> dict[str, Any]:
    """A row of MLPerf Endpoints."""
    return {"conversation_id": "c", "turn": number, "role": role, **fields}


def talk(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def calls(**changes: object) -> str:
    """Two calls of agentperf, the second of which is changed."""
    return json.dumps(CALL) + "\n" + json.dumps({**CALL, "conversation_idx": 1, **changes}) + "\n"


MLPERF = turn(1, "user", content="a")
ANSWER = turn(2, "assistant", content="b")
CALLED = turn(2, "assistant", tool_calls=[{"id": "1", "type": "function", "function": {"name": "f"}}])
RESULT = turn(3, "tool", tool_results=[{"tool_call_id": "1", "content": "r"}])
WRONG_ROWS = [
    ("azure", AZURE + "2023-11-16 18:17:04,-1,8\n", 3, f"ContextTokens {WHOLE} 1 to 100000000, not '-1'"),
    ("azure", AZURE + "2023-11-16 18:17:04,0,8\n", 3, f"ContextTokens {WHOLE} 1 to 100000000, not '0'"),
    ("azure", AZURE + "2023-11-16 18:17:04,1.5,8\n", 3, f"ContextTokens {WHOLE} 1 to 100000000, not '1.5'"),
    ("azure", AZURE + "2023-11-16 18:17:04,1e3000,8\n", 3, f"ContextTokens {WHOLE} 1 to 100000000, not '1e3000'"),
    ("azure", AZURE + "2023-11-16 18:17:04,1_000,8\n", 3, f"ContextTokens {WHOLE} 1 to 100000000, not '1_000'"),
    ("azure", AZURE + "2023-11-16 18:17:04,nan,8\n", 3, f"ContextTokens {WHOLE} 1 to 100000000, not 'nan'"),
    ("azure", AZURE + f"2023-11-16 18:17:04,1{'0' * 5000},8\n", 3, f"ContextTokens {WHOLE} 1 to 100000000, not '1"),
    ("azure", AZURE + "2023-11-16 18:17:04,100000001,8\n", 3, f"ContextTokens {WHOLE} 1 to 100000000"),
    ("azure", AZURE + "2023-11-16 18:17:04,,8\n", 3, f"ContextTokens {WHOLE} 1 to 100000000, not ''"),
    ("azure", AZURE + "2023-11-16 18:17:04,5,-8\n", 3, f"GeneratedTokens {WHOLE} 0 to 100000000, not '-8'"),
    ("azure", AZURE + "2023-11-16 18:17:04,5\n", 3, "has 2 fields, the header 3"),
    ("azure", AZURE + "2023-11-16 18:17:04,5,8,9\n", 3, "has 4 fields, the header 3"),
    ("azure", AZURE + "2023-11-16 18:17:04,5,8,9\n2023-11-16 18:17:04,5\n", 3, "has 4 fields, the header 3"),
    ("azure", AZURE + "2023-11-16 18:17:03,5,8\n", 3, BACK),
    ("azure", AZURE + "2023-11-15 18:17:05,5,8\n", 3, BACK),
    ("azure", AZURE + "2023-11-16 18:17:05,5,8\n\n2023-11-16 18:17:04,5,8\n", 5, BACK),
    ("azure", AZURE + "2023-11-16 18:17:61,5,8\n", 3, "'2023-11-16 18:17:61' is not a time of day"),
    ("azure", AZURE + "2023-11-16 24:00:00,5,8\n", 3, "'2023-11-16 24:00:00' is not a time of day"),
    ("azure", AZURE + "2023-11-31 18:17:04,5,8\n", 3, "'2023-11-31 18:17:04' has a date that does not exist"),
    ("azure", AZURE + "inf,5,8\n", 3, "'inf' is not a time stamp such as 2024-05-10 00:00:00.009930+00:00"),
    ("azure", AZURE + "1700158624,5,8\n", 3, "'1700158624' is not a time stamp such as 2024-05-10 00:00"),
    ("azure", "2023-11-16 18:17:03,4808,10\n", 1, "the header has no column 'TIMESTAMP'; known: 2023-11-16 18:1"),
    ("azure", AZURE.replace("ContextTokens", "ContextToken"), 1, "did you mean 'ContextToken'?"),
    ("azure", AZURE.replace("TIMESTAMP", "TIMESTAMP,NumImages"), 1, "or another order; use the format csv"),
    ("burstgpt", BURST_6 + "4,GPT-4,472,18,490,API log\n", 3, BACK),
    ("burstgpt", BURST_6 + "-6,GPT-4,472,18,490,API log\n", 3, "Timestamp must be from 0 to 1e+11, not '"),
    ("burstgpt", BURST_6 + "nan,GPT-4,472,18,490,API log\n", 3, "Timestamp must be a number, not 'nan'"),
    ("burstgpt", BURST_6 + "inf,GPT-4,472,18,490,API log\n", 3, "Timestamp must be a number, not 'inf'"),
    ("burstgpt", BURST_6 + "6e20,GPT-4,472,18,490,API log\n", 3, "Timestamp must be from 0 to 1e+11, not '6e20'"),
    ("burstgpt", BURST_6 + "6,GPT-4,0,18,490,API log\n", 3, f"Request tokens {WHOLE} 1 to 100000000, not '0'"),
    ("burstgpt", BURST_6 + "6,GPT-4,472,1.8,490,API log\n", 3, f"Response tokens {WHOLE} 0 to 100000000, not '1.8'"),
    ("burstgpt", BURST_6 + "6,GPT-4,472\n", 3, "has 3 fields, the header 6"),
    ("burstgpt", BURST_6 + '6,"GPT-4,472,18,490,API log\n', 3, "is not valid CSV: unexpected end of data"),
    ("burstgpt", BURST_6 + '6,"' + "x" * 200_000 + "\n", 3, "is not valid CSV: field larger than field limit"),
    ("burstgpt", BURST_6.replace("Request t", "Requested t"), 1, "column 'Request tokens'; did you mean 'Requested t"),
    ("burstgpt", BURST_8.replace("Elapsed time", "Elapsed"), 1, "no column 'Elapsed time'; did you mean 'Elapsed'?"),
    ("burstgpt", BURST_8 + "6.0,b,-1,GPT-4,9,4,13,API log\n", 3, "Elapsed time must be from 0 to 1e+11, not '-1'"),
    ("burstgpt", BURST_8 + "6.0,b,,GPT-4,9,4,13,API log\n", 3, "Elapsed time must be a number, not ''"),
    ("mooncake", mooncake() + mooncake(timestamp=26), 2, BACK),
    ("mooncake", mooncake(timestamp=-1), 1, "its time is -0.001 s, not between 0 and 1e+11; check its column and"),
    ("mooncake", mooncake(timestamp=1e300), 1, "its time is 1e+297 s, not between 0 and 1e+11; check its column and"),
    ("mooncake", mooncake() + mooncake(input_length=0), 2, "Expected `int` >= 1 - at `$.input_length`"),
    ("mooncake", mooncake(input_length=6.5), 1, "Expected `int`, got `float` - at `$.input_length`"),
    ("mooncake", mooncake(input_length="6 h"), 1, "Expected `int`, got `str` - at `$.input_length`"),
    ("mooncake", mooncake(input_length=10**20), 1, "Expected `int` <= 100000000 - at `$.input_length`"),
    ("mooncake", mooncake(output_length=-5), 1, "Expected `int` >= 0 - at `$.output_length`"),
    ("mooncake", mooncake(input_length="absent"), 1, "Object missing required field `input_length`"),
    ("mooncake", mooncake(hash_ids=["a"]), 1, "Expected `int`, got `str` - at `$.hash_ids[0]`"),
    ("mooncake", mooncake() + "[1]\n", 2, "Expected `object`, got `array`"),
    ("mooncake", mooncake() + '{"timestamp": 28, \n', 2, "is not valid JSON: Input data was truncated"),
    ("mooncake", mooncake().replace("27", "NaN"), 1, "is not valid JSON: JSON is malformed"),
    ("mooncake", mooncake().replace("27", "1e999"), 1, "Number out of range"),
    ("claude-code-flat", FLAT + "s1,1,0,5,0,1\n", 3, f"input_tokens {WHOLE} 1 to 100000000, not '0'"),
    ("claude-code-flat", FLAT + "s1,1,130,5,0,-1\n", 3, "think_time_s must be from 0"),
    ("claude-code-flat", FLAT + "s1,1,130,5,4,1\n", 3, "prefix_hit_blocks is 4, but this prompt can share 3 blocks"),
    ("claude-code-flat", FLAT + "s2,0,130,5,1,1\n", 3, "prefix_hit_blocks is 1, but this prompt can share 0 blocks"),
    ("claude-code-flat", FLAT + "s1,0,130,5,0,1\n", 3, "req_index 0 follows 0; sort by trace_id and req_index"),
    ("claude-code-flat", FLAT + "s2,0,130,5,0,1\ns1,1,130,5,0,1\n", 4, "trace_id 's1' is not in adjacent rows; sort"),
    ("claude-code-flat", FLAT.replace("req_index", "index"), 1, "no column 'req_index'; did you mean 'index'?"),
    ("mlperf-endpoints", talk(MLPERF, turn(3, "assistant", content="b")), 2, (
        "turn 3 follows 1; sort a conversation's rows and number them 1, 2, 3, …"
    )),
    ("mlperf-endpoints", talk(turn(2, "user", content="a")), 1, "turn 2 begins a conversation; sort a conversation's"),
    ("mlperf-endpoints", talk(turn(1, "assistant", content="a")), 1, (
        "a row of assistant begins a conversation; only user may"
    )),
    ("mlperf-endpoints", talk(MLPERF, turn(2, "user", content="b")), 2, (
        "a row of user follows one of user; only assistant may"
    )),
    ("mlperf-endpoints", talk(MLPERF, ANSWER, turn(3, "assistant", content="b")), 3, (
        "a row of assistant follows one of assistant; only tool or user may"
    )),
    ("mlperf-endpoints", talk(MLPERF, CALLED, RESULT, {**RESULT, "turn": 4}), 4, (
        "a row of tool follows one of tool; only assistant or user may"
    )),
    ("mlperf-endpoints", talk(MLPERF, ANSWER, RESULT), 3, "results of tools, but the answer before it has no tool_c"),
    ("mlperf-endpoints", talk(MLPERF, CALLED, turn(3, "user", content="b")), 3, "their results must come first"),
    ("mlperf-endpoints", talk(MLPERF, {**MLPERF, "conversation_id": "d"}, MLPERF), 3, (
        "conversation_id 'c' is not in adjacent rows; sort by conversation_id and turn"
    )),
    ("mlperf-endpoints", talk({**MLPERF, "conversation_id": "ü"}), 1, "characters other than printable ASCII; rename"),
    ("mlperf-endpoints", talk(turn(1, "user")), 1, "has no content, which a row of user needs"),
    ("mlperf-endpoints", talk(MLPERF, turn(2, "assistant", reasoning_content="a")), 2, "neither content nor tool_call"),
    ("mlperf-endpoints", talk(MLPERF, CALLED, turn(3, "tool", tool_results=[])), 3, "has no tool_results, which a row"),
    ("mlperf-endpoints", talk(MLPERF, CALLED, turn(3, "tool", tool_results=[{"content": "a"}])), 3, (
        "missing required field `tool_call_id` - at `$.tool_results[0]`"
    )),
    ("mlperf-endpoints", talk(MLPERF, turn(2, "assistant", tool_calls=[{"id": "1", "type": "custom"}])), 2, (
        "a message has a call of 'custom'; only calls of functions in tool_calls can be replayed"
    )),
    ("mlperf-endpoints", talk(MLPERF, ANSWER, turn(3, "user", content="b", system="s")), 3, (
        "has a system prompt other than its conversation's first row; put it there alone"
    )),
    ("mlperf-endpoints", talk({**MLPERF, "role": "system"}), 1, "Invalid enum value 'system' - at `$.role`"),
    ("mlperf-endpoints", talk({**MLPERF, "delay_seconds": -1}), 1, "Expected `float` >= 0.0 - at `$.delay_seconds`"),
    ("mlperf-endpoints", talk(MLPERF, {"_type": "dataset_metadata"}), 2, "missing required field `conversation_id`"),
    ("agentperf", calls(version=2), 2, "has version 2; only version 1 can be read"),
    ("agentperf", calls(messages=[]), 2, "its prompt is empty"),
    ("agentperf", calls(conversation_idx=0), 2, "conversation_idx 0 follows 0; sort by conversation_id and it"),
    ("agentperf", calls(conversation_id="u") + json.dumps(CALL), 3, "conversation_id 't' is not in adjacent rows; sor"),
    ("agentperf", calls(simulated_tool_delay_ms_after=-1), 2, "Expected `float` >= 0.0 - at `$.simulated_tool_delay_m"),
    ("agentperf", calls(target_output_tokens=-1), 2, "Expected `int` >= 0 - at `$.target_output_tokens`"),
    ("agentperf", json.dumps({key: CALL[key] for key in CALL if key != "simulated_tool_delay_ms_after"}), 1, (
        "missing required field `simulated_tool_delay_ms_after`"
    )),
    ("openai-jsonl", CHAT + "{}\n", 2, "its body must hold either messages or a prompt"),
    ("openai-jsonl", CHAT + '{"messages": [], "prompt": "a"}\n', 2, "its prompt is empty"),
    ("openai-jsonl", '{"prompt": ""}\n', 1, "its prompt is empty"),
    ("openai-jsonl", '{"prompt": [1, 2]}\n', 1, "its prompt is a list; only a list of one text can be replayed"),
    ("openai-jsonl", '{"prompt": "a", "max_tokens": 0}\n', 1, "Expected `int` >= 1 - at `$.max_tokens`"),
    ("openai-jsonl", '{"messages": [{"content": "a"}]}\n', 1, "missing required field `role` - at `$.messages[0]`"),
    ("openai-jsonl", CHAT.replace('"Hello"', '[{"type": "image_url"}]'), 1, "a part of type 'image_url'; only text"),
    ("openai-jsonl", CHAT + '{"prompt": "a", "at_s": 1}\n', 2, "has a time, but earlier rows do not"),
    ("openai-jsonl", '{"prompt": "a", "at_s": 1}\n' + CHAT, 2, "has no time, but earlier rows do"),
    ("openai-jsonl", '{"prompt": "a", "at_s": 2}\n{"prompt": "a", "at_s": 1}\n', 2, BACK),
    ("openai-jsonl", '{"prompt": "a", "timestamp": "soon"}\n', 1, "'soon' is not a time stamp such as 2024-05-10 00:"),
    ("openai-jsonl", '{"prompt": "a", "at_s": 2}\n{"prompt": "a", "timestamp": "2024-05-10 00:00"}\n', 2, (
        "its time is a time stamp, but the first row has a number"
    )),
    ("openai-jsonl", '{"prompt": "a", "timestamp": "2024-05-10 00:00"}\n{"prompt": "a", "at_s": 2}\n', 2, (
        "its time is a number, but the first row has a time stamp"
    )),
    ("questions", '{"prompt": "a"}\n{"answer": "b"}\n', 2, "has none of the fields turns, prompt, question"),
    ("questions", '{"turns": []}\n', 1, "field 'turns' must be a text or a list of texts, none of them empty"),
    ("questions", '{"question": [[{"role": "user"}]]}\n', 1, "field 'question' must be a text or a list of texts"),
    ("questions", '{"prompt": ""}\n', 1, "field 'prompt' must be a text or a list of texts, none of them empty"),
    ("csv", CSV + "0.5,100,10,a,\n", 3, BACK),
    ("csv", CSV + "soon,100,10,a,\n", 3, "'soon' is not a time stamp such as"),
    ("csv", CSV + "nan,100,10,a,\n", 3, "its time is nan s, not between 0 and 1e+11; check its column and unit"),
    ("csv", CSV + "-2,100,10,a,\n", 3, "its time is -2 s, not between 0 and 1e+11; check its column and unit"),
    ("csv", CSV + "2,100,10,a,inf\n", 3, "think_s must be a number, not 'inf'"),
    ("csv", CSV + "2,0,10,a,\n", 3, f"input_tokens {WHOLE} 1 to 100000000, not '0'"),
    ("csv", CSV + '"2\n",100,10,a,\n3,1,x,a,\n', 5, f"output_tokens {WHOLE} 0 to 100000000, not 'x'"),
    ("csv", "input_tokens,output_token\n1,2\n", 1, "no column 'output_tokens'; did you mean 'output_token'? known: in"),
    ("csv", "input_tokens,output_tokens,output_tokens\n1,2,3\n", 1, "has 2 columns 'output_tokens'; rename all but"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "row", "excerpt"), WRONG_ROWS, ids=[f"{case[0]}-{i}" for i, case in enumerate(WRONG_ROWS)]
)
def test_a_wrong_row_is_refused_by_its_number(name: str, content: str, row: int, excerpt: str, tmp_path: Path) -> None:
    message = refusal(name, write(tmp_path / "trace", content))
    assert message.startswith(f", row {row}: ")
    assert excerpt in message


def session(**changes: object) -> str:
    return json.dumps({**SESSION, **changes})


def request(**changes: object) -> list[dict[str, Any]]:
    first: dict[str, Any] = SESSION["requests"][0]
    return [first, {**SESSION["requests"][1], **changes}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (session(requests=request(**{"in": 0})), ", request 2: Expected `int` >= 1 - at `$.in`"),
        (session(requests=request(**{"in": 7.5})), ", request 2: Expected `int`, got `float` - at `$.in`"),
        (session(requests=request(out=-1)), ", request 2: Expected `int` >= 0 - at `$.out`"),
        (session(requests=request(think_time=-2)), ", request 2: Expected `float` >= 0.0 - at `$.think_time`"),
        (session(requests=request(type="x")), ", request 2: Invalid value 'x' - at `$.type`"),
        (session(requests=request(hash_ids=[-1])), ", request 2: Expected `int` >= 0 - at `$.hash_ids[0]`"),
        (session(requests=request(hash_ids=[1, 2])), (
            ", request 2: has 2 hash_ids, but 200 tokens make 4 blocks of 64; "
            "its block_size does not match its hash_ids"
        )),
        (session(block_size=0), ": Expected `int` >= 1 - at `$.block_size`"),
        (session(requests=7), ": Expected `array`, got `int` - at `$.requests`"),
        (session(requests=[]), ": has no requests"),
        ("[]", ": Expected `object`, got `array`"),
    ],
)  # fmt: skip
def test_a_wrong_session_of_claude_code_is_refused_by_its_request(content: str, message: str, tmp_path: Path) -> None:
    assert refusal("claude-code", write(tmp_path / "trace.json", content)) == message


NO_QUESTION = ": has no question with an answer; it must hold conversations, in a JSON array or one a line"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"conversations": [{"from": "human"}]}]', (
            ", conversation 1: has a part without the text in 'value' or 'content'"
        )),
        ('[{"conversations": []}, {"turns": []}]', ", conversation 2: has neither 'conversations' nor 'conversation'"),
        ('[{"conversations": [{"from": "robot", "value": "a"}]}]', (
            ", conversation 1: has a part from 'robot'; known: human, user, gpt, chatgpt, bard, bing, assistant, system"
        )),
        ('[{"conversations": []}]', NO_QUESTION),
        ('{"conversations": []}', NO_QUESTION),
        ('[{"conversations": []},', ", conversation 2: is not valid JSON: the file ends within the array"),
        ('[{"conversations": []}] {}', ", conversation 1: is not valid JSON: the array has ended, and more follows"),
        ('[{"conversations": "\\"]}, ', ", conversation 1: is not valid JSON: the file ends within the array"),
        ('[{"conversations": []}, ' + "[" * 100_000, ", conversation 2: is nested more than 64 levels deep"),
        ('[{"conversations": []}, "' + "x" * 17 * 2**20, ", conversation 2: is larger than 16 MiB"),
    ],
)  # fmt: skip
def test_a_wrong_conversation_is_refused_by_its_number(content: str, message: str, tmp_path: Path) -> None:
    assert refusal("sharegpt", write(tmp_path / "trace.json", content)) == message


@pytest.mark.parametrize(
    ("input_length", "blocks", "fits"),
    [(600, 38, 16), (600, 3, 256), (600, 1, 1024), (512, 2, 256), (7, 3, 3)],
)
def test_blocks_that_cannot_be_the_prompts_say_which_option_to_set(
    input_length: int, blocks: int, fits: int, tmp_path: Path
) -> None:
    row = mooncake(input_length=input_length, hash_ids=list(range(blocks)))
    message = refusal("mooncake", write(tmp_path / "trace", mooncake() + row))
    assert message.startswith(f", row 2: has {blocks} hash_ids, but {input_length} tokens make ")
    assert message.endswith(f"of 512; set block_tokens to the trace's block size (this row fits {fits})")
    fitting = read("mooncake", write(tmp_path / "alone", row), block_tokens=fits)
    assert fitting[0].blocks == tuple(range(blocks))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("azure", AZURE.replace(",10", ",0"), ": has no row with generated tokens below its header"),
        ("azure", AZURE.splitlines()[0], ": has no row with generated tokens below its header"),
        ("burstgpt", BURST_6.replace(",18,", ",0,"), ": has no row with response tokens"),
        ("burstgpt", BURST_6.splitlines()[0], ": has no rows below its header"),
        ("mooncake", mooncake(output_length=0), ": has no row with output tokens"),
        ("csv", CSV.replace(",10,", ",0,"), ": has no row with output tokens"),
    ],
)
def test_a_trace_of_failures_only_is_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    assert refusal(name, write(tmp_path / "trace", content)) == message


def test_a_field_that_a_prompt_set_lacks_is_refused_with_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "trace", '{"prompt": "a", "goal": "b"}\n{"prompt": "a"}\n')
    assert refusal("questions", path, field="goal") == ", row 2: has no field 'goal'; known: prompt"
    assert (
        refusal("questions", path, field="gaol")
        == ", row 1: has no field 'gaol'; did you mean 'goal'? known: prompt, goal"
    )


def test_rows_before_a_wrong_one_are_read(tmp_path: Path) -> None:
    """A replay that stops before the invalid row never reads it."""
    burst = mooncake(timestamp=3)  # to spread ticks, the first rows are read in advance
    for name, content in (("azure", AZURE), ("csv", CSV), ("mooncake", burst), ("openai-jsonl", CHAT)):
        options = {"ticks": "burst"} if name == "mooncake" else {}
        path = write(tmp_path / name, content + "wrong\n")
        rows = trace_format(name, {"path": str(path), **options}).rows(Seed.of("1"))
        assert next(rows).output_tokens, name
        with pytest.raises(BadTrace, match=r"row [23]: "):
            next(rows)
