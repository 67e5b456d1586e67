"""A recording of agent sessions in the AgentX dialect, made by chance, with what each call waited for.

The graph is stated by who made the recording, not read back from the file, so it can check its readers.
"""

import itertools
import json
import random
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

BLOCK_TOKENS = 64
TTFT_S, ITL_S = 0.08, 0.008
"""Of every answer, recorded and replayed."""
SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_OUTPUT_TOKENS = 5, 40
_LONGEST_TOKENS = 3_000
_SHARED_BLOCKS = 3
"""Leading blocks that survive a compaction, and that some sub-agents share with the main agent."""


class Kind(StrEnum):
    """What a call waits for."""

    FIRST = "first"
    """Nothing."""
    NEXT = "next"
    """The previous call of its agent ended last."""
    LAUNCH = "launch"
    """The first call of a sub-agent: the main agent's last answer."""
    JOIN = "join"
    """A sub-agent ended last."""


class Call(msgspec.Struct):
    """A recorded call.

    Attributes:
        agent: of the session; the main agent's is empty.
        start_s, end_s: since the session's start.
        input_tokens, output_tokens: of prompt and answer.
        hash_ids: of the prompt's whole blocks.
        waits_for: positions in the session of calls that had to end before it.
        pause_s: from the end of the last of them to its start.
    """

    agent: str
    start_s: float
    end_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: list[int]
    waits_for: list[int]
    kind: Kind = Kind.NEXT
    pause_s: float = 0.0


def answer_s(output_tokens: int) -> float:
    """How long an answer takes."""
    return round(TTFT_S + ITL_S * (output_tokens - 1), 3)


class Session:
    """A main agent of 12 to 15 calls with 6 to 8 sub-agents of at least two.

    The main agent waits for two or three of them at once, twice; one ends beside its calls and is joined later; one
    outlives it. A conversation of a single call would not be told from a client's requests before the load.

    Attributes:
        name: of the session.
        calls: in the order in which they were made up.
        conversations: positions of each agent's calls.
    """

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.calls: list[Call] = []
        self.conversations: dict[str, list[int]] = {}
        self._rng = rng
        self._next_id = 0
        prompt = self._prompt([], rng.randint(200, 800))
        t_s = 0.0
        for number in range(rng.randint(12, 15)):
            self._add("", t_s, prompt)
            t_s = self.calls[-1].end_s + self._pause_s()
            if number in (1, 8):
                t_s = self._launch_and_wait(rng.randint(2, 3))
            elif number in (4, 10):
                # The main agent goes on at once, so that some of these start during its next call.
                self._launch(rng.randint(2, 3) if number == 4 else rng.randint(6, 7))
                t_s = self.calls[self.conversations[""][-1]].end_s + SHORTEST_PAUSE_S
            prompt = self._grown(prompt)
        self._connect()

    def lengths(self, agent: str) -> tuple[int, ...]:
        """Output tokens of an agent's calls."""
        return tuple(self.calls[position].output_tokens for position in self.conversations[agent])

    def rows(self) -> dict[str, Any]:
        """The session as a line of the file."""
        rows = [self._row(self.calls[position], "s") for position in self.conversations[""]]
        rows += [self._group(agent) for agent in self.conversations if agent]
        rows.sort(key=lambda row: row["t"])
        self._think(rows)
        return {
            "id": self.name, "models": ["m"], "block_size": BLOCK_TOKENS, "hash_id_scope": "local", "requests": rows,
        }  # fmt: skip

    def _pause_s(self) -> float:
        """Short pauses are more frequent than long ones."""
        return round(SHORTEST_PAUSE_S + (_LONGEST_PAUSE_S - SHORTEST_PAUSE_S) * self._rng.random() ** 2, 3)

    def _prompt(self, shared: list[int], tokens: int) -> tuple[list[int], int]:
        """Ids of a prompt's whole blocks, and its tokens."""
        new = max(0, tokens // BLOCK_TOKENS - len(shared))
        ids = [*shared, *range(self._next_id, self._next_id + new)]
        self._next_id += new
        return ids, max(tokens, BLOCK_TOKENS * len(shared) + 1)

    def _grown(self, prompt: tuple[list[int], int]) -> tuple[list[int], int]:
        """The next prompt of an agent: the previous one and more, or a compacted one."""
        ids, tokens = prompt
        if tokens > _LONGEST_TOKENS - 600:
            return self._prompt(ids[:_SHARED_BLOCKS], self._rng.randint(300, 900))
        longer = self._prompt(ids, tokens + self._rng.randint(50, 400))
        return longer if self._rng.random() < 0.8 else (longer[0], BLOCK_TOKENS * len(longer[0]))

    def _add(self, agent: str, start_s: float, prompt: tuple[list[int], int]) -> None:
        own = self.conversations.setdefault(agent, [])
        output = self._rng.randint(*_OUTPUT_TOKENS)
        start_s = round(start_s, 3)
        end_s = round(start_s + answer_s(output), 3)
        self.calls.append(Call(agent, start_s, end_s, prompt[1], output, prompt[0], own[-1:]))
        own.append(len(self.calls) - 1)

    def _launch(self, count: int) -> float:
        """Add a sub-agent that the main agent launches after its last call; returns its end in seconds."""
        name = f"agent_{len(self.conversations):03}"
        launcher = self.calls[self.conversations[""][-1]]
        start_s = launcher.end_s + self._rng.uniform(0.1, 0.6)
        shared = launcher.hash_ids[:_SHARED_BLOCKS] if self._rng.random() < 0.5 else []
        prompt = self._prompt(shared, self._rng.randint(200, 900))
        for _ in range(count):
            self._add(name, start_s, prompt)
            start_s = self.calls[-1].end_s + self._pause_s()
            prompt = self._grown(prompt)
        return self.calls[-1].end_s

    def _launch_and_wait(self, agents: int) -> float:
        """Add sub-agents at once; returns the start of the main agent's call that waits for them, in seconds."""
        return max(self._launch(self._rng.randint(2, 3)) for _ in range(agents)) + self._pause_s()

    def _connect(self) -> None:
        """Say what calls wait for: the main agent for sub-agents that had ended, these for its last answer by then."""
        main = [self.calls[position] for position in self.conversations[""]]
        for agent, positions in self.conversations.items():
            if not agent:
                continue
            first, last = (self.calls[positions[at]] for at in (0, -1))
            launchers = [n for n in self.conversations[""] if self.calls[n].end_s <= first.start_s]
            first.waits_for = launchers[-1:]
            joining = next((call for call in main if call.start_s >= last.end_s), None)
            if joining is not None:
                joining.waits_for.append(positions[-1])
        for call in self.calls:
            if not call.waits_for:
                call.kind = Kind.FIRST
                continue
            last = max((self.calls[number] for number in call.waits_for), key=lambda other: other.end_s)
            call.pause_s = round(call.start_s - last.end_s, 3)
            if last.agent != call.agent:
                call.kind = Kind.LAUNCH if call.agent else Kind.JOIN

    def _row(self, call: Call, kind: str) -> dict[str, Any]:
        row = {
            "t": call.start_s, "type": kind, "model": "m", "in": call.input_tokens, "out": call.output_tokens,
            "hash_ids": call.hash_ids, "api_time": answer_s(call.output_tokens), "think_time": None,
        }  # fmt: skip
        return row | ({"ttft": TTFT_S} if kind == "s" else {})

    def _group(self, name: str) -> dict[str, Any]:
        calls = [self.calls[position] for position in self.conversations[name]]
        duration_ms = round(1000 * (calls[-1].end_s - calls[0].start_s))
        return {
            "t": calls[0].start_s, "type": "subagent", "agent_id": name, "subagent_type": "Explore",
            "duration_ms": duration_ms, "total_tokens": sum(c.input_tokens + c.output_tokens for c in calls),
            "tool_use_count": None, "status": "completed", "models": ["m"],
            "requests": [self._row(call, "n") for call in calls],
        }  # fmt: skip

    @staticmethod
    def _think(rows: list[dict[str, Any]]) -> None:
        """Fill in think times as AgentX does: from the end of the row before, of any agent."""
        flat = [inner for row in rows for inner in row.get("requests", [row])]
        flat.sort(key=lambda row: row["t"])
        for last, row in itertools.pairwise(flat):
            row["think_time"] = round(max(0.0, row["t"] - last["t"] - last["api_time"]), 3)


def sessions(count: int, seed: int) -> list[Session]:
    """Sessions of which no two agents have the same lengths of answers, by which they are recognised."""
    rng = random.Random(seed)
    made: list[Session] = []
    seen: set[tuple[int, ...]] = set()
    while len(made) < count:
        session = Session(f"session-{len(made)}", rng)
        lengths = [session.lengths(agent) for agent in session.conversations]
        if len(seen | set(lengths)) == len(seen) + len(lengths):
            seen |= set(lengths)
            made.append(session)
    return made


def write(recorded: list[Session], folder: Path) -> None:
    """Write ``traces.jsonl``, and the same lines as a file each, since AIPerf reads no file of several sessions."""
    lines = [json.dumps(session.rows()) for session in recorded]
    (folder / "traces.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "sessions").mkdir()
    for session, line in zip(recorded, lines, strict=True):
        (folder / "sessions" / f"{session.name}.json").write_text(line, encoding="utf-8")
