"""Lengths, turns and pauses of a trace's sessions, with those of sub-agents apart from the main agent's."""

import itertools
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from bakeoff.workloads.graph import Parents, parents_of
from bakeoff.workloads.outline import Segment, TurnOutline

_CONVERSATIONS_FOR_PREFIX = 2_000
_NEARLY_ALL = 0.9


class AgentLengths:
    """Lengths and pauses of agents of one kind, each with a conversation of its own.

    Attributes:
        first: input and output tokens of each agent's first request.
        appended: tokens that later requests add to the previous prompt and answer, and their output tokens.
        output: output tokens of each request that another one of its agent follows.
        last_output: output tokens of each agent's last request.
        think_s: pauses before later requests.
        turns: requests per agent.
        shrunk: number of later requests whose prompt is not longer than the previous one.
        compacted: number of those that are shorter than half the previous one.
        overlapping: number of later requests whose prompt grew by less than the previous answer.
    """

    def __init__(self) -> None:
        self.first: tuple[array[float], array[float]] = (array("d"), array("d"))
        self.appended: tuple[array[float], array[float]] = (array("d"), array("d"))
        self.output: array[float] = array("d")
        self.last_output: array[float] = array("d")
        self.think_s: array[float] = array("d")
        self.turns: array[float] = array("d")
        self.shrunk = self.compacted = self.overlapping = 0
        self._leading: list[tuple[Segment, ...]] = []

    def add(self, turns: Sequence[TurnOutline], joins: Collection[int] = ()) -> None:
        """Add one agent's requests, at least one.

        Args:
            turns: the requests in their order.
            joins: positions of those that wait for sub-agents. Their pauses and what they append are left out.
        """
        self.turns.append(len(turns))
        if len(self._leading) < _CONVERSATIONS_FOR_PREFIX:
            self._leading.append(turns[0].segments)
        _extend(self.first, turns[0].input_tokens, turns[0].output_tokens)
        self.output.extend(turn.output_tokens for turn in turns[:-1])
        self.last_output.append(turns[-1].output_tokens)
        for number in range(1, len(turns)):
            if number not in joins:
                self.think_s.append(turns[number].think_s)
                self._add_later(turns[number], turns[number - 1])

    def _add_later(self, turn: TurnOutline, last: TurnOutline) -> None:
        if turn.input_tokens <= last.input_tokens:
            self.shrunk += 1
            self.compacted += turn.input_tokens < last.input_tokens / 2
            return
        appended = turn.input_tokens - last.input_tokens - last.output_tokens
        self.overlapping += appended < 1
        _extend(self.appended, max(1, appended), turn.output_tokens)

    @property
    def later(self) -> int:
        """Number of requests that are not the first of their agent."""
        return len(self.output)

    def correlation(self) -> float:
        """Spearman's correlation of the new tokens of a prompt (first input or appended) with its answer."""
        from scipy.stats import rankdata  # noqa: PLC0415  (scipy costs 0.5 s; --help must not pay)

        total = 0.0
        for new, output in (self.first, self.appended):
            if len(new) > 1 and min(new) < max(new) and min(output) < max(output):
                total += len(new) * float(np.corrcoef(rankdata(new), rankdata(output))[0, 1])
        return total / (len(self.first[0]) + len(self.appended[0]))

    def shared_tokens(self) -> int:
        """Length of the prefix that at least 90 % of the agents share."""
        matching, depth, tokens = self._leading, 0, 0
        while True:
            segments = Counter(prompt[depth] for prompt in matching if len(prompt) > depth)
            segment, count = segments.most_common(1)[0] if segments else (("", 0), 0)
            if count < max(_NEARLY_ALL * len(self._leading), 2):
                return tokens
            matching = [prompt for prompt in matching if len(prompt) > depth and prompt[depth] == segment]
            depth, tokens = depth + 1, tokens + segment[1]


class Lengths:
    """Lengths, turns and pauses of all sessions.

    Attributes:
        main: those of the main agents, which send the first request of their session.
        sub_agents: those of all other agents.
        input: prompt tokens of every request.
        starts: number of sessions with a start time.
        at_once: number of sub-agents that start after one request of a main agent, for each such request.
        start_pause_s: pause before each sub-agent's first request.
        join_pause_s: pause before each request of a main agent that waits for sub-agents, after the last of them.
        background: number of sub-agents that nobody waits for.
        nested: number of sub-agents that no main agent starts.
        beside: number of requests that do not wait for the previous one of their agent.
    """

    def __init__(self) -> None:
        self.main: AgentLengths = AgentLengths()
        self.sub_agents: AgentLengths = AgentLengths()
        self.input, self.at_once = array("d"), array("d")
        self.start_pause_s, self.join_pause_s = array("d"), array("d")
        self.starts = self.background = self.nested = self.beside = 0

    def add(self, turns: Sequence[TurnOutline], *, has_start: bool) -> None:
        """Add a session of at least one request."""
        self.starts += has_start
        self.input.extend(turn.input_tokens for turn in turns)
        agents: dict[str, list[int]] = {}
        for number, turn in enumerate(turns):
            agents.setdefault(turn.agent, []).append(number)
        parents = parents_of(turns)
        self.beside += sum(
            before not in parents[number] for own in agents.values() for before, number in itertools.pairwise(own)
        )
        main, *others = agents.values()
        joins = [place for place, number in enumerate(main) if place and not set(parents[number]) <= set(main)]
        self.main.add([turns[number] for number in main], joins)
        for place in joins:
            turn = turns[main[place]]
            self.join_pause_s.append(turn.think_s + max(turn.lags_s, default=0.0))
        self._add_sub_agents(turns, parents, main, others)

    def _add_sub_agents(
        self, turns: Sequence[TurnOutline], parents: Sequence[Parents], main: list[int], others: list[list[int]]
    ) -> None:
        launches = Counter[int]()
        awaited = {
            parent for number, waits_for in enumerate(parents) for parent in waits_for
            if turns[parent].agent != turns[number].agent
        }  # fmt: skip
        for own in others:
            self.sub_agents.add([turns[number] for number in own])
            self.start_pause_s.append(turns[own[0]].think_s)
            self.background += awaited.isdisjoint(own)
            self.nested += not set(parents[own[0]]) & set(main)
            launches[max((number for number in _ancestors(parents, own[0]) if number in main), default=main[0])] += 1
        self.at_once.extend(launches.values())

    @property
    def requests(self) -> int:
        """Number of requests of all agents."""
        return len(self.input)

    @property
    def sessions(self) -> int:
        """Number of sessions."""
        return len(self.main.turns)

    @property
    def later(self) -> int:
        """Number of requests that are not the first of their agent."""
        return self.main.later + self.sub_agents.later

    @property
    def starts_sub_agents(self) -> bool:
        """Whether a preset can start the sub-agents: after a request of the main agent that is not its last."""
        return bool(self.at_once) and self.main.later > 0

    def context_limit(self) -> int:
        """The longest prompt; where contexts are compacted, the length that 10 % of the prompts exceed."""
        compacted = self.main.compacted + self.sub_agents.compacted
        return round(float(np.quantile(self.input, 0.9 if compacted else 1.0)))


def _ancestors(parents: Sequence[Parents], number: int) -> Iterator[int]:
    """The requests that a request waits for, those that they wait for, and so on."""
    left, seen = list(parents[number]), set[int]()
    while left:
        parent = left.pop()
        if parent not in seen:
            seen.add(parent)
            left.extend(parents[parent])
            yield parent


def _extend(columns: tuple["array[float]", "array[float]"], *row: float) -> None:
    for column, value in zip(columns, row, strict=True):
        column.append(value)
