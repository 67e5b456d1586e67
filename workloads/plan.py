"""A finite, fingerprinted plan: which sessions are sent, and when an open loop starts each."""

import hashlib
import itertools

import msgspec

from workloads.arrivals import Arrival
from workloads.tokenizer import Tokenizer
from workloads.types import Session, Workload


class PlannedSession(msgspec.Struct, frozen=True):
    """A session and its start.

    Attributes:
        session: what to send.
        offset_s: seconds from the start of the load; None in a closed loop, where a free slot starts it.
    """

    session: Session
    offset_s: float | None


class TrafficPlan(msgspec.Struct, frozen=True):
    """What one trial may send.

    Attributes:
        sessions: in the order of their start.
        sha256: over the bytes of all of them: equal plans have equal hashes, on every machine.
    """

    sessions: tuple[PlannedSession, ...]
    sha256: str


def plan_closed(workload: Workload, tokenizer: Tokenizer, seed: str, count: int) -> TrafficPlan:
    """The first ``count`` sessions, to be started as slots get free."""
    sessions = itertools.islice(workload.sessions(tokenizer, seed), count)
    return _plan(tuple(PlannedSession(session, None) for session in sessions))


def plan_open(
    workload: Workload, arrival: Arrival, tokenizer: Tokenizer, seed: str, *, duration_s: float, count: int
) -> TrafficPlan:
    """The sessions that arrive within ``duration_s``, but at most ``count``."""
    pairs = zip(arrival.offsets_s(seed), workload.sessions(tokenizer, seed), strict=False)
    inside = itertools.takewhile(lambda pair: pair[0] < duration_s, pairs)
    return _plan(tuple(PlannedSession(session, offset) for offset, session in itertools.islice(inside, count)))


def _plan(sessions: tuple[PlannedSession, ...]) -> TrafficPlan:
    return TrafficPlan(sessions, hashlib.sha256(msgspec.json.encode(sessions)).hexdigest())
