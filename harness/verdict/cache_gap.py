"""The cache gap: why an engine finds fewer prompt tokens in its prefix cache than the load allows.

A simulation of the engine's cache, over the prompts as they were sent, says how many tokens hit: with the engine's
block size and capacity, the least recently used block evicted first, a cache for each address. Then the causes of a
lower share are removed one after the other, in the order of :class:`~bakeoff.results.records.CacheCause`. The part of a
cause is defined as the rise of the hit share when it is removed after those before it; what the simulation of the
engine as it is finds beyond the engine's own count is unexplained.

Prompts are the planned ones. A block of a prompt can be used from the instant at which the request is sent, and what is
generated from the end of the answer. Hits are whole blocks, and never the last token of a prompt, since engines compute
that one.
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from bakeoff.engines.base import PrefixCacheFacts
from bakeoff.results.metrics.requests import planned_inside
from bakeoff.results.records import CacheCause, CacheGap, CacheGaps, Outcome, RequestRecord, Window
from bakeoff.results.run.groups import turn_range
from bakeoff.workloads.prefixes import EndlessCache, LruCache, Pin


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
    is_live: bool,
    is_salted: bool,
) -> CacheGaps | None:
    """Explain the hit share of a trial's requests.

    Args:
        requests: all of the trial, what was sent before the load included.
        window: whose requests count.
        prompts: the blocks of all prompts of the trial.
        caches: what is known of the cache of each address; None for all others.
        is_live: whether conversations hold the engine's own answers.
        is_salted: whether each play of a session has words of its own.
    """
    calls = _calls(requests)
    inside = {id(request) for request in planned_inside([call.request for call in calls], window)}
    counted = [n for n, call in enumerate(calls) if id(call.request) in inside and call.request.outcome is Outcome.OK]
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
        in_blocks=True,
        in_templates=True,
    )
    simulation = _Simulation(calls, prompts, size, caches, is_salted=is_salted)
    hits = simulation.hits(setting)
    steps: dict[CacheCause, tuple[list[int], list[int]]] = {}
    for cause, name in _REMOVED.items():
        if getattr(setting, name) != getattr(_IDEAL, name):
            setting = msgspec.structs.replace(setting, **{name: getattr(_IDEAL, name)})
            steps[cause] = (hits, hits := simulation.hits(setting))
    reports = any(calls[n].request.cached_tokens is not None for n in counted)

    def gap(name: str, numbers: Sequence[int]) -> CacheGap:
        tokens = sum(calls[n].tokens for n in numbers)
        cached = sum(calls[n].request.cached_tokens or 0 for n in numbers)
        return CacheGap(
            name,
            tokens,
            cached / sum(calls[n].request.prompt_tokens or calls[n].tokens for n in numbers) if reports else None,
            sum(hits[n] for n in numbers) / tokens,
            {cause: sum(after[n] - before[n] for n in numbers) / tokens for cause, (before, after) in steps.items()},
        )

    groups = (_grouped(calls, counted, name_of) for name_of in (_agent, _turn, _address))
    return CacheGaps(
        block_tokens=size,
        capacity_tokens=cache.capacity_tokens,
        is_assumed=cache.block_tokens is None,
        whole=gap("", counted),
        groups=[gap(name, numbers) for parts in groups for name, numbers in parts],
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
        plays: dict[tuple[str, int], int] = {}
        self._first_play = list(range(len(calls)))
        if is_salted:
            keys = ((call.request.session, call.request.turn) for call in calls)
            self._first_play = [plays.setdefault(key, number) for number, key in enumerate(keys)]

    def hits(self, setting: _Setting) -> list[int]:
        """Tokens of each call's prompt that hit."""
        found = [0] * len(self._calls)
        if not setting.is_on:
            return found
        caches: dict[str | None, _Cache] = {}
        ends: list[tuple[int, int, _Cache, Pin[int] | None]] = []
        sent: set[tuple[int | None, int]] = set()
        for number, call in enumerate(self._calls):
            sent_ns = call.request.sent_ns or call.request.planned_ns
            while ends and ends[0][0] <= sent_ns:
                self._end(setting, *heapq.heappop(ends)[1:])
            address = call.request.address if setting.by_address else None
            cache = caches.get(address)
            if cache is None:
                facts = self._facts.get(address, self._facts[None])
                cache = caches[address] = _cache(facts.capacity_tokens if setting.is_limited else None, self._size)
            blocks = self._blocks(number, setting)
            cached, pin = cache.use(blocks)
            prompt = self._named_by(number, setting).block, call.tokens  # equal for equal prompts
            if setting.in_blocks or prompt not in sent:
                found[number] = self._hit(number, min(cached * self._size, self._most(call)), setting)
            else:
                found[number] = call.tokens - 1
            sent.add(prompt)
            heapq.heappush(ends, (call.request.ended_ns, number, cache, pin))
        return found

    def _most(self, call: _Call) -> int:
        """Most tokens of a prompt that can hit, in whole blocks."""
        return (call.tokens - 1) // self._size * self._size

    def _hit(self, number: int, hit_tokens: int, setting: _Setting) -> int:
        """What hits without rounding to blocks, and with the history in equal tokens, if these causes are removed."""
        call = self._calls[number]
        before = None if call.before is None else self._calls[call.before]
        if setting.in_blocks or before is None or not self._has_ended(before, call):
            return hit_tokens
        shared = call.request.shared_tokens
        if not setting.in_templates and call.request.goes_on:
            shared = max(shared, before.tokens + before.generated)
        elif shared >= before.tokens:  # it holds the previous prompt and its recorded answer
            shared = min(call.tokens, before.tokens + before.generated)
        return max(hit_tokens, min(shared, call.tokens - 1))

    @staticmethod
    def _has_ended(before: _Call, call: _Call) -> bool:
        return before.request.ended_ns <= (call.request.sent_ns or call.request.planned_ns)

    def _end(self, setting: _Setting, number: int, cache: "_Cache", pin: Pin[int] | None) -> None:
        """End a call: its blocks are free, and what it generated is kept for the next one."""
        cache.free(pin)
        call = self._calls[number]
        if setting.keeps_generated and call.after is not None and call.request.outcome is Outcome.OK:
            after = self._calls[call.after]
            if after.request.shared_tokens >= call.tokens - 1:
                cache.keep(self._blocks(call.after, setting)[: (call.tokens + call.generated) // self._size])

    def _blocks(self, number: int, setting: _Setting) -> Sequence[int]:
        """Names of the full blocks of a prompt."""
        block = self._named_by(number, setting).block
        assert block is not None
        return self._prompts.blocks_to(block)[self._step - 1 :: self._step]

    def _named_by(self, number: int, setting: _Setting) -> RequestRecord:
        """The request whose blocks a prompt has: that of its session's first play, where salts are removed."""
        return self._calls[number if setting.by_play else self._first_play[number]].request


class _Cache:
    """A cache of limited size."""

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self._cache: LruCache[int] = LruCache(capacity_tokens, block_tokens)

    def use(self, blocks: Sequence[int]) -> tuple[int, Pin[int] | None]:
        """Use the blocks of a prompt; returns how many were cached, and what to give to :meth:`free`."""
        pin = self._cache.pin(blocks)
        return pin.hit_tokens // self._cache.block_tokens, pin

    def free(self, pin: Pin[int] | None) -> None:
        """End a use."""
        if pin is not None:
            self._cache.release(pin)

    def keep(self, blocks: Sequence[int]) -> None:
        """Cache blocks that nothing uses."""
        self._cache.insert(blocks)


class _UnlimitedCache(_Cache):
    """A cache that keeps everything, so that the cached blocks of a prompt are found by bisection."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def use(self, blocks: Sequence[int]) -> tuple[int, Pin[int] | None]:
        known = self._known
        cached = bisect_left(blocks, True, key=lambda block: block not in known)
        known.update(blocks[cached:])
        return cached, None

    def keep(self, blocks: Sequence[int]) -> None:
        self._known.update(blocks)


def _cache(capacity_tokens: int | None, block_tokens: int) -> _Cache:
    return _UnlimitedCache() if capacity_tokens is None else _Cache(capacity_tokens, block_tokens)


def _calls(requests: Sequence[RequestRecord]) -> list[_Call]:
    """The requests that were sent and whose prompts are known, with the calls before and after them."""
    sent = [r for r in requests if r.sent_ns is not None and r.block is not None and r.passages is None]
    calls = [_Call(request) for request in sorted(sent, key=lambda request: request.sent_ns or 0)]
    last: dict[tuple[str, str, int], int] = {}
    for number, call in enumerate(calls):
        request = call.request
        key = request.session, request.agent, request.cycle
        before = last.get(key)
        if before is not None and calls[before].request.turn < request.turn:
            call.before = before
            calls[before].after = number
        last[key] = number
    return calls


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
