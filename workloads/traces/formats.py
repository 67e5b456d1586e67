"""Trace formats by name, and detection of a file's format."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.workloads.errors import BadOption
from bakeoff.workloads.options import nearest, typed_options
from bakeoff.workloads.traces.agentperf import AgentPerf
from bakeoff.workloads.traces.aiperf_dag import AiPerfDag
from bakeoff.workloads.traces.any_csv import FIELDS, Csv
from bakeoff.workloads.traces.azure import Azure
from bakeoff.workloads.traces.bfcl import Bfcl
from bakeoff.workloads.traces.burstgpt import BurstGpt
from bakeoff.workloads.traces.claude_code import ClaudeCode
from bakeoff.workloads.traces.claude_code_flat import ClaudeCodeFlat
from bakeoff.workloads.traces.guidellm import GuideLlm
from bakeoff.workloads.traces.json_array import BYTE_ORDER_MARK
from bakeoff.workloads.traces.mlperf_endpoints import MlperfEndpoints
from bakeoff.workloads.traces.mooncake import Mooncake
from bakeoff.workloads.traces.openai_jsonl import ENVELOPES, OpenAiJsonl, opened_envelope
from bakeoff.workloads.traces.otel import Otel
from bakeoff.workloads.traces.questions import Questions
from bakeoff.workloads.traces.reading import SESSION_SUFFIXES, bad, opened, whole
from bakeoff.workloads.traces.row import Trace
from bakeoff.workloads.traces.servegen import ServeGen
from bakeoff.workloads.traces.sharegpt import ShareGpt
from bakeoff.workloads.traces.table import plain_name

__all__ = ["TRACE_FORMATS", "detect", "trace_format"]

_Kind = (
    type[Azure]
    | type[BurstGpt]
    | type[Mooncake]
    | type[ClaudeCode]
    | type[ClaudeCodeFlat]
    | type[MlperfEndpoints]
    | type[AgentPerf]
    | type[Otel]
    | type[GuideLlm]
    | type[AiPerfDag]
    | type[ServeGen]
    | type[ShareGpt]
    | type[OpenAiJsonl]
    | type[Questions]
    | type[Bfcl]
    | type[Csv]
)


class _Format(msgspec.Struct, frozen=True):
    kind: _Kind
    description: str


_FORMATS = {
    "azure": _Format(Azure, "Azure LLM inference 2023 and 2024: CSV of TIMESTAMP, ContextTokens, GeneratedTokens"),
    "burstgpt": _Format(BurstGpt, "BurstGPT: CSV of Timestamp, Request tokens, Response tokens, optionally Session ID"),
    "mooncake": _Format(
        Mooncake, "Mooncake, Bailian and AIPerf: JSON lines of timestamp, lengths, hash_ids of blocks, session_id"
    ),
    "claude-code": _Format(
        ClaudeCode, "Claude Code and AgentX sessions with sub-agents: JSON files or JSON lines with hash_ids of blocks"
    ),
    "claude-code-flat": _Format(ClaudeCodeFlat, "Claude Code sessions as one CSV with prefix_hit_blocks"),
    "mlperf-endpoints": _Format(
        MlperfEndpoints, "MLPerf Endpoints: conversations with tools as JSON lines of one message each, with their text"
    ),
    "agentperf": _Format(
        AgentPerf, "Artificial Analysis' agentperf-local: a manifest or JSON lines of one call each, with their text"
    ),
    "otel": _Format(
        Otel, "OpenTelemetry GenAI spans of agents: JSON or JSON lines of sessions, spans, or OTLP exports"
    ),
    "guidellm": _Format(GuideLlm, "GuideLLM conversation graphs: JSON lines of turns with parents, text or lengths"),
    "aiperf-dag": _Format(AiPerfDag, "AIPerf conversations that fork and spawn each other: JSON lines with their text"),
    "servegen": _Format(ServeGen, "ServeGen: a folder of client tables from which requests are drawn"),
    "sharegpt": _Format(ShareGpt, "ShareGPT, LMSYS, WildChat: conversations with their text, in a JSON array or lines"),
    "openai-jsonl": _Format(OpenAiJsonl, "OpenAI request bodies or Batch API lines, with their text"),
    "questions": _Format(Questions, "prompt sets: JSON lines with turns, prompt, question, instruction or text"),
    "bfcl": _Format(Bfcl, "Berkeley Function-Calling Leaderboard: questions with functions; answers are scored"),
    "csv": _Format(Csv, "any CSV with lengths; the option columns maps its column names"),
}
TRACE_FORMATS = {name: form.description for name, form in _FORMATS.items()}
"""Description of each format, by name."""
_HEAD_BYTES = 2**18
_MAX_FIELDS = 12
"""Most names of fields in a message."""
_PLAIN_KEY = re.compile(r"[A-Za-z_]\w*")
_KEY = re.compile(rb'"([A-Za-z_][A-Za-z_ ]*)"\s*:')
_JSON_FORMATS = (
    ("claude-code", {"requests", "block_size"}),
    ("claude-code", {"requests", "in", "out", "hash_ids"}),
    ("guidellm", {"conversation_turns"}),
    ("guidellm", {"graph_id", "turns"}),
    ("aiperf-dag", {"session_id", "turns"}),
    ("aiperf-dag", {"session_id", "orchestrator"}),
    ("mooncake", {"timestamp", "input_length", "output_length"}),
    ("mlperf-endpoints", {"conversation_id", "turn", "role"}),
    ("agentperf", {"messages", "simulated_tool_delay_ms_after"}),
    ("agentperf", {"tasks", "mode", "version"}),
    ("otel", {"spans"}),
    ("otel", {"resourceSpans"}),
    ("otel", {"trace_id", "span_id", "start_time"}),
    ("otel", {"traceId", "spanId", "startTimeUnixNano"}),
    ("otel", {"context", "parent_id", "start_time"}),
    ("mooncake", {"input_length", "output_length"}),
    ("mooncake", {"input_length", "hash_ids"}),
    ("mooncake", {"input_length", "session_id"}),
    ("mooncake", {"text_input"}),
    ("mooncake", {"messages", "session_id"}),
    ("mooncake", {"messages", "output_length"}),
    ("mooncake", {"messages", "delay"}),
    ("mooncake", {"payload"}),
    ("openai-jsonl", {"messages"}),
    ("openai-jsonl", {"custom_id", "body"}),
    ("openai-jsonl", {"custom_id", "params"}),
    ("openai-jsonl", {"prompt", "model"}),
    ("openai-jsonl", {"prompt", "max_tokens"}),
    ("openai-jsonl", {"prompt", "max_completion_tokens"}),
    ("bfcl", {"question", "function"}),
    ("bfcl", {"question", "initial_config"}),
    ("questions", {"turns"}),
    ("questions", {"prompt"}),
    ("questions", {"question"}),
    ("questions", {"instruction"}),
    ("mlperf-endpoints", {"_type"}),
    ("sharegpt", {"conversations"}),
    ("sharegpt", {"conversation"}),
    ("mooncake", {"text", "timestamp"}),
    ("mooncake", {"text", "delay"}),
    ("mooncake", {"text", "output_length"}),
    ("questions", {"text"}),
)
"""Keys that the first object must have, more specific sets first."""
_OTHER_KINDS = {
    b"\x28\xb5\x2f\xfd": "is compressed by Zstandard; decompress it first (unzstd)",
    b"BZh": "is compressed by bzip2; decompress it first (bunzip2)",
    b"\xfd7zXZ": "is compressed by xz; decompress it first (unxz)",
    b"PK\x03\x04": "is a ZIP archive or an Excel sheet; unpack it, or save it as CSV",
    b"PAR1": "is Parquet; convert it, as by pandas: read_parquet(FILE).to_json(OUT, orient='records', lines=True)",
    b"\xff\xfe": "is UTF-16; convert it (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "is UTF-16; convert it (iconv -f UTF-16 -t UTF-8)",
    b"version https://git-lfs": "is a pointer of Git LFS; fetch the file itself (git lfs pull)",
    b"<!doctype": "is a web page; fetch the file that it shows",
    b"<html": "is a web page; fetch the file that it shows",
}
"""Files of other kinds by how they begin, and what to do."""
_WHOLE_FORMATS = ("claude-code", "agentperf", "otel")
"""Formats whose file may be one JSON object over several lines."""
_MAX_DEPTH = 6
"""Levels at which requests are looked for in such an object of another kind."""
_FOLDER_FORMATS = ("claude-code", "agentperf", "otel")
"""JSON formats of which a folder can be given."""
_CSV_FORMATS = (
    ("azure", {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}),
    ("burstgpt", {"Timestamp", "Request tokens", "Response tokens"}),
    ("claude-code-flat", {"trace_id", "req_index", "prefix_hit_blocks"}),
    ("csv", {"input_tokens", "output_tokens"}),
)


_SYNONYMS = {
    "at_s": ("timestamp", "starttime", "arrivaltime", "arrivedat", "createdat", "requesttime", "time", "ts"),
    "input_tokens": (
        "prompttokens", "inputlength", "inputlen", "promptlength", "promptlen", "contexttokens", "requesttokens",
        "numprompttokens", "numinputtokens", "numprefilltokens", "tokensin", "inputtokencount", "prompttokencount",
    ),
    "output_tokens": (
        "completiontokens", "outputlength", "outputlen", "generatedtokens", "responsetokens", "answertokens",
        "numoutputtokens", "numcompletiontokens", "numdecodetokens", "tokensout", "outputtokencount",
        "completiontokencount",
    ),
    "session": ("sessionid", "conversationid", "chatid", "threadid"),
}  # fmt: skip
"""Names of columns that tools give to the fields of a table, without case and marks."""


def trace_format(name: str, options: Mapping[str, Any]) -> Trace:
    """Make a trace from its format and options, which include ``path``, without reading it.

    Raises:
        BadOption: no format has that name, or an option is unknown, of the wrong type or out of range.
    """
    if name not in _FORMATS:
        raise BadOption(f"unknown trace format '{name}'; {nearest(name, _FORMATS)}")
    return typed_options(_FORMATS[name].kind, options, f"trace format '{name}'", BadOption)


def format_options(name: str) -> tuple[str, ...]:
    """Names of a format's options; none for an unknown format."""
    return tuple(_FORMATS[name].kind.__struct_fields__[1:]) if name in _FORMATS else ()


def detect(path: str) -> str:
    """Detect the format of a file or folder.

    Raises:
        BadTrace: no format matches, or the file cannot be read.
    """
    name = _folder_format(Path(path)) if Path(path).is_dir() else _file_format(path)
    if name is None:
        problem = None if Path(path).is_dir() else _kind_of(path)
        raise bad(
            path, None,
            problem or f"is not in a known trace format{_fields(path)}; give its format: {', '.join(sorted(_FORMATS))}",
        )  # fmt: skip
    return name


def _fields(path: str) -> str:
    """The fields of the first object of a file, for a message; nothing for a folder or another kind of file."""
    head = b"" if Path(path).is_dir() else _head(path)
    if not head.startswith(b"{"):
        return ""
    names = sorted(_keys(head.partition(b"\n")[0].strip(), head))
    shown = ", ".join(names[:_MAX_FIELDS]) + (", …" if len(names) > _MAX_FIELDS else "")
    return f": its first object has {shown} (a text among them: format = 'questions' and field)" if names else ""


def _head(path: str) -> bytes:
    with opened(path) as file:
        return file.read(_HEAD_BYTES).removeprefix(BYTE_ORDER_MARK).lstrip()


def _kind_of(path: str) -> str | None:
    """What a file is that no format reads, and what makes it readable; None if that is not known."""
    head = _head(path)
    for start, kind in _OTHER_KINDS.items():
        if head[: len(start)].lower() == start.lower():
            return kind
    if re.match(rb'\[\s*\{[^{}]*"role"\s*:', head):
        return "is one chat over several lines; write it as one line, as by: jq -c . FILE > FILE.jsonl"
    if re.match(rb"\[\s*\{", head):
        return "is one JSON array; write one object a line, as by: jq -c '.[]' FILE > FILE.jsonl"
    line, below = (text.decode(errors="replace").strip() for text in (head + b"\n\n").split(b"\n")[:2])
    for separator, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        columns = {column.strip().strip('"') for column in line.split(separator)}
        if any(needed <= columns for _, needed in _CSV_FORMATS):
            return f"separates its columns by {name}; save it with commas"
    columns, values = line.split(","), below.split(",")
    has_numbers = any(value.strip().replace(".", "").isdigit() for value in values)
    if head[:1] not in b"[{" and 1 < len(columns) == len(values) and has_numbers:
        found = {field: fitting for field in FIELDS if (fitting := _column_of(field, columns))}
        held = found or {"input_tokens": columns[0]}
        example = ", ".join(f"{field} = {column!r}" for field, column in held.items())
        return f"is a table of other columns; give format = 'csv' and columns, such as {{ {example} }}"
    return None


def _column_of(field: str, columns: Sequence[str]) -> str | None:
    """The column that probably holds a field, by its name."""
    plain = {plain_name(column): column.strip().strip('"') for column in columns}
    return next((plain[name] for name in _SYNONYMS.get(field, ()) if name in plain), None)


def _folder_format(folder: Path) -> str | None:
    names = sorted(file.name for file in folder.iterdir())
    if any(re.fullmatch(r"chunk-.+-trace\.csv(\.gz)?", name) for name in names):
        return "servegen"
    session = next((name for name in names if name.endswith(SESSION_SUFFIXES)), None)
    name = _file_format(str(folder / session)) if session else None
    return name if name in _FOLDER_FORMATS else None


def _file_format(path: str) -> str | None:
    head = _head(path)
    if not head:
        raise bad(path, None, "is empty")
    line = head.partition(b"\n")[0].strip()
    if head.startswith(b"["):
        if re.search(rb'"conversations?"\s*:', head):
            return "sharegpt"
        return "openai-jsonl" if _is_chat(line) else None
    if head.startswith(b"{"):
        keys = _keys(line, head)
        if keys == {"turns"} and b'"node_id"' in line:
            return "guidellm"
        name = next((name for name, needed in _JSON_FORMATS if needed <= keys), None)
        if name not in _WHOLE_FORMATS:
            _refuse_spread(path, line)
        if name is None and "role" in keys and keys & {"content", "text", "value"}:
            raise bad(path, 1, 'is one message of a conversation; write each as one line {"messages": […]}')
        return name or ("openai-jsonl" if _has_body(line) else None)
    header = [name.strip().strip('"') for name in line.decode(errors="replace").split(",")]
    exact = next((name for name, needed in _CSV_FORMATS if needed <= set(header)), None)
    columns = set(map(plain_name, header))
    return exact or next((name for name, needed in _CSV_FORMATS if set(map(plain_name, needed)) <= columns), None)


def _is_chat(line: bytes) -> bool:
    """Whether a line is the array of a chat's messages."""
    value = _decoded(line)
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) and "role" in each for each in value)


def _has_body(line: bytes) -> bool:
    """Whether a line's object holds the body of a request in an envelope, which may have another one around it."""
    value = _decoded(line)
    inner = [opened_envelope(value.get(name)) for name in ENVELOPES] if isinstance(value, dict) else []
    objects = [each for each in inner if each is not None]
    objects += [each["body"] for each in objects if isinstance(each.get("body"), dict)]
    return any("messages" in each or "prompt" in each for each in objects)


def _decoded(line: bytes) -> Any:  # noqa: ANN401  (any JSON value)
    """The value of a line; None if it is not JSON."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _refuse_spread(path: str, line: bytes) -> None:
    """Refuse one JSON object over several lines, and say how to make lines of its requests.

    Raises:
        BadTrace: the file is such an object.
    """
    if not line.endswith((b"{", b"[", b",")):
        return  # a whole line, if a damaged one, or one longer than what was read
    value = _decoded(whole(path))
    steps = "." if isinstance(value, dict) and _is_body(value) else _path_of_bodies(value)
    if steps:
        steps = f".{steps.removeprefix('.')}"
        fix = f"write one request a line, as by: jq -c '{steps}' FILE > FILE.jsonl"
        raise bad(path, None, f"is one JSON object over several lines; {fix}")


def _is_body(value: Mapping[str, Any]) -> bool:
    return "messages" in value or "prompt" in value


def _path_of_bodies(value: Any, depth: int = 0) -> str:  # noqa: ANN401  (any JSON value)
    """Where the bodies of requests are in a value, as jq writes it: ``.data[].payload[]``; empty if there are none."""
    if isinstance(value, dict) and depth and _is_body(value):
        return "."
    if depth > _MAX_DEPTH or not isinstance(value, dict | list):
        return ""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1])
    found = {key: steps for key, each in inner if (steps := _path_of_bodies(each, depth + 1))}
    if not found:
        return ""
    key, steps = next(iter(found.items()))
    behind = "" if steps == "." else steps
    if isinstance(value, list) or (len(found) == len(value) > 1 and len(set(found.values())) == 1):
        return f"[]{behind}"  # a list, or an object whose keys are names of requests
    name = str(key) if _PLAIN_KEY.fullmatch(str(key)) else msgspec.json.encode(key).decode()
    return f".{name}{behind}"


def _keys(line: bytes, head: bytes) -> set[str]:
    """Keys of the first line's object, or of everything read so far if the object spans lines."""
    value = _decoded(line)
    return set(value) if isinstance(value, dict) else {key.decode(errors="replace") for key in _KEY.findall(head)}
