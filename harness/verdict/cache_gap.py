"""The cache gap: why an engine finds fewer prompt tokens in its prefix cache than the load allows.

A simulation of the engine's cache, over the prompts as they were sent, says how many tokens hit: with the engine's
block size and capacity, the least recently used block evicted first, a cache for each address. Then the causes of a
lower share are removed one after the other, in the order of :class:`~bakeoff.results.records.CacheCause`. The part of a
cause is defined as the rise of the hit share when it is removed after those before it; what the simulation of the
engine as it is finds beyond the engine's own count is unexplained.

Prompts are the planned ones. A cache of limited size admits a request once its prompt has room beside the requests in
progress; from then on the blocks of its prompt can be used. Its answer takes room as it grows, and can be used from its
end. Hits are whole blocks, and never the last token of a prompt, since engines compute that one.
"""

import enum
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from bakeoff.engines.base import PrefixCacheFacts
from bakeoff.harness.verdict.call_caches import Cache, cache_of
from bakeoff.results.metrics.requests import calls_before
from bakeoff.results.records import (
    AssumedRouting,
    CacheCause,
    CacheGap,
    CacheGaps,
    Outcome,
    Phase,
    RequestRecord,
    Window,
)
from bakeoff.results.run.groups import turn_range
from bakeoff.workloads.prefixes import NO_BLOCK, EndlessCache


class _Setting(msgspec.Struct, frozen=True):
    """A cache to simulate: one attribute for each cause, which is removed by setting it to its default."""

    is_on: bool = True
    is_limited: bool = False
    by_address: bool = False
    keeps_generated: bool = True
    by_play: bool = False
    in_blocks: bool = False
    in_templates: bool = False


_REMOVED: dict[CacheCause, str] = {
    CacheCause.OFF: "is_on",
    CacheCause.EVICTION: "is_limited",
    CacheCause.ROUTING: "by_address",
    CacheCause.GENERATED: "keeps_generated",
    CacheCause.SALT: "by_play",
    CacheCause.ROUNDING: "in_blocks",
    CacheCause.TEMPLATE: "in_templates",
}
"""Attribute of each cause, in the order of removal."""
_IDEAL = _Setting()


class _Event(enum.IntEnum):
    """What happens to a call, in the order within an instant."""

    STARTED = enum.auto()
    """Its first token arrives."""
    GENERATED = enum.auto()
    """Its answer begins a block."""
    ENDED = enum.auto()
    SENT = enum.auto()


class _Call(msgspec.Struct):
    """A request among those of its agent.

    Attributes:
        request: the record.
        before: position of the agent's previous call; None if there is none.
        after: position of its next one.
    """

    request: RequestRecord
    before: int | None = None
    after: int | None = None

    @property
    def block(self) -> int:
        """The prompt's last full block."""
        assert self.request.block is not None, "calls without it are left out"
        return self.request.block

    @property
    def tokens(self) -> int:
        """Of the prompt, as planned; as counted by the engine if the plan does not say."""
        return self.request.requested_input_tokens or self.request.prompt_tokens or 0

    @property
    def generated(self) -> int:
        """Tokens of the answer."""
        return self.request.output_tokens or 0


def cache_gaps(
    requests: Sequence[RequestRecord],
    window: Window,
    prompts: EndlessCache,
    caches: Mapping[str | None, PrefixCacheFacts],
    *,
    counted_share: float | None = None,
    replicas: Sequence[str] = (),
    is_live: bool,
    is_salted: bool,
) -> CacheGaps | None:
    """Explain the hit share of a trial's requests.

    Args:
        requests: all of the trial, what was sent before the load included.
        window: whose requests count.
        prompts: the blocks of all prompts of the trial.
        caches: what is known of the cache of each address; None for all others.
        counted_share: share of hits by the engine's own counters, for engines whose answers do not tell.
        replicas: that a router passes requests on to, if requests do not say to which.
        is_live: whether conversations hold the engine's own answers.
        is_salted: whether each play of a session has words of its own.
    """
    calls = _calls(requests)
    counted = [
        n
        for n, call in enumerate(calls)
        if window.holds(call.request.planned_ns) and call.request.outcome is Outcome.OK
    ]
    total = sum(calls[n].tokens for n in counted)
    if not total:
        return None
    cache = caches[None]
    size = cache.block_tokens or prompts.block_tokens
    setting = _Setting(
        is_on=cache.is_on is not False,
        is_limited=any(facts.capacity_tokens is not None for facts in caches.values()),
        by_address=len({call.request.address for call in calls}) > 1,
        keeps_generated=is_live,
        by_play=is_salted,
        in_blocks=not cache.hits_to_the_token,
        in_templates=True,
    )
    reports = any(calls[n].request.cached_tokens is not None for n in counted)

    def observed(numbers: Sequence[int]) -> float | None:
        if not reports:
            return None
        cached = sum(calls[n].request.cached_tokens or 0 for n in numbers)
        return cached / sum(calls[n].request.prompt_tokens or calls[n].tokens for n in numbers)

    share = observed(counted) if reports else counted_share
    routings: Sequence[AssumedRouting | None] = [None]
    if len(replicas) > 1 and share is not None and all(call.request.address is None for call in calls):
        setting, routings = msgspec.structs.replace(setting, by_address=True), list(AssumedRouting)
    simulations = {
        each: _Simulation(_routed(calls, replicas, each), prompts, size, caches, is_salted=is_salted)
        for each in routings
    }
    found = {each: simulation.hits(setting) for each, simulation in simulations.items()}
    routing = min(found, key=lambda each: abs(sum(found[each][n] for n in counted) / total - (share or 0.0)))
    simulation, hits = simulations[routing], found[routing]
    steps: dict[CacheCause, tuple[list[int], list[int]]] = {}
    for cause, name in _REMOVED.items():
        if getattr(setting, name) != getattr(_IDEAL, name):
            setting = msgspec.structs.replace(setting, **{name: getattr(_IDEAL, name)})
            steps[cause] = (hits, hits := simulation.hits(setting))

    def gap(name: str, numbers: Sequence[int]) -> CacheGap:
        tokens = sum(calls[n].tokens for n in numbers)
        return CacheGap(
            name,
            tokens,
            observed(numbers),
            sum(hits[n] for n in numbers) / tokens,
            {cause: sum(after[n] - before[n] for n in numbers) / tokens for cause, (before, after) in steps.items()},
        )

    groups = (_grouped(calls, counted, name_of) for name_of in (_agent, _turn, _address))
    return CacheGaps(
        block_tokens=size,
        capacity_tokens=cache.capacity_tokens,
        is_assumed=cache.block_tokens is None,
        whole=msgspec.structs.replace(gap("", counted), observed=share),
        groups=[gap(name, numbers) for parts in groups for name, numbers in parts],
        assumed_routing=routing,
    )


class _Simulation:
    """Simulates caches over the calls of a trial.

    Args:
        calls: in the order in which they were sent.
        prompts: the blocks of their prompts.
        block_tokens: block size of the engine.
        caches: what is known of the cache of each address; None for all others.
        is_salted: whether plays of a session have words of their own.
    """

    def __init__(
        self,
        calls: Sequence[_Call],
        prompts: EndlessCache,
        block_tokens: int,
        caches: Mapping[str | None, PrefixCacheFacts],
        *,
        is_salted: bool,
    ) -> None:
        self._calls = calls
        self._prompts = prompts
        self._size = block_tokens
        self._facts = caches
        self._step = max(1, block_tokens // prompts.block_tokens)
        self._unsalted = _unsalted(calls, prompts) if is_salted else {}

    def hits(self, setting: _Setting) -> list[int]:
        """Tokens of each call's prompt that hit."""
        found = [0] * len(self._calls)
        if not setting.is_on:
            return found
        caches: dict[str | None, Cache] = {}
        seen: set[tuple[int | None, int]] = set()
        for _, event, number, block in sorted(self._events(setting)):
            call = self._calls[number]
            address = call.request.address if setting.by_address else None
            cache = caches.get(address)
            if cache is None:
                facts = self._facts.get(address, self._facts[None])
                cache = caches[address] = cache_of(facts.capacity_tokens if setting.is_limited else None, self._size)
            admitted: Sequence[tuple[int, int]] = ()
            match event:
                case _Event.SENT:
                    admitted = cache.send(number, self._blocks(number, setting), block)
                case _Event.STARTED:
                    admitted = cache.start(number)
                case _Event.GENERATED:
                    cache.generate(number, block)
                case _Event.ENDED:
                    admitted = cache.end(number, block)
            for each, cached in admitted:
                prompt = self._named(self._calls[each].block, setting), self._calls[each].tokens  # equal if prompts are
                most = self._most(self._calls[each])
                hit = min(cached * self._size, most)
                is_whole = not setting.in_blocks and hit == most and prompt in seen
                found[each] = self._calls[each].tokens - 1 if is_whole else self._hit(each, hit, setting)
                seen.add(prompt)
        return found

    def _events(self, setting: _Setting) -> Iterator[tuple[int, _Event, int, int]]:
        """What happens to the calls: when, what, to which one, and a block.

        That is the one that prompt and answer share, if any, the one that the answer begins, or at its end the one that
        is not full and so cannot be found. An answer grows evenly from its first token to its end.
        """
        names = itertools.count(NO_BLOCK - 1, -1)
        for number, call in enumerate(self._calls):
            request, size = call.request, self._size
            ended_ns = request.ended_ns
            first_ns = request.chunk_ns[0] if request.chunk_ns else ended_ns
            kept = self._kept(number, setting)
            full, rest = divmod(call.tokens + call.generated, size)
            filled = list(kept)
            if setting.is_limited:
                filled += itertools.islice(names, full + (rest > 0) - call.tokens // size - len(kept))
            shared = filled.pop(0) if call.tokens % size and filled else NO_BLOCK
            yield request.sent_ns or request.planned_ns, _Event.SENT, number, shared
            if not request.chunk_ns and request.outcome is not Outcome.OK:
                yield ended_ns, _Event.ENDED, number, NO_BLOCK
                continue
            yield first_ns, _Event.STARTED, number, NO_BLOCK
            start = -(-call.tokens // size)
            for block, name in enumerate(filled, start):
                share = (block * size - call.tokens) / max(1, call.generated)
                yield first_ns + round(share * (ended_ns - first_ns)), _Event.GENERATED, number, name
            yield ended_ns, _Event.ENDED, number, [shared, *filled][-1] if rest else NO_BLOCK

    def _kept(self, number: int, setting: _Setting) -> Sequence[int]:
        """Names of the blocks that an answer fills and its next call uses."""
        call = self._calls[number]
        if not setting.keeps_generated or call.after is None or call.request.outcome is not Outcome.OK:
            return ()
        if self._calls[call.after].request.shared_tokens < call.tokens - 1:
            return ()
        full = slice(call.tokens // self._size, (call.tokens + call.generated) // self._size)
        return self._blocks(call.after, setting)[full]

    def _most(self, call: _Call) -> int:
        """Most tokens of a prompt that can hit, in whole blocks."""
        return (call.tokens - 1) // self._size * self._size

    def _hit(self, number: int, hit_tokens: int, setting: _Setting) -> int:
        """What hits without rounding to blocks, and with the history in equal tokens, if these causes are not there."""
        call = self._calls[number]
        before = None if call.before is None else self._calls[call.before]
        if setting.in_blocks or (before is not None and not self._has_ended(before, call)):
            return hit_tokens
        shared = call.request.shared_tokens
        if before is not None and not setting.in_templates and call.request.goes_on:
            shared = max(shared, before.tokens + before.generated)
        elif before is not None and setting.keeps_generated and shared >= before.tokens:
            # The prompt holds the previous one and its recorded answer.
            shared = min(call.tokens, before.tokens + before.generated)
        most = min(shared, call.tokens - 1)
        if (setting.in_templates or before is None) and most >= hit_tokens + self._size:
            return hit_tokens  # not all of its whole blocks are cached
        return max(hit_tokens, most)

    @staticmethod
    def _has_ended(before: _Call, call: _Call) -> bool:
        return before.request.ended_ns <= (call.request.sent_ns or call.request.planned_ns)

    def _blocks(self, number: int, setting: _Setting) -> Sequence[int]:
        """Names of the full blocks of a prompt."""
        names = self._prompts.blocks_to(self._calls[number].block)[self._step - 1 :: self._step]
        return names if setting.by_play or not self._unsalted else [self._named(name, setting) for name in names]

    def _named(self, block: int, setting: _Setting) -> int:
        """The name of a block, which all plays of a session share where salts are removed."""
        return block if setting.by_play else self._unsalted.get(block, block)


def _unsalted(calls: Sequence[_Call], prompts: EndlessCache) -> dict[int, int]:
    """For blocks of later plays of a session, the block in the same place of an earlier one, which differs in its salt.

    A play need not have the calls that another one had: each prompt goes on from what is known of its play. Plays in
    different phases of a trial have other words with or without salt, unless the words are recorded.
    """
    names: dict[int, int] = {}
    earlier: dict[tuple[str, int, Phase], list[int]] = {}
    for call in calls:
        blocks, key = prompts.blocks_to(call.block), (call.request.session, call.request.turn, call.request.phase)
        if key in earlier:
            for block, same in zip(blocks, earlier[key], strict=False):
                names.setdefault(block, same)
        else:
            earlier[key] = [names.get(block, block) for block in blocks]
    return names


def _calls(requests: Sequence[RequestRecord]) -> list[_Call]:
    """The requests that were sent and whose prompts are known, with the calls before and after them."""
    sent = [r for r in requests if r.sent_ns is not None and r.block is not None and r.passages is None]
    calls = [_Call(request) for request in sorted(sent, key=lambda request: request.sent_ns or 0)]
    for number, before in enumerate(calls_before([call.request for call in calls])):
        if before is not None:
            calls[number].before = before
            calls[before].after = number
    return calls


def _routed(calls: Sequence[_Call], replicas: Sequence[str], routing: AssumedRouting | None) -> Sequence[_Call]:
    """The calls with the replica to which a router would pass each on; as they are without one."""
    if routing is None:
        return calls
    keys = [(call.request.session, call.request.cycle) for call in calls]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    by_session = routing is AssumedRouting.BY_SESSION
    chosen = [numbers[key] if by_session else number for number, key in enumerate(keys)]
    return [
        msgspec.structs.replace(
            call, request=msgspec.structs.replace(call.request, address=replicas[number % len(replicas)])
        )
        for number, call in zip(chosen, calls, strict=True)
    ]


def _grouped(
    calls: Sequence[_Call], counted: Sequence[int], name_of: Callable[[RequestRecord], tuple[int, str] | None]
) -> Iterator[tuple[str, list[int]]]:
    """The counted calls by the name of their group; nothing if there is only one group."""
    groups: dict[tuple[int, str], list[int]] = {}
    for number in counted:
        if (name := name_of(calls[number].request)) is not None:
            groups.setdefault(name, []).append(number)
    if len(groups) > 1:
        yield from ((name, groups[order, name]) for order, name in sorted(groups))


def _agent(request: RequestRecord) -> tuple[int, str]:
    return (1, "sub-agents") if request.agent else (0, "main agent")


def _turn(request: RequestRecord) -> tuple[int, str] | None:
    return turn_range(request.turn)


def _address(request: RequestRecord) -> tuple[int, str] | None:
    return None if request.address is None else (0, request.address)
