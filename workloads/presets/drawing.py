"""Draw the numbers of a preset's sessions: lengths, pauses and shared parts, without text."""

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator
from statistics import NormalDist

import msgspec

from bakeoff.workloads.distributions import Distribution
from bakeoff.workloads.outline import Segment, SessionOutline, TurnOutline
from bakeoff.workloads.presets.preset import Preset
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
        is_fresh: whether the prompt starts over: a first prompt, or one after compaction.
        parents: see :class:`bakeoff.workloads.types.Turn`, as for ``lags_s``.
    """

    input_tokens: int
    output_tokens: int
    think_s: float
    documents: tuple[Document, ...]
    is_fresh: bool
    parents: tuple[int, ...] | None = None
    lags_s: tuple[float, ...] = ()


class DrawnSession(msgspec.Struct, frozen=True):
    """A session without its text; ``group`` selects its system prompt."""

    number: int
    start_s: float
    group: int | None
    turns: tuple[DrawnTurn, ...]


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
        reach_s: length of the load. A session ends with the first turn that its pauses alone put beyond it; this turn
            keeps the user thinking until the end of the load.
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
        self._groups = _Popularity(shared.groups, shared.skew) if shared else None
        self._documents = _Popularity(documents.pool, documents.skew) if documents else None
        self.shared_tokens = max(LEAST_QUESTION_TOKENS, round(shared.tokens * scale)) if shared else 0

    def sessions(self) -> Iterator[DrawnSession]:
        """Endless sessions, in the order of their start."""
        for number, (start_s, tenant) in enumerate(self._arrivals()):
            draws = self._seed.draws(self._name, "session", str(number))
            group = self._group(draws, tenant)
            count = max(1, round(self._preset.turns.sample(draws)))
            yield DrawnSession(number, start_s, group, tuple(self._turns(count, self._factor(tenant), draws)))

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

    def _turns(self, count: int, factor: float, draws: Rng) -> Iterator[DrawnTurn]:
        last_tokens, paused_s = 0, 0.0
        for k in range(count):
            input_p, output_p = self._pair(draws)
            think_s = self._preset.think_s.sample(draws) if k else 0.0
            paused_s += think_s
            if paused_s - think_s > self._reach_s:
                return
            output = max(2, self._scaled(self._preset.output, output_p, factor))
            grown = last_tokens + self._scaled(self._preset.append, input_p, 1.0)
            if k and grown <= self._limit:
                tokens, is_fresh = grown, False
            elif k:
                tokens, is_fresh = round(_COMPACTED_SHARE * self._limit), True
            else:
                tokens, is_fresh = self._scaled(self._preset.input, input_p, factor), True
            documents = tuple(self._documents_in(draws, self._limit - tokens))
            tokens += sum(document.tokens for document in documents)
            if is_fresh:
                tokens = min(self._limit, max(tokens, self.shared_tokens + LEAST_QUESTION_TOKENS))
            yield DrawnTurn(tokens, output, think_s, documents, is_fresh)
            last_tokens = tokens + output

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
        segments: list[Segment] = []
        for k, turn in enumerate(session.turns):
            if turn.is_fresh:
                segments = [] if session.group is None else [(f"system {session.group}", self.shared_tokens)]
            segments += [(f"document {document.number}", document.tokens) for document in turn.documents]
            question = turn.input_tokens - sum(tokens for _, tokens in segments)
            segments.append((f"question {session.number}.{k}", max(1, question)))
            yield TurnOutline(turn.input_tokens, turn.output_tokens, turn.think_s, tuple(segments))
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
