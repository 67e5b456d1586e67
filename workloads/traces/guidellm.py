"""``guidellm``: conversation graphs of GuideLLM 0.8, one a line, whose turns name the turns that they wait for.

GuideLLM (vllm-project/guidellm, Apache-2.0) appends each turn's own text to the history that comes from its parents:
``full`` brings the parent and all before it, ``last`` the parent alone, ``new`` nothing. A turn without a ``full``
parent begins a history, so what comes after it does not see its ``last`` parents.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.checks import MAX_TOKENS, Clock, Seconds, check_output_tokens, quoted
from bakeoff.workloads.traces.reading import MAX_WHOLE_BYTES, bad, decoded, lines
from bakeoff.workloads.traces.recorded_chat import UNNAMED_TOOL, RecordedMessage, continued, messages_of, tools_text
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.types import Message

_NO_RESULT = '{"status": "ok"}'
"""GuideLLM's result of a tool for which the trace has none."""
_INJECTION = "tool_response_injection"

_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class _Parent(msgspec.Struct, frozen=True):
    parent_node_id: str
    history_context: Literal["new", "last", "full"] = "full"


class _Settings(msgspec.Struct, frozen=True):
    relative_timestamp: Seconds | None = None
    requeue_delay: Seconds | None = None
    trace_duration: Seconds | None = None


class _Columns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each column is a list; those of counts are added up."""

    text_column: list[str | None] = []
    prefix_column: list[str | None] = []
    raw_messages_column: list[RecordedMessage | list[RecordedMessage]] = []
    prompt_tokens_count_column: list[_Count | None] = []
    output_tokens_count_column: list[_Count | None] = []
    tools_column: list[Any] = []
    tool_response_column: list[str] = []
    tool_choice_column: list[Any] = []
    turn_type_column: list[str | None] = []
    relative_timestamp_column: list[Seconds | None] = []
    requeue_delay_column: list[Seconds | None] = []
    request_duration_column: list[Seconds | None] = []
    image_column: list[Any] = []
    video_column: list[Any] = []
    audio_column: list[Any] = []

    @property
    def settings(self) -> _Settings:
        """The settings of a turn that has them in columns."""
        return _Settings(
            next(iter(self.relative_timestamp_column), None),
            next(iter(self.requeue_delay_column), None),
            next(iter(self.request_duration_column), None),
        )

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the turn's own text; 0 if they are not recorded."""
        return sum(count or 0 for count in self.prompt_tokens_count_column)

    @property
    def output_tokens(self) -> int | None:
        """Tokens of the answer; None if they are not recorded."""
        return sum(count or 0 for count in self.output_tokens_count_column) or None

    @property
    def turn_type(self) -> str:
        """The kind of turn; empty if it follows from the other columns."""
        return next(iter(self.turn_type_column), None) or ""

    @property
    def has_text(self) -> bool:
        """Whether the turn's own text is recorded."""
        is_injection = self.turn_type == _INJECTION
        return is_injection or bool(self.raw_messages_column) or any(self.text_column) or any(self.prefix_column)

    @property
    def is_split(self) -> bool:
        """Whether the turn is two requests: one that a call of a tool answers, and one with the tool's result."""
        if self.turn_type == "client_tool_call":
            return bool(self.tool_response_column)
        return not self.turn_type and bool(self.tools_column)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The functions that the model may call, in the form of OpenAI's chats.

        Raises:
            ValueError: they are not a list of objects.
        """
        tools = next(iter(self.tools_column), None) or []
        try:
            listed = msgspec.convert(
                msgspec.json.decode(tools) if isinstance(tools, str) else tools, list[dict[str, Any]]
            )
        except (msgspec.DecodeError, msgspec.ValidationError):
            raise ValueError("its tools_column must hold a list of functions, or its JSON text") from None
        return [tool if "function" in tool else {"type": "function", "function": tool} for tool in listed]

    def messages(self) -> tuple[Message, ...]:
        """The turn's own messages, without results of tools.

        Raises:
            ValueError: they have anything but text.
        """
        if self.raw_messages_column:
            first = self.raw_messages_column[0]
            flat = [message for message in self.raw_messages_column if isinstance(message, RecordedMessage)]
            return messages_of(first if isinstance(first, list) else flat)
        system = " ".join(text for text in self.prefix_column if text)
        user = "".join(text for text in self.text_column if text)
        parts = (Message("system", system), Message("user", user))
        return tuple(message for message in parts if message.content)


class _Node(msgspec.Struct, frozen=True):
    node_id: str
    agent_id: str = "default"
    parents: list[_Parent] = []
    columns: _Columns = _Columns()
    settings: _Settings | None = None

    @property
    def times(self) -> _Settings:
        """The turn's times, in whichever of the two places it has them."""
        return self.columns.settings if self.settings is None else self.settings

    @property
    def full_parent(self) -> str | None:
        """The parent whose whole history it continues."""
        return next((ref.parent_node_id for ref in self.parents if ref.history_context == "full"), None)

    @property
    def last_parents(self) -> list[str]:
        """The parents of whose histories it gets the end."""
        return [ref.parent_node_id for ref in self.parents if ref.history_context == "last"]


class _Graph(msgspec.Struct, frozen=True):
    turns: list[_Node]
    graph_id: str | None = None


class _Line(msgspec.Struct, frozen=True):
    conversation_turns: msgspec.Raw = msgspec.Raw(b"null")
    turns: msgspec.Raw = msgspec.Raw(b"null")


_LINES = msgspec.json.Decoder(_Line)
_TEXTS = msgspec.json.Decoder(str)
_GRAPHS = msgspec.json.Decoder(_Graph)


class GuideLlm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lines of ``{"conversation_turns": graph, or its JSON text}``, or of graphs ``{"graph_id", "turns": […]}``."""

    path: str
    """The file of JSON lines, plain or gzip."""
    output_tokens: int = 256
    """Requested length of the answer of a turn that states none."""

    def __post_init__(self) -> None:
        check_output_tokens(self.output_tokens)

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        del seed  # the trace leaves nothing to chance
        clock = Clock()
        has_text: bool | None = None
        has_times: bool | None = None
        for number, (row, line) in enumerate(lines(self.path, MAX_WHOLE_BYTES), 1):
            graph = self._graph(row, line)
            try:
                reading = _Reading(f"{number}" if graph.graph_id is None else f"{number}:{graph.graph_id}", graph)
                has_text = _same(has_text, reading.has_text, "text", "lengths alone")
                has_times = _same(has_times, reading.start_s is not None, "a relative_timestamp", "none")
                at_s = None if reading.start_s is None else clock.offset_s(reading.start_s)
                rows = list(reading.rows(self.output_tokens, at_s))
            except ValueError as cause:
                raise bad(self.path, row, str(cause)) from None
            yield from rows

    def notes(self) -> list[str]:
        """How histories and pauses are made, and what is not replayed."""
        return [
            "guidellm: turns with what they wait for; text as recorded, else synthetic text of the recorded lengths",
            "guidellm: answers are not recorded, so in text the assistant's messages between turns are empty",
            "guidellm: lengths count the answers of the history; they share prefixes within one agent's conversation",
            "guidellm: a pause is the requeue_delay of the parents, each counted from its own end",
            "guidellm: without it, it is the time from the end (timestamp + duration) of the last parent",
            "guidellm: a turn with tools is two requests, as in GuideLLM; the second has the tool's recorded result",
            "guidellm: the model ends an answer for which tools are recorded; tool_choice is not sent",
            f"guidellm: a turn without output tokens requests {self.output_tokens}; a graph of lengths has no tools",
            "guidellm: the type of turns with tools of the server, and columns beside the graph, are left out",
        ]

    def _graph(self, row: int, line: bytes) -> _Graph:
        """The graph of a line, in any of its three forms."""
        outer = decoded(self.path, row, line, _LINES)
        inner = bytes(outer.conversation_turns)
        if inner == b"null":
            if bytes(outer.turns) == b"null":
                raise bad(self.path, row, "has neither conversation_turns nor turns; each line must hold one graph")
            return decoded(self.path, row, line, _GRAPHS)
        if inner.startswith(b'"'):
            inner = decoded(self.path, row, inner, _TEXTS).encode()
        return decoded(self.path, row, inner, _GRAPHS)


def _same(earlier: bool | None, now: bool, kind: str, other: str) -> bool:
    """Check that all graphs are of one kind."""
    if earlier is not None and earlier is not now:
        kinds = (other, kind) if earlier else (kind, other)
        raise ValueError(f"its graph has {kinds[0]}, but those of earlier rows have {kinds[1]}; split the file")
    return now


class _Reading:
    """One graph, checked and in order.

    Args:
        name: of the session.
        graph: as decoded.

    Raises:
        ValueError: ids repeat, a parent is unknown, turns wait for each other, or a turn has neither text nor lengths.
    """

    def __init__(self, name: str, graph: _Graph) -> None:
        self._name = name
        self._nodes = {node.node_id: node for node in graph.turns}
        if not graph.turns:
            raise ValueError("its graph has no turns")
        if len(self._nodes) < len(graph.turns):
            ids = [node.node_id for node in graph.turns]
            twice = next(node_id for number, node_id in enumerate(ids) if node_id in ids[:number])
            raise ValueError(f"two turns have the node_id {quoted(twice)}; give each its own")
        for node in graph.turns:
            self._check(node)
        self._order = self._sorted()
        self._continuable: dict[str, str] = {}
        self._opened: Counter[str] = Counter()
        self.has_text = all(node.columns.has_text for node in graph.turns)
        if not self.has_text:
            bare = next((node.node_id for node in graph.turns if not node.columns.prompt_tokens), None)
            if bare is not None:
                what = "has no prompt tokens, but another turn of its graph has no text"
                raise ValueError(f"turn {quoted(bare)} {what}; give all turns a text_column or prompt tokens")

    @property
    def start_s(self) -> float | None:
        """Time of the first turn in the trace."""
        return self._nodes[self._order[0]].times.relative_timestamp

    def rows(self, output_tokens: int, at_s: float | None) -> Iterator[TraceRow]:
        """The requests, each behind those that it waits for; ``output_tokens`` where the length is not recorded."""
        made = list(self._texts(output_tokens) if self.has_text else self._lengths(output_tokens))
        is_chain = all(row.parents == ((place - 1,) if place else ()) for place, row in enumerate(made))
        for place, row in enumerate(made):
            timed = msgspec.structs.replace(row, session=self._name, at_s=None if place else at_s)
            yield msgspec.structs.replace(timed, parents=None) if is_chain else timed

    def _check(self, node: _Node) -> None:
        """Check one turn on its own."""
        place = f"turn {quoted(node.node_id)}"
        for ref in node.parents:
            if ref.parent_node_id not in self._nodes:
                raise ValueError(f"{place} has the parent {quoted(ref.parent_node_id)}, which is no turn of its graph")
        if sum(ref.history_context == "full" for ref in node.parents) > 1:
            raise ValueError(f"{place} has two parents with the history_context 'full'; only one can precede it")
        columns = node.columns
        for name, values in (("image", columns.image_column), ("video", columns.video_column),
                             ("audio", columns.audio_column)):  # fmt: skip
            if any(value is not None for value in values):
                raise ValueError(f"{place} has a value in {name}_column; only text can be replayed")

    def _sorted(self) -> list[str]:
        """The turns by their time in the trace, or by their place in the graph, each behind its parents."""
        children: dict[str, list[str]] = {name: [] for name in self._nodes}
        pending: dict[str, int] = {}
        for name, node in self._nodes.items():
            parents = {ref.parent_node_id for ref in node.parents}
            pending[name] = len(parents)
            for parent in parents:
                children[parent].append(name)
        numbers = {name: number for number, name in enumerate(self._nodes)}
        keys = {name: (node.times.relative_timestamp or 0.0, numbers[name]) for name, node in self._nodes.items()}
        ready = [(*keys[name], name) for name, count in pending.items() if not count]
        heapq.heapify(ready)
        order: list[str] = []
        while ready:
            order.append(heapq.heappop(ready)[-1])
            for child in children[order[-1]]:
                pending[child] -= 1
                if not pending[child]:
                    heapq.heappush(ready, (*keys[child], child))
        if len(order) < len(self._nodes):
            cycle = self._cycle(set(order))
            raise ValueError(
                f"turns wait for each other: {' -> '.join(map(quoted, cycle))}; remove one of these parents"
            )
        return order

    def _cycle(self, ordered: set[str]) -> list[str]:
        """Turns of which each waits for the next, and the last is the first."""
        path = [next(name for name in self._nodes if name not in ordered)]
        while True:
            parents = self._nodes[path[-1]].parents
            path.append(next(ref.parent_node_id for ref in parents if ref.parent_node_id not in ordered))
            if path[-1] in path[:-1]:
                return path[path.index(path[-1]) :]

    def _texts(self, output_tokens: int) -> Iterator[TraceRow]:
        """Requests of real text."""
        place = 0
        places: dict[str, int] = {}
        own: dict[str, tuple[Message, ...]] = {}
        brought: dict[str, tuple[Message, ...]] = {}
        for name in self._order:
            node = self._nodes[name]
            columns = node.columns
            tools = columns.tools
            text = self._results(name) if columns.turn_type == _INJECTION else columns.messages()
            tool = self._tool_before(node)
            history = brought[node.full_parent] if node.full_parent else ()
            for parent in node.last_parents:
                history = continued(history, own[parent], self._tool_before(self._nodes[parent]))
            messages = continued(history, text, tool)
            tokens = columns.output_tokens or output_tokens
            row = self._waiting(node, places, None, output_tokens if columns.is_split else tokens)
            yield msgspec.structs.replace(row, messages=messages, tools=tools_text(tools))
            if columns.is_split:
                place += 1
                called = _function_name(tools)
                text = continued(text, self._results(name), called)
                messages = continued(messages, self._results(name), called)
                yield msgspec.structs.replace(
                    row, messages=messages, tools=None, output_tokens=tokens, think_s=0.0, parents=(place - 1,),
                    lags_s=(),
                )  # fmt: skip
            own[name] = text
            brought[name] = messages if node.full_parent else text
            places[name] = place
            place += 1

    def _lengths(self, output_tokens: int) -> Iterator[TraceRow]:
        """Requests of which only lengths are known."""
        places: dict[str, int] = {}
        own: dict[str, int] = {}
        brought: dict[str, int] = {}
        for place, name in enumerate(self._order):
            node = self._nodes[name]
            answer = node.columns.output_tokens or output_tokens
            history = brought[node.full_parent] if node.full_parent else 0
            prompt = history + sum(own[parent] for parent in node.last_parents) + node.columns.prompt_tokens
            row = self._waiting(node, places, prompt, answer)
            yield msgspec.structs.replace(row, agent=self._conversation(node))
            own[name] = node.columns.prompt_tokens + answer
            brought[name] = prompt + answer if node.full_parent else own[name]
            places[name] = place

    def _waiting(self, node: _Node, places: dict[str, int], input_tokens: int | None, output_tokens: int) -> TraceRow:
        """A request with what it waits for, without its prompt."""
        names = list(dict.fromkeys(ref.parent_node_id for ref in node.parents))
        pause_s, lags_s = self._pauses_s(node, [self._nodes[name] for name in names]) if places else (0.0, ())
        parents = tuple(places[name] for name in names)
        agent = self._agent(node)
        return TraceRow(None, input_tokens, output_tokens, None, pause_s, parents=parents, lags_s=lags_s, agent=agent)

    def _pauses_s(self, node: _Node, parents: list[_Node]) -> tuple[float, tuple[float, ...]]:
        """The pause before a turn, and how much longer each of its parents delays it."""
        time_s = node.times.relative_timestamp
        if not parents:
            return max(0.0, (time_s or 0.0) - (self.start_s or 0.0)), ()
        delays_s = tuple(parent.times.requeue_delay or 0.0 for parent in parents)
        if any(delays_s):
            least_s = min(delays_s)
            lags_s = tuple(delay_s - least_s for delay_s in delays_s)
            return least_s, lags_s if any(lags_s) else ()
        ends_s = [
            parent.times.relative_timestamp + (parent.times.trace_duration or 0.0)
            for parent in parents
            if parent.times.relative_timestamp is not None
        ]
        if time_s is None or len(ends_s) < len(parents):
            return 0.0, ()
        return max(0.0, time_s - max(ends_s)), ()

    def _agent(self, node: _Node) -> str:
        """The turn's agent; empty for that of the first turn, the main agent."""
        return "" if node.agent_id == self._nodes[self._order[0]].agent_id else node.agent_id or "agent"

    def _conversation(self, node: _Node) -> str:
        """Name of the conversation that a turn continues: that of its ``full`` parent, or a new one of its agent."""
        agent = self._agent(node)
        parent = node.full_parent
        if parent is not None and self._agent(self._nodes[parent]) == agent and parent in self._continuable:
            name = self._continuable.pop(parent)
        else:
            self._opened[agent] += 1
            name = agent if self._opened[agent] == 1 else f"{agent or 'main'}#{self._opened[agent]}"
        self._continuable[node.node_id] = name
        return name

    def _results(self, name: str) -> tuple[Message, ...]:
        """Results of the tools that a turn, or its parent, called."""
        results = self._nodes[name].columns.tool_response_column or [_NO_RESULT]
        return tuple(
            Message("tool", result, tool_call_id=f"{name}-{number}") for number, result in enumerate(results, 1)
        )

    def _tool_before(self, node: _Node) -> str:
        """Name of the function that the answer before a turn called."""
        parent = node.full_parent or next(iter(node.last_parents), None)
        return UNNAMED_TOOL if parent is None else _function_name(self._nodes[parent].columns.tools)


def _function_name(tools: list[dict[str, Any]]) -> str:
    """Name of the first function, which stands for the one that was called."""
    name = tools[0].get("function", {}).get("name") if tools else None
    return name if isinstance(name, str) else UNNAMED_TOOL
