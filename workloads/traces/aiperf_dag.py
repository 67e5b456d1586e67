"""``aiperf-dag``: conversations of AIPerf 0.13 that fork and spawn each other, one a line.

AIPerf (ai-dynamo/aiperf, Apache-2.0) appends the messages of each turn to the conversation and its answers. A turn may
``fork`` children, which begin with the conversation so far, and ``spawn`` children, which begin afresh and which a
later turn waits for. Children are other lines of the file. A conversation that is nobody's child is a session, with
all its children in it.
"""

import tempfile
from collections.abc import Generator, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import IO, Annotated, Any, Literal

import msgspec

from bakeoff.workloads.errors import BadTrace
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.checks import RequestedTokens, check_output_tokens, quoted
from bakeoff.workloads.traces.reading import MAX_WHOLE_BYTES, bad, decoded, lines
from bakeoff.workloads.traces.recorded_chat import Lengths, RecordedMessage, continued, messages_of, tools_text
from bakeoff.workloads.traces.row import TraceRow
from bakeoff.workloads.types import Message

MAX_REQUESTS = 100_000
"""Limit on the requests of one session: children that spawn children twice double with every level."""
MAX_DEPTH = 100
"""Limit on the conversations between a session's root and a child."""
_IN_MEMORY_BYTES = 16 * 2**20
"""Children beyond this are kept in a temporary file while the trace is read."""

_Id = Annotated[str, msgspec.Meta(min_length=1)]
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e14)]


class _Fork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    child: _Id
    background: bool = False


class _Spawn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    children: Annotated[list[_Id], msgspec.Meta(min_length=1)]
    join_at: int | None = None


class _Round(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    spawns: Annotated[list[_Id], msgspec.Meta(min_length=1)]
    think_time_ms: _Milliseconds | None = None


class _Branches(msgspec.Struct, frozen=True):
    """What a turn forks and spawns."""

    forks: list[_Id | _Fork] = []
    spawns: list[_Id | _Spawn] = []


class _Turn(_Branches, frozen=True, forbid_unknown_fields=True, kw_only=True):
    messages: Annotated[list[RecordedMessage], msgspec.Meta(min_length=1)] | None = None
    text: str | None = None
    model: str | None = None
    max_tokens: RequestedTokens | None = None
    tools: list[dict[str, Any]] | None = None
    extra: Lengths | None = None
    delay: _Milliseconds = 0.0


class _Named(msgspec.Struct, frozen=True):
    """A conversation, of which only its children are decoded."""

    session_id: _Id
    turns: list[_Branches] = []
    pre_session_spawns: list[_Id] = []
    spawns: list[_Id] = []
    rounds: Annotated[int, msgspec.Meta(ge=1)] | list[_Round] | None = None

    def children(self) -> Iterator[str]:
        """Ids of its children; some may repeat."""
        yield from self.pre_session_spawns
        yield from self.spawns
        for entry in self.rounds if isinstance(self.rounds, list) else []:
            yield from entry.spawns
        for turn in self.turns:
            for fork in turn.forks:
                yield fork if isinstance(fork, str) else fork.child
            for spawn in turn.spawns:
                yield from [spawn] if isinstance(spawn, str) else spawn.children


class _Conversation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    session_id: _Id
    turns: list[_Turn] = []
    pre_session_spawns: list[_Id] = []
    context_mode: (
        Literal["deltas_without_responses", "deltas_with_responses", "message_array_with_responses"] | None
    ) = None
    orchestrator: bool = False
    spawns: list[_Id] = []
    rounds: Annotated[int, msgspec.Meta(ge=1)] | list[_Round] | None = None
    think_time_ms: _Milliseconds | None = None
    think_time_sigma: float | None = None
    think_time_min_ms: _Milliseconds | None = None
    think_time_max_ms: _Milliseconds | None = None


class _Start(msgspec.Struct, frozen=True):
    """Where a conversation begins."""

    row: int
    """Of the conversation in the file, for error messages."""
    agent: str
    waits_for: tuple[int, ...] = ()
    """Calls that its first turn waits for."""
    pause_s: float = 0.0
    """Before its first turn, beside that turn's own delay."""
    history: tuple[Message, ...] = ()
    """Messages before its own."""


class _Call(msgspec.Struct, frozen=True):
    """One request, and the positions of those that it waits for."""

    messages: tuple[Message, ...]
    output_tokens: int
    tools: str | None
    pause_s: float
    waits_for: tuple[int, ...]
    agent: str


_NAMED = msgspec.json.Decoder(_Named)
_CONVERSATIONS = msgspec.json.Decoder(_Conversation)


class AiPerfDag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lines of ``{"session_id", "turns": [{"messages", "max_tokens", "delay", "forks", "spawns", …}]}``.

    Children may come before or after their parents. Memory holds the ids of all lines and one session.
    """

    path: str
    """The file of JSON lines, plain or gzip."""
    output_tokens: int = 256
    """Requested length of the answer of a turn without max_tokens."""

    def __post_init__(self) -> None:
        check_output_tokens(self.output_tokens)

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        del seed  # the trace leaves nothing to chance
        names = self._names_of_children()
        with self._children(names) as children:
            for row, line, named in self._lines():
                if named.session_id in names:
                    continue
                tree = _Tree(self.path, children, self.output_tokens)
                yield from tree.rows(row, decoded(self.path, row, line, _CONVERSATIONS))

    def notes(self) -> list[str]:
        """How conversations become sessions, and what is not replayed."""
        return [
            "aiperf-dag: text as recorded; a conversation that is nobody's child is a session with all its children",
            "aiperf-dag: answers are not recorded, so the assistant's messages between turns are empty",
            "aiperf-dag: forked children begin with their parent's messages; nobody waits for them",
            "aiperf-dag: a turn waits for spawned children's last turns, not for what these fork",
            "aiperf-dag: a delay counts from the last answer that a turn waits for; none at a session's start",
            "aiperf-dag: AIPerf itself leaves out the delay of a child's first turn and of a turn that joins children",
            "aiperf-dag: think times drawn at random (think_time_sigma, _min_ms, _max_ms) are the median think_time_ms",
            "aiperf-dag: model and extra, such as sampling, are not sent, except for the length of the answer",
            "aiperf-dag: the model ends an answer for which tools are recorded; other answers have the stated length",
            f"aiperf-dag: a turn without max_tokens requests {self.output_tokens} tokens; the file has no start times",
        ]

    def _names_of_children(self) -> Set[str]:
        """Ids of the conversations that are somebody's children.

        Raises:
            BadTrace: two lines have one id, a child is no line of the file, or no root leads to it.
        """
        places: dict[str, int] = {}
        wanted: dict[str, int] = {}
        children: dict[str, list[str]] = {}
        for row, _, named in self._lines():
            if named.session_id in places:
                what = f"repeats the session_id {quoted(named.session_id)} of row {places[named.session_id]}"
                raise bad(self.path, row, f"{what}; give each conversation its own")
            places[named.session_id] = row
            for child in named.children():
                wanted.setdefault(child, row)
                children.setdefault(named.session_id, []).append(child)
        absent = next((child for child in wanted if child not in places), None)
        if absent is not None:
            what = f"forks or spawns {quoted(absent)}, which is the session_id of no line"
            raise bad(self.path, wanted[absent], f"{what}; add that conversation")
        roots = [name for name in children if name not in wanted]
        lost = wanted.keys() - _descendants(roots, children)
        if lost:
            first = min(lost, key=lambda name: places[name])
            raise bad(self.path, places[first], "descends from no root, so from itself; remove one of its parents")
        return wanted.keys()

    @contextmanager
    def _children(self, names: Set[str]) -> Generator["_Children"]:
        """The children, in a temporary file if they are large."""
        with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as file:
            children = _Children(self.path, file)
            if names:
                for row, line, named in self._lines():
                    if named.session_id in names:
                        children.add(named.session_id, row, line)
            yield children

    def _lines(self) -> Iterator[tuple[int, bytes, _Named]]:
        """Row, text and names of each conversation."""
        for row, line in lines(self.path, MAX_WHOLE_BYTES):
            yield row, line, decoded(self.path, row, line, _NAMED)


def _descendants(roots: list[str], children: dict[str, list[str]]) -> set[str]:
    """All children of ``roots``, and theirs."""
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        new = set(children.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found


class _Children:
    """Conversations that are kept in a file until a session needs them.

    Args:
        path: of the trace, for error messages.
        file: to which they are written.
    """

    def __init__(self, path: str, file: IO[bytes]) -> None:
        self._path = path
        self._file = file
        self._places: dict[str, tuple[int, int, int]] = {}

    def add(self, name: str, row: int, line: bytes) -> None:
        """Keep a conversation."""
        self._places[name] = (row, self._file.tell(), len(line))
        self._file.write(line)

    def find(self, name: str) -> tuple[int, _Conversation]:
        """The row of a conversation, and what it holds."""
        row, offset, size = self._places[name]
        self._file.seek(offset)
        return row, decoded(self._path, row, self._file.read(size), _CONVERSATIONS)


class _Tree:
    """Makes one session of a root and its children.

    Args:
        path: of the trace, for error messages.
        children: all that are somebody's.
        output_tokens: where the length of an answer is not recorded.
    """

    def __init__(self, path: str, children: _Children, output_tokens: int) -> None:
        self._path = path
        self._children = children
        self._output_tokens = output_tokens
        self._calls: list[_Call] = []
        self._agents: dict[str, int] = {}
        self._branch: list[str] = []

    def rows(self, row: int, root: _Conversation) -> Iterator[TraceRow]:
        """The session's requests, each behind those that it waits for."""
        self._add(root, _Start(row, ""))
        calls = self._calls
        is_chain = all(call.waits_for == ((place - 1,) if place else ()) for place, call in enumerate(calls))
        for call in calls:
            # Times count from the session's first request.
            start_s = calls[0].pause_s if not call.waits_for else 0.0
            yield TraceRow(
                None, None, call.output_tokens, root.session_id, max(0.0, call.pause_s - start_s),
                messages=call.messages, tools=call.tools, parents=None if is_chain else call.waits_for,
                agent=call.agent,
            )  # fmt: skip

    def _add(self, conversation: _Conversation, start: _Start) -> tuple[int, ...]:
        """Add the calls of a conversation and of its children; returns the calls that end it."""
        row = start.row
        name = conversation.session_id
        if name in self._branch:
            cycle = " -> ".join(map(quoted, (*self._branch[self._branch.index(name) :], name)))
            raise self._bad(row, f"is its own descendant: {cycle}; remove one of these forks or spawns")
        if len(self._branch) >= MAX_DEPTH:
            raise self._bad(row, f"is more than {MAX_DEPTH} conversations below its root; split the session")
        self._branch.append(name)
        ends = (self._add_rounds if conversation.orchestrator else self._add_turns)(conversation, start)
        self._branch.pop()
        return ends

    def _add_turns(self, conversation: _Conversation, start: _Start) -> tuple[int, ...]:
        row, pause_s, waits_for, history = start.row, start.pause_s, start.waits_for, start.history
        turns = conversation.turns
        if not turns:
            raise self._bad(row, "has no turns; only an orchestrator may have none")
        if conversation.spawns or conversation.rounds is not None:
            raise self._bad(row, "has spawns or rounds beside its turns; only an orchestrator may have them")
        keeps_history = conversation.context_mode != "message_array_with_responses"
        joined: dict[int, list[int]] = {}
        for number, turn in enumerate(turns):
            own = self._messages(row, number, turn)
            history = continued(history, own) if keeps_history else own
            waits_for = (*waits_for, *joined.pop(number, ()))
            if len(self._calls) >= MAX_REQUESTS:
                raise self._bad(row, f"belongs to a session of more than {MAX_REQUESTS} requests; split the session")
            tokens = self._answer_tokens(turn)
            pause_s += turn.delay / 1000
            self._calls.append(_Call(history, tokens, tools_text(turn.tools), pause_s, waits_for, start.agent))
            pause_s = 0.0
            waits_for = (len(self._calls) - 1,)
            if number == 0:
                self._spawn(conversation.pre_session_spawns, start.waits_for, start.pause_s)
            self._fork(row, conversation, number, history, waits_for)
            self._check_repeats(row, number, turn)
            for spawn in turn.spawns:
                children = [spawn] if isinstance(spawn, str) else spawn.children
                join_at = None if isinstance(spawn, str) else spawn.join_at
                if join_at is not None and not number < join_at < len(turns):
                    allowed = (
                        f"from {number + 1} to {len(turns) - 1}"
                        if number < len(turns) - 1
                        else "left out, at the last turn"
                    )
                    raise self._bad(row, f"turn {number} has join_at {join_at}; it must be {allowed}")
                ends = self._spawn(children, waits_for, 0.0)
                joined.setdefault(number + 1 if join_at is None else join_at, []).extend(ends)
        return waits_for

    def _add_rounds(self, conversation: _Conversation, start: _Start) -> tuple[int, ...]:
        """Add what a conversation without requests spawns: all at once, or in rounds that wait for each other."""
        row, pause_s, ready = start.row, start.pause_s, start.waits_for
        rounds = conversation.rounds
        if conversation.turns or conversation.pre_session_spawns:
            raise self._bad(
                row, "is an orchestrator with turns or pre_session_spawns; it may only have spawns and rounds"
            )
        default_s = (conversation.think_time_ms or 0.0) / 1000
        if isinstance(rounds, list) and rounds and not conversation.spawns:
            plan = [
                (entry.spawns, default_s if entry.think_time_ms is None else entry.think_time_ms / 1000)
                for entry in rounds
            ]
        elif conversation.spawns and not isinstance(rounds, list):
            plan = [(conversation.spawns, default_s)] * min(rounds or 1, MAX_REQUESTS + 1)
        else:
            raise self._bad(row, "is an orchestrator that needs either spawns or a list of rounds that have them")
        for spawns, think_s in plan:
            ready = self._spawn(spawns, ready, pause_s + think_s)
            pause_s = 0.0
        return ready

    def _fork(
        self,
        row: int,
        conversation: _Conversation,
        number: int,
        history: tuple[Message, ...],
        waits_for: tuple[int, ...],
    ) -> None:
        for entry in conversation.turns[number].forks:
            fork = _Fork(entry) if isinstance(entry, str) else entry
            if not fork.background and number < len(conversation.turns) - 1:
                what = f"turn {number} forks {quoted(fork.child)}, which ends the conversation, but turns follow"
                raise self._bad(row, f"{what}; set background, or move it to the last turn")
            place, child = self._children.find(fork.child)
            if child.orchestrator or child.context_mode == "message_array_with_responses":
                raise self._bad(place, f"is forked by row {row}, but takes no history; spawn it instead")
            self._add(child, _Start(place, self._agent(fork.child), waits_for, history=history))

    def _spawn(self, names: Sequence[str], ready: tuple[int, ...], pause_s: float) -> tuple[int, ...]:
        ends: list[int] = []
        for name in names:
            place, child = self._children.find(name)
            ends += self._add(child, _Start(place, self._agent(name), ready, pause_s))
        return tuple(ends)

    def _check_repeats(self, row: int, number: int, turn: _Turn) -> None:
        """Check that a turn neither forks nor spawns a child twice."""
        forked = [fork if isinstance(fork, str) else fork.child for fork in turn.forks]
        spawned = [name for spawn in turn.spawns for name in ([spawn] if isinstance(spawn, str) else spawn.children)]
        for verb, names in (("forks", forked), ("spawns", spawned)):
            twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
            if twice is not None:
                raise self._bad(row, f"turn {number} {verb} {quoted(twice)} twice; remove one of them")

    def _answer_tokens(self, turn: _Turn) -> int:
        """Requested length of an answer; the fields that replace others come first."""
        extra = turn.extra or Lengths()
        return extra.max_completion_tokens or extra.max_tokens or turn.max_tokens or self._output_tokens

    def _messages(self, row: int, number: int, turn: _Turn) -> tuple[Message, ...]:
        if turn.messages is None:
            if not turn.text:
                raise self._bad(row, f"turn {number} has neither messages nor text")
            return (Message("user", turn.text),)
        try:
            return messages_of(turn.messages)
        except ValueError as cause:
            raise self._bad(row, f"turn {number}: {cause}") from None

    def _agent(self, name: str) -> str:
        """A name for a child that is unique in the session."""
        self._agents[name] = count = self._agents.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    def _bad(self, row: int, what: str) -> BadTrace:
        return bad(self._path, row, what)
