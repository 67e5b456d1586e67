"""Formats by name, their options, and detection of a file's format."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bakeoff.workloads.errors import BadOption, BadTrace
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.formats import TRACE_FORMATS, detect, trace_format
from tests.workloads.traces.samples import SAMPLES, write, write_servegen

MANIFEST = json.dumps({"name": "n", "source": "s", "mode": "single_user_agentic_replay", "version": 1, "tasks": []})
LENGTHS = {"0": {"input_tokens": {5: 1.0}, "output_tokens": {5: 1.0}}}


def test_every_format_has_a_description_a_sample_and_notes_that_begin_with_its_name() -> None:
    assert list(TRACE_FORMATS) == [
        "azure", "burstgpt", "mooncake", "claude-code", "claude-code-flat", "mlperf-endpoints", "agentperf", "otel",
        "guidellm", "aiperf-dag", "servegen", "sharegpt", "openai-jsonl", "questions", "bfcl", "csv",
    ]  # fmt: skip
    assert {*SAMPLES, "servegen"} == {*TRACE_FORMATS}
    for name, description in TRACE_FORMATS.items():
        assert 20 < len(description) < 100
        notes = trace_format(name, {"path": "x"}).notes()
        assert notes
        assert all(note.startswith(f"{name}: ") and len(note.splitlines()) == 1 for note in notes)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("azur", {}, f"unknown trace format 'azur'; did you mean 'azure'? known: {', '.join(TRACE_FORMATS)}"),
        ("azure", {}, "trace format 'azure': Object missing required field `path`"),
        ("azure", {"path": 3}, "trace format 'azure': Expected `str`, got `int` - at `$.path`"),
        ("azure", {"pth": "x"}, "trace format 'azure' has no option 'pth'; did you mean 'path'? known: path"),
        ("mooncake", {"path": "x", "block_token": 16}, (
            "trace format 'mooncake' has no option 'block_token'; did you mean 'block_tokens'? known: path, "
            "block_tokens, time_unit_s, ticks, output_tokens"
        )),
        ("mooncake", {"path": "x", "block_tokens": 0}, (
            "trace format 'mooncake': block_tokens must be from 1 to 1000000, not 0"
        )),
        ("mooncake", {"path": "x", "time_unit_s": 0}, (
            "trace format 'mooncake': time_unit_s must be above 0 and at most 86400, not 0.0"
        )),
        ("mooncake", {"path": "x", "ticks": "no"}, "trace format 'mooncake': Invalid enum value 'no' - at `$.ticks`"),
        ("mooncake", {"path": "x", "output_tokens": 0}, (
            "trace format 'mooncake': output_tokens must be from 1 to 100000000, not 0"
        )),
        ("guidellm", {"path": "x", "output_tokens": 0}, (
            "trace format 'guidellm': output_tokens must be from 1 to 100000000, not 0"
        )),
        ("aiperf-dag", {"path": "x", "output_tokens": 0}, (
            "trace format 'aiperf-dag': output_tokens must be from 1 to 100000000, not 0"
        )),
        ("claude-code-flat", {"path": "x", "block_tokens": -1}, (
            "trace format 'claude-code-flat': block_tokens must be from 1 to 1000000, not -1"
        )),
        ("servegen", {"path": "x", "clients": 0}, "trace format 'servegen': clients must be at least 1, not 0"),
        ("servegen", {"path": "x", "start_s": -1}, "trace format 'servegen': start_s must be at least 0, not -1.0"),
        ("servegen", {"path": "x", "duration_s": 0}, "trace format 'servegen': duration_s must be above 0, not 0.0"),
        ("questions", {"path": "x", "output_tokens": 0}, (
            "trace format 'questions': output_tokens must be from 1 to 100000000, not 0"
        )),
        ("openai-jsonl", {"path": "x", "output_tokens": 0}, (
            "trace format 'openai-jsonl': output_tokens must be from 1 to 100000000, not 0"
        )),
        ("mlperf-endpoints", {"path": "x", "output_tokens": 0}, (
            "trace format 'mlperf-endpoints': output_tokens must be from 1 to 100000000, not 0"
        )),
        ("agentperf", {"path": "x", "output_tokens": 0}, (
            "trace format 'agentperf': output_tokens must be from 1 to 100000000, not 0"
        )),
        ("csv", {"path": "x", "columns": {"input_token": "a"}}, (
            "trace format 'csv': columns has no 'input_token'; did you mean 'input_tokens'? known: at_s, input_tokens, "
            "output_tokens, session, think_s"
        )),
        ("csv", {"path": "x", "time_unit_s": -1}, (
            "trace format 'csv': time_unit_s must be above 0 and at most 86400, not -1.0"
        )),
    ],
)  # fmt: skip
def test_a_wrong_option_is_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption) as caught:
        trace_format(name, options)
    assert str(caught.value) == message


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_is_known_by_its_looks(name: str, suffix: str, tmp_path: Path) -> None:
    assert detect(str(write(tmp_path / f"trace{suffix}", SAMPLES[name]))) == name


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (json.dumps(json.loads(SAMPLES["claude-code"]), indent=1), "claude-code"),
        (json.dumps({**json.loads(SAMPLES["claude-code"]), "models": ["m" * 300_000]}), "claude-code"),
        ('\n\n{"custom_id": "1", "method": "POST", "url": "/v1", "body": {}}\n', "openai-jsonl"),
        ('{"prompt": "a", "max_tokens": 3}', "openai-jsonl"),
        ('{"ts": 1, "request": {"messages": []}, "response": {}}', "openai-jsonl"),
        ('{"timestamp": 1, "headers": {}, "body": {"prompt": "a"}}', "openai-jsonl"),
        ('{"request": {"url": "/v1", "body": {"messages": []}}}', "openai-jsonl"),
        ('[{"role": "user", "content": "a"}]\n', "openai-jsonl"),
        ('{"_type": "dataset_metadata", "name": "n"}\n', "mlperf-endpoints"),
        (MANIFEST, "agentperf"),
        (json.dumps(json.loads(MANIFEST), indent=2), "agentperf"),
        ('{"turns": [{"node_id": "a", "columns": {}}]}', "guidellm"),
        ('{"turns": ["say \\"node_id\\""]}', "questions"),
        ('{"graph_id": null, "turns": []}', "guidellm"),
        ('{"session_id": "a", "orchestrator": true, "spawns": ["b"]}', "aiperf-dag"),
        ('{"session_id": "a", "input_length": 3}', "mooncake"),
        ('{"session_id": "a", "messages": []}', "mooncake"),
        ('{"text_input": "a"}', "mooncake"),
        ('{"text": "a", "timestamp": 700}', "mooncake"),
        ('{"text": "a"}', "questions"),
        ('{"prompt": "a", "text": "the answer", "timestamp": 1}', "questions"),
        ('{"messages": [], "text": "a", "timestamp": 1}', "openai-jsonl"),
        ("input_tokens,output_tokens,timestamp,request_tokens,response_tokens", "csv"),
        ('{"custom_id": "1", "params": {"messages": []}}', "openai-jsonl"),
        ('{"conversation": [{"role": "user", "content": "a"}]}', "sharegpt"),
        ('[{"conversation": [{"role": "user", "content": "a"}]}]', "sharegpt"),
        ('{"payload": {"prompt": "a"}}', "mooncake"),
        ('{"question": "a", "answer": "b"}', "questions"),
        ("\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r\n", "azure"),
        ('"input_tokens","output_tokens"\n', "csv"),
    ],
)
def test_other_forms_are_known_too(content: str, name: str, tmp_path: Path) -> None:
    assert detect(str(write(tmp_path / "trace", content))) == name


def test_a_table_of_other_columns_is_told_how_to_map_them(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"give format = 'csv' and columns, such as \{ input_tokens = 'a' \}"):
        detect(str(write(tmp_path / "trace", "a,b\n1,2\n")))
    path = write(tmp_path / "calls", "id,startTime,promptTokens,completionTokens\n0,2026-03-02T10:00:00Z,100,30\n")
    with pytest.raises(BadTrace) as caught:
        detect(str(path))
    columns = tomllib.loads(f"columns = {str(caught.value).rpartition('such as ')[2]}")
    (row,) = trace_format("csv", {"path": str(path), **columns}).rows(Seed.of("1"))
    assert (row.at_s, row.input_tokens, row.output_tokens) == (0.0, 100, 30), "what the advice gives"


def _opened(value: Any, step: str | None) -> list[Any]:
    """What one step of a jq path makes of a value."""
    if step is not None:
        return [value[step]]
    return list(value.values()) if isinstance(value, dict) else value


BODY = {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3}


@pytest.mark.parametrize(
    ("value", "jq", "steps"),
    [
        (
            {"data": [{"payload": [BODY]}, {"payload": [BODY, BODY]}]},
            ".data[].payload[]",
            ("data", None, "payload", None),
        ),
        ({"requests": [{"body": BODY}] * 3}, ".requests[].body", ("requests", None, "body")),
        ({"by id": {"a": BODY, "b": BODY, "c": BODY}}, '."by id"[]', ("by id", None)),
    ],
    ids=["payloads", "bodies", "by id"],
)
def test_one_object_over_several_lines_is_told_how_to_become_lines(
    value: Any, jq: str, steps: tuple[str | None, ...], tmp_path: Path
) -> None:
    path = write(tmp_path / "inputs.json", json.dumps(value, indent=1))
    with pytest.raises(BadTrace) as caught:
        detect(str(path))
    assert f"write one request a line, as by: jq -c '{jq}' FILE > FILE.jsonl" in str(caught.value)
    found = [value]
    for step in steps:
        found = [each for inner in found for each in _opened(inner, step)]
    lines = write(tmp_path / "lines.jsonl", "\n".join(map(json.dumps, found)))
    assert detect(str(lines)) == "openai-jsonl", "what the advice makes"
    assert len(list(trace_format("openai-jsonl", {"path": str(lines)}).rows(Seed.of("1")))) == 3


def test_folders_are_known_by_what_they_hold(tmp_path: Path) -> None:
    tables = write_servegen(tmp_path / "tables", "0,1,1,Gamma,1,1\n", LENGTHS)
    assert detect(str(tables)) == "servegen"
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    write(sessions / "a.json.gz", SAMPLES["claude-code"])
    assert detect(str(sessions)) == "claude-code"
    replay = tmp_path / "replay"
    replay.mkdir()
    write(replay / "manifest.json", MANIFEST)
    assert detect(str(replay)) == "agentperf"


@pytest.mark.parametrize("content", ['{"a": 1}\n', "[1, 2]", "\x01\x02", "Hello, you\nHello, me\n"])
def test_a_file_that_looks_like_nothing_known_lists_the_formats(content: str, tmp_path: Path) -> None:
    path = write(tmp_path / "trace", content)
    with pytest.raises(BadTrace) as caught:
        detect(str(path))
    formats = ", ".join(sorted(TRACE_FORMATS))
    fields = ": its first object has a (a text among them: format = 'questions' and field)" if content[0] == "{" else ""
    assert str(caught.value) == f"{path}: is not in a known trace format{fields}; give its format: {formats}"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x28\xb5\x2f\xfd\x00", "is compressed by Zstandard; decompress it first (unzstd)"),
        (b"PAR1\x15", "is Parquet; convert it, as by pandas"),
        ("timestamp".encode("utf-16"), "is UTF-16; convert it (iconv -f UTF-16 -t UTF-8)"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS"),
        (b"<!DOCTYPE html><html>", "is a web page; fetch the file that it shows"),
        (b'[ {"messages": []}]', "is one JSON array; write one object a line"),
        (b'{"role": "user", "content": "a"}\n', ", row 1: is one message of a conversation"),
        (
            b'{\n "messages": [],\n "model": "m"\n}',
            "is one JSON object over several lines; write one request a line, as by: jq -c '.'",
        ),
        (b'[\n {"role": "user",\n "content": "a"}]', "is one chat over several lines; write it as one line"),
        (b"at_s;input_tokens;output_tokens\n0;1;1\n", "separates its columns by semicolons; save it with commas"),
        (b"input_tokens\toutput_tokens\n1\t1\n", "separates its columns by tabs; save it with commas"),
    ],
    ids=str,
)
def test_a_file_of_another_kind_is_named_with_what_to_do(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(BadTrace) as caught:
        detect(str(path))
    assert str(caught.value).startswith((f"{path}: {said}", f"{path}{said}"))


def test_what_cannot_be_read_cannot_be_known(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="absent: does not exist"):
        detect(str(tmp_path / "absent"))
    with pytest.raises(BadTrace, match="is not in a known trace format"):
        detect(str(tmp_path))
    with pytest.raises(BadTrace, match="is empty"):
        detect(str(write(tmp_path / "empty", "")))
