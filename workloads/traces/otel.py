"""``otel``: calls of models recorded as OpenTelemetry spans with attributes ``gen_ai.*``.

The form of inference-perf's ``otel_trace_replay`` (Apache-2.0) and of the datasets that it reads, single spans, and
JSON of OTLP as OpenTelemetry's collector writes it.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces import call_graph
from bakeoff.workloads.traces.call_graph import EQUAL_S, RecordedCall, Scope
from bakeoff.workloads.traces.otel_messages import (
    answer_text,
    answers_of,
    input_tokens,
    is_call,
    max_tokens,
    messages_of,
    output_tokens,
    tools_of,
)
from bakeoff.workloads.traces.otel_spans import Span, span_documents
from bakeoff.workloads.traces.reading import bad, session_files
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.types import Message

_AROUND = ("invoke_agent", "create_agent", "invoke_workflow", "execute_tool")
"""Operations that send calls of their own."""
_CONVERSATION = ("gen_ai.conversation.id", "session.id")


class Otel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A folder of files, in the order of their names, or one file.

    A file holds one JSON object, or one a line: sessions ``{"spans": […]}``, exports ``{"resourceSpans": […]}``, or
    spans. In the last two, a session is the spans of one trace, or of the traces of one ``gen_ai.conversation.id``.
    """

    path: str
    """The folder or file (``*.json`` or ``*.jsonl``), plain or gzip."""

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The calls, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        del seed  # the trace leaves nothing to chance
        has_text: bool | None = None
        for session in self._sessions():
            calls = session.calls()
            if calls and has_text is None:
                has_text = all(call.recorded.messages for call in calls)
            yield from session.rows(calls, has_text=bool(has_text))
        if has_text is None:
            raise bad(self.path, None, "has no calls of a model; their spans have attributes gen_ai.*")

    def notes(self) -> list[str]:
        """What is left out of the trace and what is added."""
        return [
            "otel: messages and tools as recorded; where the first session lacks messages, recorded lengths",
            "otel: the model ends an answer for which tools are recorded; other answers have the recorded length",
            "otel: a call waits for those whose answers its messages hold, and for sub-agents that had ended",
            "otel: a call whose messages hold no answer waits for all calls that had ended when it started",
            "otel: a pause lasts from the end of these calls; a span without an end counts as ending at its start",
            "otel: sessions start as the load starts them, not at their recorded times",
            "otel: failed calls, embeddings, repeated spans and spans that only wrap a call are left out",
            "otel: models, sampling, reasoning, and tools that are no functions are not sent; 0 tokens are sent as 1",
            "otel: events except gen_ai.client.inference.operation.details are not read; completions are sent as chats",
        ]

    def _sessions(self) -> Iterator["_Session"]:
        names = dict[str, Path]()
        for file in session_files(self.path):
            for session in _sessions(file):
                if session.name in names and not session.is_whole:
                    other = names[session.name].name
                    raise bad(file, None, f"repeats the session {session.name!r} of {other}; join the two files")
                number = 1
                name = session.name
                while session.name in names:
                    number += 1
                    session.name = f"{name}-{number}"
                names[session.name] = file
                yield session


def _sessions(file: Path) -> Iterator["_Session"]:
    """The sessions of a file, each when its last span has been read."""
    ends: _Ends | None = None
    open_sessions: dict[str, _Session] = {}
    for document in span_documents(file):
        if document.session is not None:
            session = _Session(file, document.session, is_whole=True)
            for span in document.spans:
                session.add(span)
            yield session
            continue
        ends = ends or _Ends(file)
        touched: dict[str, None] = {}  # in the order of the file
        for span in document.spans:
            name = ends.session_of(span)
            touched[name] = None
            open_sessions.setdefault(name, _Session(file, name, is_whole=False)).add(span)
        for name in touched:
            if ends.last_rows[name] == document.row:
                yield open_sessions.pop(name)


class _Ends:
    """Where the sessions of a file end whose spans may alternate; the file is read once for this."""

    def __init__(self, file: Path) -> None:
        self._conversations: dict[str, str] = {}
        trace_rows: dict[str, int | None] = {}
        for document in span_documents(file):
            for span in document.spans if document.session is None else ():
                trace_rows[span.trace] = document.row
                if span.trace not in self._conversations and (name := _conversation(span)):
                    self._conversations[span.trace] = name
        self.last_rows: dict[str, int | None] = {}
        """Row of each session's last span; None if the file is one object."""
        for trace, row in trace_rows.items():
            name = self._conversations.get(trace, trace)
            self.last_rows[name] = max(row, self.last_rows.get(name) or 0) if row else row

    def session_of(self, span: Span) -> str:
        """Name of a span's session."""
        return self._conversations.get(span.trace, span.trace)


def _conversation(span: Span) -> str | None:
    return next((str(span.attributes[key]) for key in _CONVERSATION if span.attributes.get(key)), None)


class _Request(msgspec.Struct, frozen=True):
    """What a call's attributes tell."""

    messages: tuple[Message, ...]
    answers: tuple[Message, ...]
    input_tokens: int
    """0 if it is not recorded."""
    output_tokens: int | None
    max_tokens: int | None
    tools: str | None


class _Node(msgspec.Struct, frozen=True):
    """What is kept of a span.

    Attributes:
        span: without its attributes.
        agent: the agent that it names, or empty.
        is_around: whether it is an agent or a tool, which send calls of their own.
        request: set for a call of a model.
    """

    span: Span
    agent: str
    is_around: bool
    request: _Request | None


class _Call(msgspec.Struct, frozen=True):
    """A call to send; its times are in seconds since the session's first call."""

    recorded: RecordedCall
    request: _Request
    agent: str
    place: str


class _Session:
    """The spans of one session.

    Args:
        file: for error messages.
        name: of the session.
        is_whole: whether it is an object of its own.
    """

    def __init__(self, file: Path, name: str, *, is_whole: bool) -> None:
        self.name = name
        self.is_whole = is_whole
        self._file = file
        self._nodes: dict[tuple[str, str], _Node] = {}
        self._strings: dict[str, str] = {}

    def add(self, span: Span) -> None:
        """Add a span; of spans with one id, the first counts."""
        key = (span.trace, span.id)
        if key in self._nodes:
            return
        attributes = span.attributes
        agent = next((str(attributes[k]) for k in ("gen_ai.agent.name", "gen_ai.agent.id") if attributes.get(k)), "")
        operation = str(attributes.get("gen_ai.operation.name") or "")
        request = None
        try:
            if is_call(span.name, attributes):
                request = _Request(
                    self._shared(messages_of(attributes)),
                    self._shared(answers_of(attributes)),
                    input_tokens(attributes),
                    output_tokens(attributes),
                    max_tokens(attributes),
                    self._string(tools_of(attributes)),
                )
        except ValueError as cause:
            raise bad(self._file, span.place, str(cause)) from None
        is_around = request is None and (operation or span.name).startswith(_AROUND)
        if is_around:  # a tool's span names the agent that called it
            is_tool = (operation or span.name).startswith("execute_tool")
            agent = "" if is_tool else agent or span.name.partition(" ")[2]
        self._nodes[key] = _Node(msgspec.structs.replace(span, attributes={}), agent, is_around, request)

    def calls(self) -> list[_Call]:
        """The calls to send, sorted by their start."""
        requests = [(key, node) for key, node in self._nodes.items() if node.request is not None]
        wrappers = {(node.span.trace, node.span.parent) for _, node in requests}
        chosen: dict[tuple[object, ...], _Node] = {}
        for key, node in requests:
            if key not in wrappers and not node.span.has_failed:
                chosen.setdefault((node.span.start_ns, node.span.end_ns, node.span.name, node.request), node)
        nodes = sorted(chosen.values(), key=lambda node: (node.span.start_ns, node.span.end_ns, node.span.id))
        first_ns = nodes[0].span.start_ns if nodes else 0
        labels = self._labels()
        has_services = len({node.span.service for node in nodes}) > 1
        agents = [self._agent(node, labels) or (node.span.service if has_services else "") for node in nodes]
        calls: list[_Call] = []
        for node, agent in zip(nodes, agents, strict=True):
            assert node.request is not None
            start_s, end_s = ((time_ns - first_ns) / 1e9 for time_ns in (node.span.start_ns, node.span.end_ns))
            scope = self._scope(node, first_ns)
            recorded = RecordedCall(start_s, end_s, node.request.messages, node.request.answers, scope)
            calls.append(_Call(recorded, node.request, "" if agent == agents[0] else agent, node.span.place))
        return calls

    def rows(self, calls: list[_Call], *, has_text: bool) -> Iterator[TraceRow]:
        """The calls with what they wait for.

        Args:
            calls: of :meth:`calls`.
            has_text: whether messages are sent as recorded.
        """
        parents = call_graph.parents_of([call.recorded for call in calls])
        is_chain = parents == [((number - 1,) if number else ()) for number in range(len(calls))]
        for call, waits_for in zip(calls, parents, strict=True):
            request = call.request
            if has_text and not request.messages:
                what = "has no gen_ai.input.messages, but the first session has them in all calls"
                raise bad(self._file, call.place, f"{what}; keep such sessions in a file of their own")
            if not has_text and not request.input_tokens:
                what = "has no gen_ai.usage.input_tokens"
                fix = "without it, all calls of the first session need gen_ai.input.messages"
                raise bad(self._file, call.place, f"{what}; {fix}")
            answer = answer_text(request.answers) if has_text else ""
            output = request.output_tokens
            if output is None and not answer:
                output = request.max_tokens
                if output is None:
                    what = "has neither an answer (gen_ai.output.messages) nor its length (gen_ai.usage.output_tokens)"
                    raise bad(self._file, call.place, f"{what}; remove the span or record one of them")
            ready_s = max((calls[parent].recorded.end_s for parent in waits_for), default=0.0)
            yield TraceRow(
                None,
                None if has_text else request.input_tokens,
                None if output is None else max(1, output),
                self.name,
                max(0.0, call.recorded.start_s - ready_s),
                messages=request.messages if has_text else (),
                answer=answer or None,
                tools=request.tools if has_text else None,
                parents=None if is_chain else waits_for,
                agent=call.agent,
            )

    def _ancestors(self, node: _Node) -> Iterator[_Node]:
        """The spans around a span, from the innermost."""
        seen = {node.span.id}
        parent = self._nodes.get((node.span.trace, node.span.parent))
        while parent is not None and parent.span.id not in seen:
            seen.add(parent.span.id)
            yield parent
            parent = self._nodes.get((parent.span.trace, parent.span.parent))

    def _scope(self, node: _Node, first_ns: int) -> Scope:
        return tuple(
            (f"{around.span.trace} {around.span.id}", (around.span.end_ns - first_ns) / 1e9)
            for around in reversed([*self._ancestors(node)])
            if around.is_around
        )

    def _labels(self) -> dict[tuple[str, str], str]:
        """A name for each agent's span; agents of one name that run at the same time get numbers."""
        labels: dict[tuple[str, str], str] = {}
        ends_ns: dict[str, list[int]] = {}
        agents = (node for node in self._nodes.values() if node.is_around and node.agent)
        for node in sorted(agents, key=lambda node: (node.span.start_ns, -node.span.end_ns)):
            span = node.span
            ends = ends_ns.setdefault(node.agent, [])
            free = (n for n, end_ns in enumerate(ends) if end_ns <= span.start_ns + EQUAL_S * 1e9)
            number = next(free, len(ends))
            ends[number : number + 1] = [span.end_ns]
            labels[span.trace, span.id] = node.agent if number == 0 else f"{node.agent}-{number + 1}"
        return labels

    def _agent(self, node: _Node, labels: dict[tuple[str, str], str]) -> str:
        """The agent around a call, or the one that the call or a span around it names."""
        name = node.agent
        for around in self._ancestors(node):
            label = labels.get((around.span.trace, around.span.id))
            if label is not None:
                return label if name in ("", around.agent) else name
            name = name or around.agent
        return name

    def _shared(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages with one string for equal texts: every prompt repeats those before it."""
        return tuple(
            msgspec.structs.replace(message, content=self._strings.setdefault(message.content, message.content))
            for message in messages
        )

    def _string(self, text: str | None) -> str | None:
        return None if text is None else self._strings.setdefault(text, text)
