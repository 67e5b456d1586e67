"""The format of a trace by its first line, or by what a folder holds."""

import re
from pathlib import Path

import msgspec

from workloads.traces.reading import bad, opened

_LOOKED_AT_BYTES = 2**18
_KEY = re.compile(rb'"([A-Za-z_][A-Za-z_ ]*)"\s*:')
_JSON_FORMATS = (
    ("claude-code", {"requests", "block_size"}),
    ("mooncake", {"timestamp", "input_length", "output_length"}),
    ("openai-jsonl", {"messages"}),
    ("openai-jsonl", {"custom_id", "body"}),
    ("openai-jsonl", {"prompt", "model"}),
    ("openai-jsonl", {"prompt", "max_tokens"}),
    ("openai-jsonl", {"prompt", "max_completion_tokens"}),
    ("questions", {"turns"}),
    ("questions", {"prompt"}),
    ("questions", {"question"}),
)
"""Keys that an object must have, the more telling ones first."""
_CSV_FORMATS = (
    ("azure", {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}),
    ("burstgpt", {"Timestamp", "Request tokens", "Response tokens"}),
    ("claude-code-flat", {"trace_id", "req_index", "prefix_hit_blocks"}),
    ("csv", {"input_tokens", "output_tokens"}),
)


def detect(path: str) -> str:
    """Name of the format that a file or folder looks like.

    Raises:
        BadTrace: it looks like none of them, or cannot be read.
    """
    found = _folder_format(Path(path)) if Path(path).is_dir() else _file_format(path)
    if found is None:
        known = sorted({name for name, _ in (*_JSON_FORMATS, *_CSV_FORMATS)} | {"servegen", "sharegpt"})
        raise bad(path, None, f"looks like no known trace; say its format: {', '.join(known)}")
    return found


def _folder_format(folder: Path) -> str | None:
    names = sorted(file.name for file in folder.iterdir())
    if any(re.fullmatch(r"chunk-.+-trace\.csv(\.gz)?", name) for name in names):
        return "servegen"
    session = next((name for name in names if name.endswith((".json", ".json.gz"))), None)
    return "claude-code" if session and _file_format(str(folder / session)) == "claude-code" else None


def _file_format(path: str) -> str | None:
    with opened(path) as file:
        head = file.read(_LOOKED_AT_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head:
        raise bad(path, None, "is empty")
    line = head.partition(b"\n")[0].strip()
    if head.startswith(b"["):
        return "sharegpt" if b'"conversations"' in head else None
    if head.startswith(b"{"):
        keys = _keys(line, head)
        return next((name for name, needed in _JSON_FORMATS if needed <= keys), None)
    columns = {name.strip().strip('"') for name in line.decode(errors="replace").split(",")}
    return next((name for name, needed in _CSV_FORMATS if needed <= columns), None)


def _keys(line: bytes, head: bytes) -> set[str]:
    """Keys of the first line's object; where it runs on over lines or is very long, of all that was read of it."""
    try:
        return set(msgspec.json.decode(line, type=dict[str, msgspec.Raw]))
    except msgspec.DecodeError:
        return {key.decode() for key in _KEY.findall(head)}
