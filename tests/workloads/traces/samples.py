"""Small traces in each format, and helpers to read them and to check refusals."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bakeoff.workloads.errors import BadTrace
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.formats import trace_format
from bakeoff.workloads.traces.row import TraceRow

SHARED_DATA = Path(__file__).parents[3].parent / "shared" / "data"
with_shared_data = pytest.mark.skipif(
    not SHARED_DATA.is_dir(), reason="the published traces are not beside this checkout; samples.py has their forms"
)

SESSION: dict[str, Any] = {
    "id": "s1",
    "block_size": 64,
    "hash_id_scope": "local",
    "tool_tokens": 100,
    "system_tokens": 20,
    "requests": [
        {"t": 0.0, "type": "n", "in": 130, "out": 5, "hash_ids": [1, 2], "think_time": 0.0},
        {"t": 4.0, "type": "s", "in": 200, "out": 6, "hash_ids": [1, 2, 3], "think_time": 2.5, "ttft": 0.4},
    ],
}
CALL: dict[str, Any] = {
    "version": 1,
    "turn_id": "t:0",
    "task_id": "t",
    "conversation_id": "t",
    "conversation_idx": 0,
    "messages": [{"role": "user", "content": "Hello"}],
    "tools": [],
    "target_output_tokens": 7,
    "simulated_tool_delay_ms_after": 50,
    "recorded_tool_calls_after": [],
}
"""A call of agentperf."""
GRAPH: list[dict[str, Any]] = [
    {"node_id": "a", "columns": {"text_column": ["Hello"], "output_tokens_count_column": [5]}},
    {"node_id": "b", "parents": [{"parent_node_id": "a"}], "columns": {"text_column": ["More"]}},
]
SAMPLES = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:04.0319600,3180,8\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45,GPT-4,1087,230,1317,Conversation log\n",
    "mooncake": '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
    '{"timestamp": 40, "input_length": 512, "output_length": 3, "hash_ids": [0]}\n',
    "claude-code": json.dumps(SESSION),
    "claude-code-flat": "trace_id,req_index,t_s,kind,input_tokens,output_tokens,prefix_hit_blocks,think_time_s\n"
    "s1,0,0.0,n,130,5,0,0.0\n"
    "s1,1,4.0,s,200,6,2,2.5\n",
    "mlperf-endpoints": '{"conversation_id": "c1", "turn": 1, "role": "user", "content": "Hello"}\n'
    '{"conversation_id": "c1", "turn": 2, "role": "assistant", "content": "Hi"}\n',
    "agentperf": json.dumps(CALL) + "\n" + json.dumps({**CALL, "conversation_idx": 1}) + "\n",
    "otel": '{"trace_id": "t", "span_id": "a", "name": "chat", "start_time": 1.5, "end_time": 2.5, "attributes": '
    '{"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 5}}\n'
    '{"trace_id": "t", "span_id": "b", "name": "chat", "start_time": 3.5, "end_time": 4.5, "attributes": '
    '{"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 5}}\n',
    "guidellm": json.dumps({"conversation_turns": json.dumps({"graph_id": None, "turns": [GRAPH[0], GRAPH[1]]})})
    + "\n"
    + json.dumps({"conversation_turns": {"graph_id": "g", "turns": GRAPH[:1]}})
    + "\n",
    "aiperf-dag": '{"session_id": "child", "turns": [{"messages": [{"role": "user", "content": "Look."}]}]}\n'
    '{"session_id": "root", "turns": [{"messages": [{"role": "user", "content": "Go."}], "spawns": ["child"]}, '
    '{"messages": [{"role": "user", "content": "And?"}], "max_tokens": 9, "delay": 500}]}\n',
    "sharegpt": json.dumps(
        [{"id": "a", "conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}]}]
    ),
    "openai-jsonl": '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 7}\n'
    '{"prompt": "Once", "max_tokens": 9}\n',
    "questions": '{"question_id": 81, "turns": ["First?", "Second?"]}\n{"prompt": "Alone?"}\n',
    "bfcl": '{"id": "a", "question": [[{"role": "user", "content": "Area?"}]], "function": [{"name": "geo.area", '
    '"description": "d", "parameters": {"type": "dict", "properties": {"base": {"type": "float"}}}}]}\n',
    "csv": "at_s,input_tokens,output_tokens\n0.5,100,10\n0.75,200,20\n",
}
"""One file of each format that is a file; ServeGen is a folder, see :func:`write_servegen`."""


def write(path: Path, content: str | bytes) -> Path:
    """Write a trace, compressed by gzip if its name ends so."""
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def write_servegen(folder: Path, trace: str, dataset: dict[str, Any], name: str = "1", suffix: str = "") -> Path:
    """One client of ServeGen; tables are given as dictionaries."""
    folder.mkdir(exist_ok=True)
    texts = {key: {field: str(table) for field, table in tables.items()} for key, tables in dataset.items()}
    write(folder / f"chunk-{name}-trace.csv{suffix}", trace)
    write(folder / f"chunk-{name}-dataset.json{suffix}", json.dumps(texts))
    return folder


def read(name: str, path: Path, seed: str = "1", **options: Any) -> list[TraceRow]:
    """All rows of a trace."""
    return list(trace_format(name, {"path": str(path), **options}).rows(Seed.of(seed)))


def times_s(rows: list[TraceRow]) -> list[float]:
    """Arrivals of rows that all have one."""
    return [row.at_s for row in rows if row.at_s is not None]


def refusal(name: str, path: Path, **options: Any) -> str:
    """The message with which a trace is refused: one line with the file's name; nothing is written beside the file."""
    before = sorted(path.parent.rglob("*"))
    with pytest.raises(BadTrace) as caught:
        read(name, path, **options)
    assert sorted(path.parent.rglob("*")) == before
    message = str(caught.value)
    assert message.startswith(f"{path}")
    assert len(message.splitlines()) == 1
    return message.removeprefix(str(path)).removesuffix(
        "; --option skip_bad=true leaves such lines out and counts them"
    )
