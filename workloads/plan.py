"""A finite, fingerprinted plan: which sessions are sent, and when an open loop starts each. It streams."""

import hashlib
import itertools
from collections.abc import Iterator

import msgspec

from workloads.arrivals import Arrival
from workloads.errors import BadOption
from workloads.rng import Seed
from workloads.tokenizer import Tokenizer
from workloads.types import Session, Workload


class PlannedSession(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session and its start.

    Attributes:
        session: what to send.
        offset_s: seconds from the start of the load; None in a closed loop, where a free slot starts it.
        first_turn: turns that it had before the load, and that are left out.
    """

    session: Session
    offset_s: float | None
    first_turn: int = 0


def plan_closed(workload: Workload, tokenizer: Tokenizer, seed: Seed, count: int) -> Iterator[PlannedSession]:
    """The first ``count`` sessions, to be started as slots get free."""
    for session in itertools.islice(workload.sessions(tokenizer, seed), count):
        yield PlannedSession(session, None)


def plan_open(
    workload: Workload, arrival: Arrival, tokenizer: Tokenizer, seed: Seed, *, duration_s: float, count: int
) -> Iterator[PlannedSession]:
    """The sessions that arrive within ``duration_s`` by ``arrival``, but at most ``count``."""
    offsets = itertools.takewhile(lambda offset_s: offset_s < duration_s, arrival.offsets_s(seed.traffic))
    for offset_s, session in zip(itertools.islice(offsets, count), workload.sessions(tokenizer, seed), strict=False):
        yield PlannedSession(session, offset_s)


def plan_recorded(
    workload: Workload,
    tokenizer: Tokenizer,
    seed: Seed,
    *,
    duration_s: float,
    count: int,
    time_warp: float = 1.0,
    warp_thinking: bool = True,
) -> Iterator[PlannedSession]:
    """The sessions when they came in the trace, or would come by the workload's own arrival process.

    The load begins with the first of them: a trial has no use for the silence before it.

    Args:
        workload: whose sessions say when they start.
        tokenizer: the model's.
        seed: of the workload.
        duration_s: of the load, after warping.
        count: at most so many sessions.
        time_warp: how many times faster than recorded.
        warp_thinking: whether think times shrink as well, as in a film that runs faster; not where only the arrival
            rate is meant to change.

    Raises:
        BadOption: a session does not say when it starts.
    """
    first_s: float | None = None
    for session in itertools.islice(workload.sessions(tokenizer, seed), count):
        if session.start_s is None:
            raise BadOption(
                "this workload does not say when its sessions start; give the load an arrival process, such as poisson"
            )
        first_s = session.start_s if first_s is None else first_s
        offset_s = (session.start_s - first_s) / time_warp
        if offset_s >= duration_s:
            return
        yield PlannedSession(_warped(session, time_warp) if warp_thinking else session, offset_s)


def plan_sha256(sessions: Iterator[PlannedSession]) -> str:
    """SHA-256 over the bytes of a whole plan, see :class:`PlanHash`."""
    total = PlanHash()
    for planned in sessions:
        total.add(planned)
    return total.hexdigest()


class PlanHash:
    """SHA-256 over the JSON of every planned session: equal plans have equal hashes, on every machine."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()

    def add(self, planned: PlannedSession) -> None:
        """Take in the next session."""
        self._sha256.update(msgspec.json.encode(planned))

    def hexdigest(self) -> str:
        """The hash of what was added so far."""
        return self._sha256.hexdigest()


def _warped(session: Session, time_warp: float) -> Session:
    if time_warp == 1 or all(turn.think_s == 0 for turn in session.turns):
        return session
    turns = tuple(msgspec.structs.replace(turn, think_s=turn.think_s / time_warp) for turn in session.turns)
    return msgspec.structs.replace(session, turns=turns)
