"""Findings about one address of an engine beside its others. Pure functions over a trial's log.

Each compares like with like, and needs both a significant difference and a large one:

- Slow: TTFT from the send among requests with about as many uncached prompt tokens, and seconds per output token
  among prompts of about the same length, both by ranks (van Elteren's stratified rank test, 1960), which a few outliers
  do not move. The effect is the ratio of medians within strata.
- Imbalance: tokens of prompts and answers against an equal share.
- Cache: share of prompt tokens from the prefix cache, among calls at about the same turn of their sessions.

Requests are divided into blocks of time (:mod:`bakeoff.results.statistics.groups_over_time`). Holm's correction over
addresses, and over both latencies, keeps the rate at which a trial of equal addresses gets a warning of one kind at
:data:`FALSE_ALARMS`: simulated trials gave 0 to 1 %, and 2 % where the noise of an address's neighbouring requests
correlates by 0.9. Behind a router the client does not see who answered: there the servers' own pages give tokens and
hits, read by read, unless its answers name the replica.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bakeoff.results.finding_codes import FindingCode
from bakeoff.results.findings import Finding, warning
from bakeoff.results.metrics import latency
from bakeoff.results.metrics.requests import prompt_length
from bakeoff.results.records import Outcome, RequestRecord, TelemetryRecord, Window
from bakeoff.results.requests import Requests
from bakeoff.results.server_view import Page, pages
from bakeoff.results.server_view.readings import is_number
from bakeoff.results.statistics.groups_over_time import (
    Difference,
    Floats,
    Ratio,
    block_sums,
    difference,
    ranks_within,
    strata_of,
)
from bakeoff.results.statistics.multiplicity import holm

FALSE_ALARMS = 0.01
"""Share of trials of equal addresses with a warning of one kind."""
MIN_SLOWER = 0.1
"""Smallest excess of a latency that is a finding."""
MIN_IMBALANCE = 0.2
"""Smallest deviation from an equal share of the tokens, as a part of that share."""
MIN_FEWER_HITS = 0.1
"""Smallest difference in the share of prompt tokens from the prefix cache."""
_MAX_BLOCKS, _PER_BLOCK = 128, 3
"""At most this many blocks, of at least this many requests per address on average."""
_STRATUM = 30
"""Least number of requests that count as alike."""
_TURNS = (1, 2, 5, 20)
"""First turns of the groups of calls that are compared with each other, from 0; before them, the first calls."""


def address_findings(
    requests: Sequence[RequestRecord],
    telemetry: Sequence[TelemetryRecord],
    window: Window,
    replica_header: str | None = None,
) -> Iterator[Finding]:
    """Findings about the addresses of one engine.

    Args:
        requests: planned inside the window.
        telemetry: of the trial.
        window: of the trial.
        replica_header: of a router's answers, which should name the replica; None for none.
    """
    if replica_header is not None:
        yield from _unnamed(requests, replica_header)
    sent = sorted((request for request in requests if request.address), key=lambda request: request.planned_ns)
    sampled = _Pages.of(telemetry, window)
    if len({request.address for request in sent}) > 1:
        load = _Requests(sent)
        yield from _slow(load)
        yield from _imbalance(load.labels, load.tokens(), load.answered_tokens)
        hits = load.hits() or (sampled.hits() if sampled else {})
        yield from _cache(hits)
    elif sampled:
        yield from _imbalance(sampled.labels, sampled.tokens(), sampled.total_tokens)
        yield from _cache(sampled.hits())


class _Requests:
    """Requests of several addresses in blocks of equal numbers, in the order of their plan."""

    def __init__(self, requests: Sequence[RequestRecord]) -> None:
        self._requests = requests
        self.labels = sorted({request.address or "" for request in requests})
        self._count = max(1, min(_MAX_BLOCKS, len(requests) // (_PER_BLOCK * len(self.labels))))
        self._blocks = np.arange(len(requests)) * self._count // len(requests)
        self._of = np.array([self.labels.index(request.address or "") for request in requests])
        self._prompts = np.array([float(prompt_length(request) or 0) for request in requests])
        self._cached = np.array([float(request.cached_tokens or 0) for request in requests])
        self._answers = np.array([float(request.total_chunk_tokens) for request in requests])

    @property
    def answered_tokens(self) -> dict[str, int]:
        """Tokens of prompts and answers by address."""
        total = self._prompts + self._answers
        return {label: round(float(total[self._of == number].sum())) for number, label in enumerate(self.labels)}

    def tokens(self) -> dict[str, Ratio]:
        """Tokens of prompts and answers over those of all addresses."""
        return self._each(self._prompts + self._answers, self._prompts + self._answers, of_all=True)

    def hits(self) -> dict[str, tuple[Ratio, Ratio]]:
        """Share of cached prompt tokens beyond that of calls at the same turn, of each address and of the others.

        Empty if no answer tells it.
        """
        if all(request.cached_tokens is None for request in self._requests):
            return {}
        turns = np.searchsorted(_TURNS, [request.turn for request in self._requests], "right")
        expected = np.zeros(len(self._prompts))
        for turn in np.unique(turns):
            alike = turns == turn
            expected[alike] = self._cached[alike].sum() / max(1.0, self._prompts[alike].sum())
        overall = self._cached.sum() / max(1.0, self._prompts.sum())
        adjusted = self._cached + (overall - expected) * self._prompts
        return {label: (ratio, self._others(number, adjusted, self._prompts))
                for number, (label, ratio) in enumerate(self._each(adjusted, self._prompts).items())}  # fmt: skip

    def latency(self, seconds: Floats, like: Floats) -> tuple[dict[str, Difference], dict[str, float]]:
        """Difference of each address's mean rank from that of the others, and the ratio of their medians.

        Args:
            seconds: of each request; NaN for one that has none.
            like: requests with about equal values are compared.
        """
        known = seconds > 0
        if known.sum() < 2 * _STRATUM:
            return {}, {}
        logs = np.log(np.where(known, seconds, 1.0))
        strata, ranks, residuals = np.zeros(len(logs), dtype=np.int64), np.zeros(len(logs)), np.zeros(len(logs))
        strata[known] = strata_of(like[known], _STRATUM)
        ranks[known] = ranks_within(strata[known], logs[known])
        for stratum in np.unique(strata[known]):
            inside = known & (strata == stratum)
            residuals[inside] = logs[inside] - np.median(logs[inside])
        weights = known.astype(np.float64)
        found: dict[str, Difference] = {}
        excess: dict[str, float] = {}
        for number, (label, ratio) in enumerate(self._each(ranks, weights).items()):
            own, others = known & (self._of == number), known & (self._of != number)
            if own.any() and others.any() and (found_here := difference(ratio, self._others(number, ranks, weights))):
                found[label] = found_here
                excess[label] = float(np.exp(np.median(residuals[own]) - np.median(residuals[others]))) - 1
        return found, excess

    def ttfts(self) -> tuple[dict[str, Difference], dict[str, float]]:
        """As :meth:`latency`, of the time from the send to the first token, among like uncached prompts."""
        return self._latency(latency.ttft_from_send_s, self._prompts - self._cached)

    def tpots(self) -> tuple[dict[str, Difference], dict[str, float]]:
        """The same of the time per output token, among like prompts."""
        return self._latency(latency.tpot_s, self._prompts)

    def _latency(
        self, of_requests: Callable[[Requests], Floats], like: Floats
    ) -> tuple[dict[str, Difference], dict[str, float]]:
        columns = Requests(self._requests)
        return self.latency(np.where(columns.is_ok, of_requests(columns), np.nan), like)

    def _each(self, above: Floats, below: Floats, *, of_all: bool = False) -> dict[str, Ratio]:
        """The ratio of each address; with ``of_all`` its denominator covers all of them."""
        everyone = np.ones(len(self._of), dtype=np.bool_)
        return {
            label: Ratio(
                self._sums(above, self._of == number), self._sums(below, everyone if of_all else self._of == number)
            )
            for number, label in enumerate(self.labels)
        }

    def _others(self, number: int, above: Floats, below: Floats) -> Ratio:
        return Ratio(self._sums(above, self._of != number), self._sums(below, self._of != number))

    def _sums(self, values: Floats, members: NDArray[np.bool_]) -> Floats:
        return block_sums(values, members, self._blocks, self._count)


class _Pages:
    """Counters of several servers between the reads of their pages in the window.

    Args:
        counters: increases by label and name, shape (reads - 1,).
    """

    def __init__(self, counters: Mapping[str, Mapping[str, Floats]]) -> None:
        self._counters = counters
        self.labels = sorted(counters)

    @classmethod
    def of(cls, telemetry: Sequence[TelemetryRecord], window: Window) -> "_Pages | None":
        """The pages of replicas; None unless there are several with counters of tokens."""
        replicas = [page for page in pages(telemetry) if page.label and page.kind == "server"]
        counters = {page.label: _increases(page, window) for page in replicas}
        counted = {label: known for label, known in counters.items() if _PROMPT in known and _OUTPUT in known}
        return cls(counted) if len(counted) > 1 and len(counted) == len(replicas) else None

    @property
    def total_tokens(self) -> dict[str, int]:
        """Tokens of prompts and answers by address."""
        return {label: round(float(tokens.sum())) for label, tokens in self._tokens().items()}

    def tokens(self) -> dict[str, Ratio]:
        """As those of :class:`_Requests`."""
        tokens = self._tokens()
        total = np.sum(list(tokens.values()), axis=0)
        return {label: Ratio(own, total) for label, own in tokens.items()}

    def hits(self) -> dict[str, tuple[Ratio, Ratio]]:
        """Share of the prompt tokens that were found in the cache, of each address and of the others."""
        known = [label for label in self.labels if _HITS in self._counters[label] and _QUERIES in self._counters[label]]
        own = {label: Ratio(self._cut(label, _HITS), self._cut(label, _QUERIES)) for label in known}
        return {
            label: (ratio, Ratio(
                np.sum([other.above for name, other in own.items() if name != label], axis=0),
                np.sum([other.below for name, other in own.items() if name != label], axis=0),
            ))
            for label, ratio in own.items()
            if len(own) > 1
        }  # fmt: skip

    def _tokens(self) -> dict[str, Floats]:
        return {label: self._cut(label, _PROMPT) + self._cut(label, _OUTPUT) for label in self.labels}

    def _cut(self, label: str, name: str) -> Floats:
        """Increases of a counter in blocks that all pages have."""
        shortest = min(len(known[_PROMPT]) for known in self._counters.values())
        return self._counters[label][name][:shortest]


_PROMPT, _OUTPUT = "prompt_tokens_total", "output_tokens_total"
_HITS, _QUERIES = "prefix_hits_tokens_total", "prefix_queries_tokens_total"


def _increases(page: Page, window: Window) -> dict[str, Floats]:
    """Increases of a page's counters between its reads in the window, folded into blocks."""
    inside = [record for record in page.records if window.holds(record.t_ns) and record.reasons.get("scrape_s") is None]
    found: dict[str, Floats] = {}
    for name in (_PROMPT, _OUTPUT, _HITS, _QUERIES):
        numbers = [float(value) for record in inside if is_number(value := record.values.get(name))]
        steps = np.diff(numbers)
        if len(numbers) == len(inside) > 1 and (steps >= 0).all():
            blocks = min(_MAX_BLOCKS, len(steps))
            numbered = np.arange(len(steps)) * blocks // len(steps)
            found[name] = block_sums(steps, np.ones(len(steps), dtype=np.bool_), numbered, blocks)
    return found


def _unnamed(requests: Sequence[RequestRecord], header: str) -> Iterator[Finding]:
    """Answers that do not name their replica."""
    answered = [request for request in requests if request.outcome is Outcome.OK]
    if unnamed := sum(request.address is None for request in answered):
        yield warning(FindingCode.REPLICA_UNNAMED, unnamed=unnamed, answered=len(answered), header=header)


def _slow(load: _Requests) -> Iterator[Finding]:
    """An address whose TTFT or time per output token is higher than those of the others; its larger excess."""
    measured = {"ttft": load.ttfts(), "tpot": load.tpots()}
    tested = {(name, label): each for name, (found, _) in measured.items() for label, each in found.items()}
    significant = _significant({key: each for key, each in tested.items() if each.value > 0}, len(tested))
    for label in load.labels:
        excesses = {name: measured[name][1][label] for name in measured if (name, label) in significant}
        excesses = {name: excess for name, excess in excesses.items() if excess >= MIN_SLOWER}
        if excesses:
            name = max(excesses, key=lambda name: excesses[name])
            yield warning(FindingCode.ADDRESS_SLOW, address=label, latency=name, slower_share=excesses[name])


def _imbalance(labels: Sequence[str], tokens: Mapping[str, Ratio], total: Mapping[str, int]) -> Iterator[Finding]:
    """Addresses whose share of the tokens is not that of equal addresses."""
    equal = 1 / len(labels)
    tested = {("tokens", label): each for label in labels if (each := difference(tokens[label], equal)) is not None}
    for _, label in sorted(_significant(tested, len(tested))):
        if abs(tested["tokens", label].value) >= MIN_IMBALANCE * equal:
            yield warning(
                FindingCode.ADDRESS_IMBALANCE, address=label, tokens=total[label],
                tokens_share=tokens[label].value, equal_share=equal,
            )  # fmt: skip


def _cache(hits: Mapping[str, tuple[Ratio, Ratio]]) -> Iterator[Finding]:
    """Addresses that hit less of their prompts than the others."""
    tested = {
        ("hits", label): each for label, (own, others) in hits.items() if (each := difference(own, others)) is not None
    }
    fewer = {key: each for key, each in tested.items() if each.value < 0}
    for _, label in sorted(_significant(fewer, len(tested))):
        if tested["hits", label].value <= -MIN_FEWER_HITS:
            own, others = hits[label]
            yield warning(
                FindingCode.ADDRESS_CACHE, address=label, hit_share=max(0.0, own.value), others_share=others.value
            )


def _significant(tested: Mapping[tuple[str, str], Difference], family: int) -> set[tuple[str, str]]:
    """The differences that Holm's correction over a family of tests leaves; those not given have p = 1."""
    names = {f"{number}": key for number, key in enumerate(tested)}
    p_values = {name: tested[key].p_value for name, key in names.items()}
    p_values |= {f"none {number}": 1.0 for number in range(family - len(tested))}
    adjusted = holm(p_values)
    return {key for name, key in names.items() if adjusted[name] <= FALSE_ALARMS}
