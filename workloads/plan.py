"""Finite plans with a fingerprint: which sessions to send, and when an open loop starts each. Plans are streamed."""

import hashlib
import itertools
from collections.abc import Iterator

import msgspec

from bakeoff.workloads.arrivals import Arrival
from bakeoff.workloads.errors import BadOption
from bakeoff.workloads.rng import Seed
from bakeoff.workloads.tokenizer import Tokenizer
from bakeoff.workloads.types import Session, Workload


class PromptPlace(msgspec.Struct, frozen=True, array_like=True):
    """Which prefix a prompt shares with others of the trial.

    Attributes:
        block: number of its last full block in the trial's :class:`~bakeoff.workloads.prefixes.EndlessCache`.
        shared_tokens: leading tokens that are those of the previous prompt of its agent; if there is none, those that
            earlier prompts of the trial began with.
        goes_on: whether it was written to begin with all of that prompt, before a chat template made it tokens.
    """

    block: int
    shared_tokens: int = 0
    goes_on: bool = False


class PlannedSession(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session and its start.

    Attributes:
        session: the session.
        offset_s: seconds from the start of the load; None in a closed loop, where a free slot starts it, unless the
            session was in progress.
        numbers: position of each turn in the whole session, of which some came before the load; empty if none did.
        parts: fraction of each answer that is left, above 0, since some were in progress: the turns' ``output_tokens``
            are those left. Empty if all are whole.
        places: of the turns' prompts; empty if unknown.
        play: names a session in progress, of which parts are sent apart: what fills the cache, and what is left. Its
            conversations keep their ids. Empty for a session that is sent whole.
    """

    session: Session
    offset_s: float | None
    numbers: tuple[int, ...] = ()
    parts: tuple[float, ...] = ()
    places: tuple[PromptPlace, ...] = ()
    play: str = ""


def plan_closed(workload: Workload, tokenizer: Tokenizer, seed: Seed, count: int) -> Iterator[PlannedSession]:
    """The first ``count`` sessions, each to be started in a free slot."""
    for session in itertools.islice(workload.sessions(tokenizer, seed), count):
        yield PlannedSession(session, None)


def plan_open(
    workload: Workload,
    arrival: Arrival,
    tokenizer: Tokenizer,
    seed: Seed,
    *,
    duration_s: float,
    count: int,
    starts: str = "",
) -> Iterator[PlannedSession]:
    """At most ``count`` sessions, those that ``arrival`` starts within ``duration_s``.

    Args:
        workload: what is sent.
        arrival: when sessions start.
        tokenizer: of the model.
        seed: of sessions and starts.
        duration_s: of the load.
        count: maximum number of sessions.
        starts: suffix of the seed of the starts, for processes that are independent of each other.
    """
    every = arrival.offsets_s(seed.traffic + starts)
    offsets = itertools.takewhile(lambda offset_s: offset_s < duration_s, every)
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
    """Sessions with the workload's own start times, from a trace or its arrival process.

    The load begins with the first session; silence before it is dropped.

    Args:
        workload: its sessions must have start times.
        tokenizer: of the model.
        seed: of the workload.
        duration_s: of the load, after warping.
        count: maximum number of sessions.
        time_warp: speed relative to the recording.
        warp_thinking: whether think times shrink as well; False changes only the arrival rate.

    Raises:
        BadOption: a session has no start time.
    """
    first_s: float | None = None
    for session in itertools.islice(workload.sessions(tokenizer, seed), count):
        if session.start_s is None:
            raise BadOption("this workload has no start times; give the load an arrival process, such as poisson")
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
        """Add the next session."""
        # Where its prompts lie among others follows from these, and is not known before they are written.
        self._sha256.update(msgspec.json.encode(msgspec.structs.replace(planned, places=())))

    def hexdigest(self) -> str:
        """The hash of all sessions added so far."""
        return self._sha256.hexdigest()


def _warped(session: Session, time_warp: float) -> Session:
    if time_warp == 1 or all(turn.think_s == 0 and not turn.lags_s for turn in session.turns):
        return session
    turns = tuple(
        msgspec.structs.replace(
            turn, think_s=turn.think_s / time_warp, lags_s=tuple(lag_s / time_warp for lag_s in turn.lags_s)
        )
        for turn in session.turns
    )
    return msgspec.structs.replace(session, turns=turns)
