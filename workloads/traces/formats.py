"""Traces by the name of their format, and the format of a file by its looks."""

from collections.abc import Mapping
from typing import Any

import msgspec

from workloads.errors import BadOption
from workloads.options import nearest, typed_options
from workloads.traces.any_csv import Csv
from workloads.traces.azure import Azure
from workloads.traces.burstgpt import BurstGpt
from workloads.traces.claude_code import ClaudeCode
from workloads.traces.claude_code_flat import ClaudeCodeFlat
from workloads.traces.detecting import detect
from workloads.traces.mooncake import Mooncake
from workloads.traces.openai_jsonl import OpenAiJsonl
from workloads.traces.questions import Questions
from workloads.traces.row import Trace
from workloads.traces.servegen import ServeGen
from workloads.traces.sharegpt import ShareGpt

__all__ = ["TRACE_FORMATS", "detect", "trace_format"]

_Kind = (
    type[Azure]
    | type[BurstGpt]
    | type[Mooncake]
    | type[ClaudeCode]
    | type[ClaudeCodeFlat]
    | type[ServeGen]
    | type[ShareGpt]
    | type[OpenAiJsonl]
    | type[Questions]
    | type[Csv]
)


class _Format(msgspec.Struct, frozen=True):
    kind: _Kind
    description: str


_FORMATS = {
    "azure": _Format(Azure, "Azure LLM inference 2023, 2024: CSV of TIMESTAMP, ContextTokens, GeneratedTokens"),
    "burstgpt": _Format(BurstGpt, "BurstGPT: CSV of Timestamp, Request tokens, Response tokens, perhaps Session ID"),
    "mooncake": _Format(Mooncake, "Mooncake and Bailian: JSON lines of timestamp, lengths and hash_ids of blocks"),
    "claude-code": _Format(ClaudeCode, "Claude Code sessions: a folder of JSON files with hash_ids of blocks"),
    "claude-code-flat": _Format(ClaudeCodeFlat, "the same as one CSV with prefix_hit_blocks"),
    "servegen": _Format(ServeGen, "ServeGen: a folder of client tables, from which requests are drawn"),
    "sharegpt": _Format(ShareGpt, "ShareGPT: one JSON array of conversations with their text"),
    "openai-jsonl": _Format(OpenAiJsonl, "OpenAI request bodies or Batch API lines, one a line, with their text"),
    "questions": _Format(Questions, "prompt sets: JSON lines with turns, prompt or question"),
    "csv": _Format(Csv, "any CSV with lengths, its columns named by the option columns"),
}
TRACE_FORMATS = {name: form.description for name, form in _FORMATS.items()}
"""Names of the formats, each with what it is."""


def trace_format(name: str, options: Mapping[str, Any]) -> Trace:
    """Make a trace from the name of its format and its options, ``path`` among them. Nothing is read yet.

    Raises:
        BadOption: there is no format of that name, or an option is unknown (the nearest is named), of the wrong type or
            out of range.
    """
    if name not in _FORMATS:
        raise BadOption(f"unknown trace format '{name}'; {nearest(name, _FORMATS)}")
    return typed_options(_FORMATS[name].kind, options, f"trace format '{name}'", BadOption)
