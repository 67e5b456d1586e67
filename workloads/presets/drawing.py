"""Draw the numbers of a preset's sessions: lengths, pauses and shared parts, without text."""

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from types import MappingProxyType

import msgspec

from bakeoff.workloads.distributions import Distribution
from bakeoff.workloads.graph import Links, parents_of
from bakeoff.workloads.outline import Segment, SessionOutline, TurnOutline
from bakeoff.workloads.presets.preset import Preset, Shared, SubAgents
from bakeoff.workloads.rng import Rng, Seed

LEAST_QUESTION_TOKENS = 4
_COMPACTED_SHARE = 0.3
"""Length of a prompt after compaction, relative to the longest prompt."""
_UNIT_NORMAL = NormalDist()


class Document(msgspec.Struct, frozen=True):
    """A document of the corpus, by its number."""

    number: int
    tokens: int


class DrawnTurn(msgspec.Struct, frozen=True):
    """One request without its text.

    Attributes:
        input_tokens: tokens of the whole prompt.
        output_tokens: requested length of the answer.
        think_s: pause before the request, in seconds.
        documents: documents before the question.
        is_fresh: whether the prompt starts over: an agent's first prompt, or one after compaction.
        parents: see :class:`bakeoff.workloads.types.Turn`, as for ``lags_s`` and ``agent``.
    """

    input_tokens: int
    output_tokens: int
    think_s: float
    documents: tuple[Document, ...]
    is_fresh: bool
    parents: tuple[int, ...] | None = None
    lags_s: tuple[float, ...] = ()
    agent: str = ""


class DrawnSession(msgspec.Struct, frozen=True):
    """A session without its text.

    Attributes:
        number: of the session, from 0.
        start_s: seconds since the load's start.
        group: the main agent's system prompt, by its number in the preset; None without one.
        turns: the requests of all agents.
        sub_agent_groups: the system prompt of each sub-agent that has one, likewise. Their numbers follow those of the
            main agents' system prompts.
    """

    number: int
    start_s: float
    group: int | None
    turns: tuple[DrawnTurn, ...]
    sub_agent_groups: dict[str, int] = {}

    def group_of(self, agent: str) -> int | None:
        """The system prompt of an agent; the main agent's name is empty."""
        return self.sub_agent_groups.get(agent) if agent else self.group


class _SubAgent(msgspec.Struct, frozen=True):
    """A sub-agent's requests, and whether the main agent goes on without it."""

    turns: tuple[DrawnTurn, ...]
    group: int | None
    is_background: bool


class _Join(msgspec.Struct, frozen=True):
    """What sub-agents return to the request that waits for them, and the pause before it."""

    result_tokens: int
    pause_s: float


class _Popularity:
    """Zipf's law over ``count`` items: the k-th (from 1) has a probability proportional to ``k ** -skew``."""

    def __init__(self, count: int, skew: float) -> None:
        self._cumulative = list(itertools.accumulate(k**-skew for k in range(1, count + 1)))

    def sample(self, rng: Rng) -> int:
        """Index of an item; 0 is the most popular."""
        total = self._cumulative[-1]
        return min(bisect_right(self._cumulative, rng.uniform() * total), len(self._cumulative) - 1)


class Drawing:
    """Draws the sessions of one plan, each from its number alone.

    Args:
        name: of the workload; different workloads draw different sessions.
        preset: the preset.
        seed: of the plan; only ``seed.traffic`` is used.
        scale: factor on every length.
        limit: longest prompt, in tokens.
        reach_s: length of the load. A session has no turns that follow more than ``reach_s`` seconds of pauses; the
            last one that is left on each path keeps the session waiting until the end of the load.
    """

    def __init__(
        self, name: str, preset: Preset, seed: Seed, *, scale: float, limit: int, reach_s: float | None = None
    ) -> None:
        self._name = name
        self._preset = preset
        self._scale = scale
        self._limit = limit
        self._seed = seed
        self._reach_s = math.inf if reach_s is None else reach_s
        shared, documents = preset.shared, preset.documents
        of_sub_agents = preset.sub_agents.shared if preset.sub_agents else None
        self._groups = _Popularity(shared.groups, shared.skew) if shared else None
        self._kinds = _Popularity(of_sub_agents.groups, of_sub_agents.skew) if of_sub_agents else None
        self._documents = _Popularity(documents.pool, documents.skew) if documents else None
        self.main_groups: int = shared.groups if shared else 0
        """Number of main agents' system prompts, which have the first numbers."""
        self.shared_tokens: int = self._system_tokens(shared)
        """Tokens of a main agent's system prompt."""
        self._sub_agent_shared_tokens = self._system_tokens(of_sub_agents)
        self.groups: int = self.main_groups + (of_sub_agents.groups if of_sub_agents else 0)
        """Number of system prompts."""

    def system_tokens(self, group: int | None) -> int:
        """Tokens of a system prompt; 0 for None."""
        if group is None:
            return 0
        return self.shared_tokens if group < self.main_groups else self._sub_agent_shared_tokens

    def sessions(self) -> Iterator[DrawnSession]:
        """Endless sessions, in the order of their start."""
        for number, (start_s, tenant) in enumerate(self._arrivals()):
            draws = self._seed.draws(self._name, "session", str(number))
            group = self._group(draws, tenant)
            count, factor = max(1, round(self._preset.turns.sample(draws))), self._factor(tenant)
            started = self._started(number, count, factor)
            joins = dict(self._joins(number, started))
            main = tuple(
                self._turns(self._preset, count, factor, draws, system_tokens=self.system_tokens(group), joins=joins)
            )
            turns, groups = _linked(main, started) if started else (main, {})
            within = Links.of(turns).first_within(self._reach_s)
            yield DrawnSession(number, start_s, group, turns[:within], groups)

    def outline(self, session: DrawnSession) -> SessionOutline:
        """The outline of a session."""
        return SessionOutline(f"{self._name}-{session.number}", session.start_s, tuple(self._outlined(session)))

    def _arrivals(self) -> Iterator[tuple[float, int | None]]:
        process = self._preset.arrival.made()
        if process is None:
            while True:
                yield 0.0, None
        elif self._preset.tenant_spread is None:
            yield from ((offset_s, None) for offset_s in process.offsets_s(self._seed.traffic))
        else:
            yield from self._preset.arrival.tenants().arrivals(self._seed.traffic)

    def _turns(
        self,
        agent: Preset | SubAgents,
        count: int,
        factor: float,
        draws: Rng,
        *,
        system_tokens: int,
        joins: Mapping[int, _Join] = MappingProxyType({}),
    ) -> Iterator[DrawnTurn]:
        """The requests of one agent, one after another.

        Args:
            agent: its distributions.
            count: number of requests.
            factor: on the first prompt and on answers.
            draws: of the agent alone.
            system_tokens: of its system prompt.
            joins: its requests that wait for sub-agents, by their number.
        """
        last_tokens = 0
        for k in range(count):
            input_p, output_p = self._pair(draws)
            think_s = agent.think_s.sample(draws) if k else 0.0
            outputs = agent.output if k < count - 1 or agent.last_output is None else agent.last_output
            output = max(2, self._scaled(outputs, output_p, factor))
            appended = self._scaled(agent.append, input_p, 1.0)
            if k in joins:
                think_s, appended = joins[k].pause_s, joins[k].result_tokens
            grown = last_tokens + appended
            if k and grown <= self._limit:
                tokens, is_fresh = grown, False
            elif k:
                tokens, is_fresh = round(_COMPACTED_SHARE * self._limit), True
            else:
                tokens, is_fresh = self._scaled(agent.input, input_p, factor), True
            documents = tuple(self._documents_in(draws, self._limit - tokens)) if agent is self._preset else ()
            tokens += sum(document.tokens for document in documents)
            if is_fresh:
                tokens = min(self._limit, max(tokens, system_tokens + LEAST_QUESTION_TOKENS))
            yield DrawnTurn(tokens, output, think_s, documents, is_fresh)
            last_tokens = tokens + output

    def _started(self, session: int, count: int, factor: float) -> dict[int, list[_SubAgent]]:
        """The sub-agents that a main agent of ``count`` requests starts, by the request after which it does."""
        kind, started = self._preset.sub_agents, dict[int, list[_SubAgent]]()
        if kind is None:
            return started
        for k in range(count - 1):
            draws = self._seed.draws(self._name, "session", str(session), "sub-agents", str(k))
            if draws.uniform() < kind.start_share:
                at_once = max(1, round(kind.at_once.sample(draws)))
                started[k] = [self._sub_agent(kind, factor, draws) for _ in range(at_once)]
        return started

    def _sub_agent(self, kind: SubAgents, factor: float, draws: Rng) -> _SubAgent:
        is_background = draws.uniform() < kind.background_share
        group = None if self._kinds is None else self.main_groups + self._kinds.sample(draws)
        count = max(1, round(kind.turns.sample(draws)))
        start_pause_s = kind.start_pause_s.sample(draws)
        first, *later = self._turns(kind, count, factor, draws, system_tokens=self.system_tokens(group))
        return _SubAgent((msgspec.structs.replace(first, think_s=start_pause_s), *later), group, is_background)

    def _joins(self, session: int, started: Mapping[int, Sequence[_SubAgent]]) -> Iterator[tuple[int, _Join]]:
        """The main agent's requests that wait for sub-agents, by their number."""
        for k, sub_agents in started.items():
            awaited = [sub_agent for sub_agent in sub_agents if not sub_agent.is_background]
            if awaited and self._preset.sub_agents is not None:
                draws = self._seed.draws(self._name, "session", str(session), "join", str(k))
                result_tokens = sum(sub_agent.turns[-1].output_tokens for sub_agent in awaited)
                yield k + 1, _Join(result_tokens, self._preset.sub_agents.join_pause_s.sample(draws))

    def _documents_in(self, draws: Rng, room: int) -> Iterator[Document]:
        """Distinct documents that fit into ``room`` tokens."""
        documents, popularity = self._preset.documents, self._documents
        if documents is None or popularity is None:
            return
        count = min(documents.pool, max(0, round(documents.per_request.sample(draws))))
        numbers: dict[int, None] = {}
        while len(numbers) < count:
            numbers[popularity.sample(draws)] = None
        for number in numbers:
            p = self._seed.draws("document", str(number)).uniform()
            tokens = max(LEAST_QUESTION_TOKENS, self._scaled(documents.tokens, p, 1.0))
            room -= tokens
            if room < 0:
                return
            yield Document(number, tokens)

    def _outlined(self, session: DrawnSession) -> Iterator[TurnOutline]:
        prompts: dict[str, list[Segment]] = {}
        for k, turn in enumerate(session.turns):
            if turn.is_fresh:
                group = session.group_of(turn.agent)
                prompts[turn.agent] = [] if group is None else [(f"system {group}", self.system_tokens(group))]
            segments = prompts[turn.agent]
            segments += [(f"document {document.number}", document.tokens) for document in turn.documents]
            question = turn.input_tokens - sum(tokens for _, tokens in segments)
            segments.append((f"question {session.number}.{k}", max(1, question)))
            yield TurnOutline(
                turn.input_tokens,
                turn.output_tokens,
                turn.think_s,
                tuple(segments),
                turn.parents,
                turn.lags_s,
                turn.agent,
            )
            segments.append((f"answer {session.number}.{k}", turn.output_tokens))

    def _pair(self, draws: Rng) -> tuple[float, float]:
        """Two probabilities in [0, 1), correlated through a Gaussian copula."""
        first, second = draws.uniform(), draws.uniform()
        if not self._preset.correlation:
            return first, second
        pearson = 2 * math.sin(math.pi * self._preset.correlation / 6)
        x, y = (_UNIT_NORMAL.inv_cdf(min(max(p, 1e-12), 1 - 1e-12)) for p in (first, second))
        return first, _UNIT_NORMAL.cdf(pearson * x + math.sqrt(1 - pearson * pearson) * y)

    def _scaled(self, lengths: Distribution, p: float, factor: float) -> int:
        return max(1, round(lengths.at(p) * self._scale * factor))

    def _system_tokens(self, shared: Shared | None) -> int:
        return max(LEAST_QUESTION_TOKENS, round(shared.tokens * self._scale)) if shared else 0

    def _group(self, draws: Rng, tenant: int | None) -> int | None:
        if self._groups is None or self._preset.shared is None:
            return None
        drawn = self._groups.sample(draws)
        return drawn if tenant is None else tenant % self._preset.shared.groups

    def _factor(self, tenant: int | None) -> float:
        """Factor on a tenant's lengths."""
        if tenant is None or not self._preset.tenant_spread:
            return 1.0
        return math.exp(self._preset.tenant_spread * self._seed.draws("tenant", str(tenant)).normal())


def _linked(
    main: Sequence[DrawnTurn], started: Mapping[int, Sequence[_SubAgent]]
) -> tuple[tuple[DrawnTurn, ...], dict[str, int]]:
    """The requests of all agents with what they wait for, and the system prompt of each sub-agent that has one."""
    turns: list[DrawnTurn] = []
    groups: dict[str, int] = {}
    awaited: list[int] = []
    names = (f"agent_{number}" for number in itertools.count(1))
    for k, turn in enumerate(main):
        turns.append(msgspec.structs.replace(turn, parents=tuple(awaited)))
        awaited = [launch := len(turns) - 1]
        for sub_agent in started.get(k, ()):
            name, last = next(names), launch
            if sub_agent.group is not None:
                groups[name] = sub_agent.group
            for call in sub_agent.turns:
                turns.append(msgspec.structs.replace(call, parents=(last,), agent=name))
                last = len(turns) - 1
            if not sub_agent.is_background:
                awaited.append(last)
    return _in_order(turns), groups


def _in_order(turns: Sequence[DrawnTurn]) -> tuple[DrawnTurn, ...]:
    """The turns sorted by the pauses on the way to them, so that those within reach of a load come first."""
    parents = parents_of(turns)
    passed_s: list[float] = []
    before_s: list[float] = []
    for turn, waits_for in zip(turns, parents, strict=True):
        before_s.append(max((passed_s[parent] for parent in waits_for), default=0.0))
        passed_s.append(before_s[-1] + turn.think_s)
    order = sorted(range(len(turns)), key=before_s.__getitem__)  # stable: parents stay before their children
    places = {number: place for place, number in enumerate(order)}
    return tuple(
        msgspec.structs.replace(turns[number], parents=tuple(sorted(places[parent] for parent in parents[number])))
        for number in order
    )
