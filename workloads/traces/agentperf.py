"""``agentperf``: recorded tasks of agents, one call of the model a line with its whole history.

The form of ``agentperf_local/workload/schema.py`` in Artificial Analysis' agentperf-local 0.3.4 (Apache-2.0).
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.checks import MAX_TIME_S, OutputTokens, RequestedTokens, check_output_tokens, quoted
from bakeoff.workloads.traces.reading import bad, decoded, lines, peeked, whole
from bakeoff.workloads.traces.recorded_chat import RecordedMessage, Tools, messages_of, tools_text
from bakeoff.workloads.traces.row import TraceRow

_VERSION = 1
_MANIFEST = "manifest.json"
_MANIFESTS = ("manifest*.json", "manifest*.json.gz")
_TRACES = ("*.jsonl", "*.jsonl.gz")
_NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_TIME_S * 1e3)]


class _Task(msgspec.Struct, frozen=True):
    task_id: _NonEmpty
    trace: _NonEmpty
    model_calls: _Count | None = None
    tool_calls: _Count | None = None


class _Manifest(msgspec.Struct, frozen=True):
    tasks: list[_Task]
    version: int


class _Call(msgspec.Struct, frozen=True):
    version: int
    task_id: _NonEmpty
    conversation_id: _NonEmpty
    conversation_idx: _Count
    messages: list[RecordedMessage]
    simulated_tool_delay_ms_after: _Milliseconds
    tools: Tools = []
    target_output_tokens: OutputTokens | None = None
    recorded_completion_tokens: OutputTokens | None = None
    max_output_tokens: RequestedTokens | None = None
    recorded_tool_calls_after: list[Any] = []


class _Trace(msgspec.Struct, frozen=True):
    """One file of calls, and its task in the manifest if there is one."""

    path: str
    task: _Task | None
    rows: Iterator[tuple[int, bytes]]


class AgentPerf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The calls of each task, in the order of the manifest or of the files' names."""

    path: str
    """A manifest; its folder, or a folder of traces (``*.jsonl``); or one trace. Each plain or gzip."""
    output_tokens: int = 256
    """Requested length of an answer whose length is neither recorded nor bounded."""

    def __post_init__(self) -> None:
        check_output_tokens(self.output_tokens)

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        del seed  # the trace leaves nothing to chance
        names = dict[str, str]()
        for trace in _traces(self.path):
            yield from self._rows(trace, names)

    def notes(self) -> list[str]:
        """What the lengths and pauses are, and what is not replayed."""
        return [
            "agentperf: messages and tools as recorded; the file has no times",
            "agentperf: a pause is simulated_tool_delay_ms_after of the conversation's previous call; no tool is run",
            "agentperf: the length is target_output_tokens, else recorded_completion_tokens, else max_output_tokens",
            f"agentperf: a length of 0 is requested as 1; without any of these, {self.output_tokens} tokens are",
            "agentperf: the model ends an answer for which tools are recorded; other answers have the stated length",
            "agentperf: each conversation is a session; tasks do not wait for each other as in agentperf-local",
            "agentperf: not used: recorded_tool_calls_after, recorded prompt and total tokens and model durations",
            "agentperf: not sent: names of speakers, turn_id, source, tool_environment",
        ]

    def _rows(self, trace: _Trace, names: dict[str, str]) -> Iterator[TraceRow]:
        """The calls of one file; ``names`` has the file of each conversation so far."""
        decoder = msgspec.json.Decoder(_Call)
        last: _Call | None = None
        model_calls = tool_calls = 0
        for row, line in trace.rows:
            call = decoded(trace.path, row, line, decoder)
            try:
                _check(call, last, trace.task)
                if last is None or last.conversation_id != call.conversation_id:
                    _register(call.conversation_id, trace.path, names)
                    last = None
                request = self._request(call, last)
            except ValueError as cause:
                raise bad(trace.path, row, str(cause)) from None
            model_calls, tool_calls = model_calls + 1, tool_calls + len(call.recorded_tool_calls_after)
            last = call
            yield request
        if trace.task is not None:
            _check_counts(trace.path, trace.task, model_calls, tool_calls)

    def _request(self, call: _Call, last: _Call | None) -> TraceRow:
        lengths = (call.target_output_tokens, call.recorded_completion_tokens, call.max_output_tokens)
        length = next((length for length in lengths if length is not None), self.output_tokens)
        return TraceRow(
            None,
            None,
            max(1, length),
            call.conversation_id,
            last.simulated_tool_delay_ms_after / 1e3 if last is not None else None,
            messages=messages_of(call.messages),
            tools=tools_text(call.tools),
        )


def _traces(path: str) -> Iterator[_Trace]:
    """The files of calls.

    Raises:
        BadTrace: a folder has none or several manifests, or a manifest is wrong.
    """
    if Path(path).is_dir():
        manifest = _manifest_in(Path(path))
        if manifest is None:
            files = sorted(file for form in _TRACES for file in Path(path).glob(form))
            if not files:
                raise bad(path, None, f"has neither a {_MANIFEST} nor traces ({', '.join(_TRACES)})")
            yield from (_Trace(str(file), None, lines(str(file))) for file in files)
            return
        path = str(manifest)
    head, rows = peeked(lines(path), 1)
    if head and _begins_manifest(head[0][1]):
        yield from _listed(path)
    else:
        yield _Trace(path, None, rows)


def _manifest_in(folder: Path) -> Path | None:
    files = sorted(file for form in _MANIFESTS for file in folder.glob(form))
    usual = next((file for file in files if file.name == _MANIFEST), None)
    if usual is None and len(files) > 1:
        raise bad(folder, None, f"has several manifests; give one of {', '.join(file.name for file in files)}")
    return usual or (files[0] if files else None)


def _begins_manifest(line: bytes) -> bool:
    """Whether a file that begins with this line is a manifest, on one line or indented, and no trace."""
    try:
        return "tasks" in msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return line == b"{"


def _listed(path: str) -> Iterator[_Trace]:
    """The traces that a manifest lists."""
    manifest = decoded(path, None, whole(path), msgspec.json.Decoder(_Manifest))
    if manifest.version != _VERSION:
        raise bad(path, None, _other_version(manifest.version))
    if not manifest.tasks:
        raise bad(path, None, "has no tasks")
    names = set[str]()
    for task in manifest.tasks:
        inner = PurePosixPath(task.trace)
        if inner.is_absolute() or ".." in inner.parts:
            raise bad(path, f"task {task.task_id}", "its trace must be a path within the manifest's folder")
        if task.task_id in names:
            raise bad(path, f"task {task.task_id}", "is listed twice; remove one of them")
        names.add(task.task_id)
        file = Path(path).parent / inner
        packed = file.with_name(f"{file.name}.gz")
        trace = str(packed if packed.is_file() and not file.exists() else file)
        yield _Trace(trace, task, lines(trace))


def _check(call: _Call, last: _Call | None, task: _Task | None) -> None:
    """Raise ValueError unless a call may follow ``last`` in the trace of ``task``."""
    if call.version != _VERSION:
        raise ValueError(_other_version(call.version))
    if not call.messages:
        raise ValueError("its prompt is empty")
    if task is not None and call.task_id != task.task_id:
        raise ValueError(f"is of task {quoted(call.task_id)}, but the manifest lists its file for {task.task_id!r}")
    if last is None or last.conversation_id != call.conversation_id:
        return
    if call.conversation_idx <= last.conversation_idx:
        raise ValueError(
            f"conversation_idx {call.conversation_idx} follows {last.conversation_idx}; sort by conversation_id and it"
        )


def _register(name: str, file: str, names: dict[str, str]) -> None:
    if names.get(name) == file:
        raise ValueError(f"conversation_id {quoted(name)} is not in adjacent rows; sort by it and conversation_idx")
    if name in names:
        raise ValueError(f"repeats the conversation {quoted(name)} of {Path(names[name]).name}; remove one of them")
    names[name] = file


def _check_counts(path: str, task: _Task, model_calls: int, tool_calls: int) -> None:
    """Raise BadTrace unless a trace has as many calls as the manifest says."""
    for kind, listed, found in (("model", task.model_calls, model_calls), ("tool", task.tool_calls, tool_calls)):
        if listed is not None and listed != found:
            raise bad(path, None, f"has {found} {kind} calls, but the manifest lists {listed}; fetch both again")


def _other_version(version: int) -> str:
    return f"has version {version}; only version {_VERSION} can be read"
