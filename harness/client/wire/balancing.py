"""Policies that divide requests among the addresses of one engine. Pure: they count, and send nothing.

Each client worker divides its own share of the load by what it has sent itself; it does not know what other workers
have in flight. Conversations stay together all the same, since ``by-session`` depends on nothing else.
"""

import hashlib
import itertools
import re
import sys
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

import msgspec

from bakeoff.engines.addresses import Balance

BLOCK_BYTES = 1024
"""Prefixes are compared in blocks of this many bytes of a body, about 250 tokens of English."""
KEPT_BLOCKS = 1 << 17
"""Blocks that are remembered for each address, 128 MiB of prompts, and as many older ones that were used again."""
MARGIN_REQUESTS, MARGIN_SHARE = 4, 0.5
"""The address of a conversation may have this many requests in flight more than the idlest, or this share."""
ABSENT = sys.maxsize
"""In place of the requests in flight at an address that gets none yet."""
_PROMPT = re.compile(rb'"(?:messages|prompt|inputs?|text_input|text|query)":')
"""Begins the prompt in a body of any dialect. The fields before it, such as the length, differ between requests."""


class Call(msgspec.Struct, frozen=True):
    """What policies know of a request.

    Attributes:
        conversation: name of its session and agent.
        prefixes: for each whole block of its prompt, a hash of the prompt up to the end of that block.
        places: positions of the addresses that it may go to, the best first, where that is known when it is prepared.
    """

    conversation: str = ""
    prefixes: tuple[int, ...] = ()
    places: tuple[int, ...] = ()


_ANY = Call()


class Balancer(Protocol):
    """Chooses an address for each request."""

    def call(self, conversation: str, body: bytes) -> Call:
        """What it needs to know of a request; called when the request is prepared.

        Args:
            conversation: name of its session and agent.
            body: of the request.
        """
        ...

    def choose(self, call: Call, in_flight: Sequence[int]) -> int:
        """Position of the address for a request that is sent now.

        Args:
            call: the request.
            in_flight: requests in flight at each address, or :data:`ABSENT`, at one of them at least a number.
        """
        ...


def balancer(balance: Balance, labels: Sequence[str]) -> Balancer:
    """A new balancer.

    Args:
        balance: the rule.
        labels: of the addresses.
    """
    match balance:
        case Balance.ROUND_ROBIN:
            return RoundRobin(len(labels))
        case Balance.LEAST_IN_FLIGHT:
            return LeastInFlight(len(labels))
        case Balance.BY_SESSION:
            return BySession(labels)
        case Balance.PREFIX_AWARE:
            return PrefixAware(len(labels))


class RoundRobin:
    """Each address in turn, in the order of the experiment."""

    def __init__(self, addresses: int) -> None:
        self._turns = itertools.cycle(range(addresses))

    def call(self, conversation: str, body: bytes) -> Call:  # noqa: ARG002
        """Nothing."""
        return _ANY

    def choose(self, call: Call, in_flight: Sequence[int]) -> int:  # noqa: ARG002
        return next(place for place in self._turns if in_flight[place] != ABSENT)


class LeastInFlight:
    """The address with the fewest requests in flight; of equal ones, the next in turn after the last choice."""

    def __init__(self, addresses: int) -> None:
        self._addresses = addresses
        self._last = -1

    def call(self, conversation: str, body: bytes) -> Call:  # noqa: ARG002
        """Nothing."""
        return _ANY

    def choose(self, call: Call, in_flight: Sequence[int]) -> int:  # noqa: ARG002
        turns = ((self._last + 1 + step) % self._addresses for step in range(self._addresses))
        self._last = min(turns, key=in_flight.__getitem__)
        return self._last


class BySession:
    """All calls of a conversation at one address, the same in every worker, trial and run.

    Rendezvous hashing (Thaler and Ravishankar 1998): the address whose hash with the conversation is highest. If an
    address is added or removed, only conversations that it gains or loses move.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = labels

    def call(self, conversation: str, body: bytes) -> Call:  # noqa: ARG002
        """The places of the conversation."""
        weights = [_weight(label, conversation) for label in self._labels]
        return Call(places=tuple(sorted(range(len(weights)), key=weights.__getitem__, reverse=True)))

    def choose(self, call: Call, in_flight: Sequence[int]) -> int:
        return next(place for place in call.places if in_flight[place] != ABSENT)


class PrefixAware:
    """The address that was sent the longest prefix of the prompt, unless it is much busier than the idlest.

    Rule: of the addresses that were sent the most leading blocks of this prompt (perhaps none), the one with the fewest
    requests in flight, the next in turn if several are equal. If it has more requests in flight than the idlest one,
    a request that begins a conversation goes to the idlest; a later one does so if the difference exceeds both
    :data:`MARGIN_REQUESTS` and :data:`MARGIN_SHARE`. What was sent stands for what the address has in its prefix cache,
    without knowledge of its size.

    A conversation brings its later calls along. With a margin for its first call, all conversations that share a system
    prompt would begin at the address that was sent it first, and at low load others would get no request at all.

    The idea is that of SGLang's cache-aware router (Zheng et al. 2024, arXiv:2312.07104; ``sgl-router``), which keeps
    an approximate radix tree for each worker and falls back to the shortest queue when the load is uneven. Hashes of
    whole blocks in place of a tree make a choice cost a bisection per address.
    """

    def __init__(self, addresses: int) -> None:
        self._sent = [_SentPrefixes() for _ in range(addresses)]
        self._idlest = LeastInFlight(addresses)
        self._begun: set[str] = set()

    def call(self, conversation: str, body: bytes) -> Call:
        """The conversation and the hashes of the prompt's prefixes."""
        return Call(conversation, prefixes_of(body))

    def choose(self, call: Call, in_flight: Sequence[int]) -> int:
        known = [sent.known(call.prefixes) for sent in self._sent]
        longest, most = max(known), max(in_flight)  # an absent address was sent nothing, and is never the idlest
        # An address that does not know the longest prefix is not chosen for its few requests in flight.
        chosen = self._idlest.choose(
            call, [count if at == longest else most + 1 for count, at in zip(in_flight, known, strict=True)]
        )
        idlest = min(in_flight)
        margin = max(MARGIN_REQUESTS, MARGIN_SHARE * idlest) if call.conversation in self._begun else 0
        self._begun.add(call.conversation)
        if in_flight[chosen] - idlest > margin:
            chosen = self._idlest.choose(call, in_flight)
        self._sent[chosen].add(call.prefixes, known[chosen])
        return chosen


class _SentPrefixes:
    """Prefixes that were sent to one address: with each one, all of its own prefixes.

    Two generations bound its size: when the younger is full, it becomes the older one, which is forgotten next.
    """

    def __init__(self) -> None:
        self._young: set[int] = set()
        self._old: set[int] = set()

    def known(self, prefixes: Sequence[int]) -> int:
        """Number of leading prefixes that were sent."""
        return max(_leading(prefixes, self._young), _leading(prefixes, self._old))

    def add(self, prefixes: Sequence[int], known: int) -> None:
        """Note prefixes as sent, of which ``known`` leading ones are known."""
        if known and prefixes[known - 1] not in self._young:
            known = _leading(prefixes, self._young)  # the others would be forgotten with the older generation
        self._young.update(prefixes[known:])
        if len(self._young) > KEPT_BLOCKS:
            self._young, self._old = set(), self._young


def prefixes_of(body: bytes) -> tuple[int, ...]:
    """A hash of the prompt in a body up to the end of each of its whole blocks; equal only for equal prefixes.

    The hash differs from one process to the next.
    """
    found = _PROMPT.search(body)
    begin, chain = (found.end() if found else 0), 0
    hashes: list[int] = []
    for at in range(begin, len(body) - BLOCK_BYTES + 1, BLOCK_BYTES):
        chain = hash((chain, body[at : at + BLOCK_BYTES]))
        hashes.append(chain)
    return tuple(hashes)


def _leading(prefixes: Sequence[int], sent: set[int]) -> int:
    """How many leading prefixes are among those sent, by bisection, since these include their own prefixes."""
    return bisect_left(prefixes, True, key=lambda prefix: prefix not in sent)


def _weight(label: str, conversation: str) -> bytes:
    return hashlib.blake2b(f"{label}\0{conversation}".encode(), digest_size=8).digest()
