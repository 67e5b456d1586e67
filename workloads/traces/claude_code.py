"""``claude-code``: recorded sessions of a coding agent with its sub-agents, one JSON object each.

The form of the WEKA sessions in callanjfox/kv-cache-tester (Apache-2.0), a file each, and of the AgentX corpora, a line
each: lengths, 64-token blocks, times, and groups of requests that a sub-agent sent.
"""

import heapq
import itertools
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import msgspec

from bakeoff.workloads.rng import Seed
from bakeoff.workloads.traces.blocks import BlockHashes, blocks_of
from bakeoff.workloads.traces.checks import BlockTokens, InputTokens, OutputTokens, Seconds
from bakeoff.workloads.traces.reading import bad, decoded, documents, session_files
from bakeoff.workloads.traces.row import TraceRow

_EQUAL_S = 0.002
"""Times that differ by less are the same instant: recordings round to milliseconds."""


class _Session(msgspec.Struct, frozen=True):
    block_size: BlockTokens
    requests: list[msgspec.Raw]
    id: str | None = None
    hash_id_scope: str = "local"


class _Request(msgspec.Struct, frozen=True):
    input_tokens: InputTokens = msgspec.field(name="in")
    output_tokens: OutputTokens = msgspec.field(name="out")
    hash_ids: msgspec.Raw = msgspec.Raw(b"[]")
    """Decoded only where it is needed: a prompt of a coding agent has thousands."""
    think_time: Seconds | None = None
    t: Seconds | None = None
    api_time: Seconds | None = None


class _Streamed(_Request, frozen=True, tag_field="type", tag="s"):
    pass


class _NotStreamed(_Request, frozen=True, tag_field="type", tag="n"):
    pass


class _Group(msgspec.Struct, frozen=True, tag_field="type", tag="subagent"):
    """Requests that a sub-agent sent."""

    t: Seconds
    requests: list[msgspec.Raw]
    agent_id: str = ""
    duration_ms: Annotated[float, msgspec.Meta(ge=0)] | None = None
    status: str = "completed"


_HASH_IDS = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=0)]])
_SESSIONS = msgspec.json.Decoder(_Session)
_REQUESTS: msgspec.json.Decoder[_Streamed | _NotStreamed | _Group] = msgspec.json.Decoder(
    _Streamed | _NotStreamed | _Group
)


class _InnerTimes(Enum):
    """What the times of a sub-agent's requests count from; the same in the whole file."""

    SESSION = "session"
    """The session's start, as in the AgentX corpora: a group's own time is its start."""
    GROUP = "group"
    """The sub-agent's start, as in kv-cache-tester: a group's own time is its end, unless it was launched beside the
    main agent."""


class _Call(msgspec.Struct):
    """One request with its place in time and in the graph."""

    start_s: float
    end_s: float
    request: _Request
    number: int
    """Among the requests of the session, in the order of the file, from 1."""
    place: str
    agent: str
    pause_s: float | None
    waits_for: dict[int, float]
    """Position of each call that it waits for, in the order of reading, and the time from its answer to its end."""


class _Hits:
    """Counts of blocks and of their hits."""

    def __init__(self) -> None:
        self.requests = self.blocks = self.hits = 0

    def add(self, ids: Sequence[int], seen: set[int]) -> None:
        """Count a request with these blocks, whose session has ``seen`` some."""
        self.requests += 1
        self.blocks += len(ids)
        self.hits += sum(1 for _ in itertools.takewhile(seen.__contains__, ids))
        seen.update(ids)

    @property
    def share(self) -> float:
        """Hits per block."""
        return self.hits / max(1, self.blocks)


class ClaudeCode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A folder of session files, in the order of their names, or one such file."""

    path: str
    """The folder; or a file of one session (``*.json``) or of one session a line (``*.jsonl``), plain or gzip."""

    def rows(self, seed: Seed) -> Iterator[TraceRow]:
        """The requests, as :class:`bakeoff.workloads.traces.row.Trace` defines them."""
        del seed  # the trace leaves nothing to chance
        return self._rows(has_blocks=True)

    def lengths(self, seed: Seed) -> Iterator[TraceRow]:
        """The same rows without blocks, in a fraction of the time."""
        del seed
        return self._rows(has_blocks=False)

    def figures(self) -> dict[str, float]:
        """Requests of main and sub-agents, and the hits of an unlimited prefix cache of each session.

        Hits are whole hash ids at the start of a prompt that an earlier request of the session had, as InferenceX and
        AIPerf count them; once with the cache shared by all agents, and once for the main agents alone.
        """
        total, main = _Hits(), _Hits()
        sub_agents = 0
        for reading in self._readings():
            shared, own = set[int](), set[int]()
            for agent, ids in reading.recorded_blocks():
                total.add(ids, shared)
                if not agent:
                    main.add(ids, own)
            sub_agents += reading.sub_agents
        return {
            "sub_agents": sub_agents,
            "sub_agent_requests": total.requests - main.requests,
            "blocks": total.blocks,
            "block_hit_share": total.share,
            "main_agent_blocks": main.blocks,
            "main_agent_block_hit_share": main.share,
        }

    def _rows(self, *, has_blocks: bool) -> Iterator[TraceRow]:
        has_rows = False
        for reading in self._readings():
            for row in reading.rows(has_blocks=has_blocks):
                has_rows = True
                yield row
        if not has_rows:
            raise bad(self.path, None, "has no requests")

    def _readings(self) -> Iterator["_Reading"]:
        """The sessions, in the order of files and rows."""
        names = dict[str, str]()
        for file in session_files(self.path):
            inner_times: _InnerTimes | None = None
            for place, session in documents(file, _SESSIONS):
                name = session.id or f"{file.name.partition('.')[0]}{f'-{place}' if place else ''}"
                where = f"row {place} of {file.name}" if place else file.name
                if name in names:
                    raise bad(file, place, f"repeats the session {name!r} of {names[name]}; remove one of them")
                names[name] = where
                reading = _Reading(file, place, session, name)
                inner_times = inner_times or reading.inner_times()
                reading.read(inner_times or _InnerTimes.SESSION)
                yield reading

    def notes(self) -> list[str]:
        """What is left out of the trace and what is added."""
        return [
            "claude-code: lengths, prefix blocks and sub-agents as recorded; sessions have no common clock",
            "claude-code: a pause lasts from the end (t + api_time) of the answers that a request waits for",
            "claude-code: without api_time it is the think time, or the time since the previous request",
            "claude-code: a request waits for each sub-agent that had ended by its recorded start",
            "claude-code: an answer abandoned at 0 tokens is requested with 1; recorded models are not sent",
            "claude-code: a prompt's last, partial block has no hash in the trace and is not shared",
        ]


class _Reading:
    """Reads one session.

    Args:
        file: for error messages, as ``place``.
        place: row of the session, if the file has one a line.
        session: its requests, not yet decoded.
        name: unique in the trace.
    """

    def __init__(self, file: Path, place: int | None, session: _Session, name: str) -> None:
        self._file = file
        self._place = place
        self._name = name
        self._block_tokens = session.block_size
        self._hashes = BlockHashes("" if session.hash_id_scope == "global" else name)
        self._last_blocks = BlockHashes(name, "last blocks")
        self._entries = [self._decoded(raw, f"request {number}") for number, raw in enumerate(session.requests, 1)]
        self._numbers = itertools.count(1)
        self._calls: list[_Call] = []
        self._agents: set[str] = set()

    def inner_times(self) -> _InnerTimes | None:
        """What the session's groups say about the file; None if they say nothing."""
        votes = 0
        for entry in self._entries:
            if isinstance(entry, _Group) and entry.t > _EQUAL_S and entry.requests:
                first = self._decoded(entry.requests[0], f"sub-agent {entry.agent_id!r}, request 1")
                if first.t is not None:
                    votes += 1 if first.t >= entry.t - _EQUAL_S else -1
        return None if not votes else _InnerTimes.SESSION if votes > 0 else _InnerTimes.GROUP

    @property
    def sub_agents(self) -> int:
        """Number of sub-agents that sent a request."""
        return len(self._agents)

    def read(self, inner_times: _InnerTimes) -> None:
        """Read the requests and connect them."""
        self._read(self._entries, "", 0.0, inner_times)
        self._entries.clear()

    def recorded_blocks(self) -> Iterator[tuple[str, list[int]]]:
        """Agent and hash ids of each request, in the order of their recorded start."""
        for number in self._order():
            call = self._calls[number]
            yield call.agent, self._hash_ids(call)

    def rows(self, *, has_blocks: bool) -> Iterator[TraceRow]:
        """The requests in the order of their recorded start, with what they wait for."""
        calls = self._calls
        is_chain = not self._agents
        order = self._order()
        places = {number: place for place, number in enumerate(order)}
        for number in order:
            call = calls[number]
            if not is_chain and not call.waits_for:
                call.pause_s = max(0.0, call.start_s - calls[order[0]].start_s)
            parents = {places[parent]: lag_s for parent, lag_s in call.waits_for.items()}
            blocks = self._blocks(call) if has_blocks else ()
            yield TraceRow(
                None,
                call.request.input_tokens,
                max(1, call.request.output_tokens),
                self._name,
                call.pause_s,
                blocks,
                self._block_tokens if blocks else 0,
                parents=None if is_chain else tuple(parents),
                lags_s=tuple(parents.values()) if any(parents.values()) else (),
                agent=call.agent,
                recorded_s=call.end_s - call.start_s,
            )

    def _order(self) -> list[int]:
        """The calls by their start, each behind those that it waits for."""
        children: list[list[int]] = [[] for _ in self._calls]
        for number, call in enumerate(self._calls):
            for parent in call.waits_for:
                children[parent].append(number)
        pending = [len(call.waits_for) for call in self._calls]
        ready = [(call.start_s, number) for number, call in enumerate(self._calls) if not call.waits_for]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            order.append(heapq.heappop(ready)[1])
            for child in children[order[-1]]:
                pending[child] -= 1
                if not pending[child]:
                    heapq.heappush(ready, (self._calls[child].start_s, child))
        return order

    def _read(
        self, entries: list[_Streamed | _NotStreamed | _Group], agent: str, base_s: float, inner_times: _InnerTimes
    ) -> list[int]:
        """Read the requests of one agent and of its sub-agents; returns the positions of its own calls."""
        # AgentX counts think times from the last request of any agent.
        own_think_times = inner_times is _InnerTimes.GROUP or not any(isinstance(entry, _Group) for entry in entries)
        stream: list[int] = []
        groups: list[tuple[_Group, str]] = []
        last: _Request | None = None
        for number, entry in enumerate(entries, 1):
            place = f"sub-agent {agent!r}, request {number}" if agent else f"request {number}"
            if isinstance(entry, _Group):
                if entry.requests:
                    groups.append((entry, self._agent(agent, entry.agent_id)))
                continue
            before = self._calls[stream[-1]] if stream else None
            start_s = base_s + entry.t if entry.t is not None else (before.end_s if before else base_s)
            start_s = max(start_s, before.start_s) if before else start_s
            pause_s = None if last is None else _pause_s(entry, last, own_think_times=own_think_times)
            waits_for = {stream[-1]: 0.0} if stream else {}
            end_s = start_s + (entry.api_time or 0.0)
            call = _Call(start_s, end_s, entry, next(self._numbers), place, agent, pause_s, waits_for)
            stream.append(len(self._calls))
            self._calls.append(call)
            last = entry
        for group, name in groups:
            self._add_group(group, name, stream, base_s, inner_times)
        return stream

    def _add_group(self, group: _Group, name: str, stream: list[int], base_s: float, inner_times: _InnerTimes) -> None:
        """Read a sub-agent, and connect it with the calls of the agent that launched it."""
        inner = [self._decoded(raw, f"sub-agent {name!r}, request {n}") for n, raw in enumerate(group.requests, 1)]
        duration_s = None if group.duration_ms is None else group.duration_ms / 1000
        if inner_times is _InnerTimes.SESSION:
            start_s, inner_base_s = group.t, 0.0
            end_s = None if duration_s is None else start_s + duration_s
        else:
            is_launch = group.status == "async_launched" or duration_s is None
            start_s = inner_base_s = max(0.0, base_s + group.t - (0.0 if is_launch else duration_s or 0.0))
            end_s = None if is_launch else base_s + group.t
        own = self._read(inner, name, inner_base_s, inner_times)
        if not own:
            return
        first, last = self._calls[own[0]], self._calls[own[-1]]
        end_s = max(last.end_s, end_s or 0.0)
        begun = [number for number in stream if self._calls[number].start_s <= start_s + _EQUAL_S]
        # A call that was still in flight did not launch it, unless there is no other.
        ended = (number for number in reversed(begun) if self._calls[number].end_s <= start_s + _EQUAL_S)
        parent = next(ended, begun[-1] if begun else None)
        if parent is not None:
            first.pause_s = max(0.0, first.start_s - self._calls[parent].end_s)
            first.waits_for[parent] = 0.0
        joined = next((n for n in stream if self._calls[n].start_s >= end_s - _EQUAL_S and n != parent), None)
        if joined is not None:
            call = self._calls[joined]
            call.waits_for[own[-1]] = end_s - last.end_s
            ready_s = [self._calls[number].end_s + lag_s for number, lag_s in call.waits_for.items()]
            call.pause_s = max(0.0, call.start_s - max(ready_s))

    def _hash_ids(self, call: _Call) -> list[int]:
        try:
            return _HASH_IDS.decode(call.request.hash_ids)
        except msgspec.ValidationError as cause:
            raise bad(self._file, self._at(call.place), str(cause).replace("`$", "`$.hash_ids")) from None

    def _blocks(self, call: _Call) -> tuple[int, ...]:
        """Hashes of a prompt's blocks, the partial one at its end included; empty if they are not recorded."""
        blocks = self._hashes.of(self._hash_ids(call))
        tokens = call.request.input_tokens
        expected = blocks_of(tokens, self._block_tokens)
        if blocks and len(blocks) not in (expected, tokens // self._block_tokens):
            size = f"{tokens} tokens make {expected} blocks of {self._block_tokens}"
            problem = f"has {len(blocks)} hash_ids, but {size}"
            raise bad(self._file, self._at(call.place), f"{problem}; its block_size does not match its hash_ids")
        if blocks and len(blocks) < expected:
            blocks.append(self._last_blocks[call.number])
        return tuple(blocks)

    def _agent(self, parent: str, name: str) -> str:
        """A name for a sub-agent that is unique in the session."""
        base = f"{parent}/{name}" if parent else name or "sub-agent"
        unique = next(n for k in itertools.count(1) if (n := base if k == 1 else f"{base}-{k}") not in self._agents)
        self._agents.add(unique)
        return unique

    def _decoded(self, raw: msgspec.Raw, place: str) -> _Streamed | _NotStreamed | _Group:
        return decoded(self._file, self._at(place), raw, _REQUESTS)

    def _at(self, place: str) -> str:
        return place if self._place is None else f"row {self._place}, {place}"


def _pause_s(request: _Request, last: _Request, *, own_think_times: bool) -> float | None:
    """Pause before a request of a conversation, in seconds; None if the session does not tell.

    Args:
        request: the request.
        last: the previous one.
        own_think_times: whether think times count from the previous request of the same conversation.
    """
    if request.t is None or last.t is None:
        return request.think_time
    if last.api_time is None and request.think_time is not None and own_think_times:
        return request.think_time
    return max(0.0, request.t - last.t - (last.api_time or 0.0))
