"""Plans loads by rules of play that begin sessions elsewhere than in their long run.

A closed loop of lanes: lane ``k`` begins with session ``k`` of the workload, at a point that the rules say; each
further session is the next of the workload, from its first call. Calls before the point count as answered.
"""

import hashlib
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from bakeoff.harness.client.wire.orders import Closed
from bakeoff.harness.experiment.config import MAX_SECONDS, TrialConfig
from bakeoff.harness.rules.rule_set import Rules, Start
from bakeoff.harness.traffic.beginning import last_answered, rest_of
from bakeoff.harness.traffic.plan_file import PlanFile
from bakeoff.harness.traffic.session_law import Begun, BegunCall
from bakeoff.results.records import Load
from bakeoff.workloads import BadOption, PlannedSession, Session
from bakeoff.workloads.graph import Links, kept

_MIN_TOKEN_S, _MIN_ANSWER_S = 0.001, 0.01
"""No engine answers faster, so a load for which sessions of such answers suffice never finds the plan ended."""
_MAX_REQUESTS = 100_000
"""Most requests of a load: each takes about a millisecond to write."""

FileOf = Callable[[str, Iterator[PlannedSession]], PlanFile]
"""Makes the file of a part of the load, from its name and its sessions."""


class Lane(msgspec.Struct, frozen=True):
    """Where a lane's first session is when the load begins.

    Attributes:
        begun: the calls that wait for no answer, with the rests of their pauses, and those that count as answered.
        warm_up: those of the latter that are sent during warm-up.
    """

    begun: Begun
    warm_up: tuple[int, ...] = ()


class Play(msgspec.Struct, frozen=True):
    """A load by rules of play.

    Attributes:
        primers: the last call of each agent before its lane's point, for one token of answer.
        warm_up: the calls of each lane that follow, likewise and without pauses.
        load: the rest of each lane's first session, then the other sessions.
        passed_s: seconds of the first pauses that are over when the load begins.
    """

    primers: PlanFile
    warm_up: PlanFile
    load: PlanFile
    passed_s: float

    def sessions(self) -> Iterator[PlannedSession]:
        """The sessions of the load; only those in progress at its begin have an offset."""
        for planned in self.load:
            offset_s = None if planned.offset_s is None else planned.offset_s - self.passed_s
            yield msgspec.structs.replace(planned, offset_s=offset_s)


def share_by(rules: Rules, load: Load, limits: TrialConfig) -> Closed:
    """The client's instructions for a load by rules of play."""
    return Closed(
        load.concurrency or 1,
        MAX_SECONDS if rules.by_count else limits.duration_s,
        grace_s=rules.grace_s,
        idle_cap_s=rules.idle_cap_s,
        session_idle_cap_s=rules.session_idle_cap_s,
    )


def planned_play(
    rules: Rules, sessions: Iterator[Session], lanes: int, *, seed: int, duration_s: float, file_of: FileOf
) -> Play:
    """Plan a load.

    Args:
        rules: of the play.
        sessions: of the workload, in its order.
        lanes: sessions kept alive.
        seed: of the lanes' points, unless the rules state one.
        duration_s: of the load, unless it ends with the workload.
        file_of: see :data:`FileOf`.

    Raises:
        BadOption: the load is to end with the workload, which has no end in sight.
    """
    primers, warm_up, load = (_Part(name, file_of) for name in ("primers", "warm-up", "play"))
    caps_s = [cap_s for cap_s in (rules.idle_cap_s, rules.session_idle_cap_s) if cap_s is not None]
    cap_s = min(caps_s, default=math.inf)
    free_s: list[float] = []
    offsets_s: list[float] = []
    for number in range(lanes):
        if (session := next(sessions, None)) is None:
            break
        lane = lane_of(session, rules, number, seed if rules.start_seed is None else rules.start_seed)
        play = f"b{number}"
        rest = rest_of(session, lane.begun, 0.0, play)
        if rules.has_primers:
            before = [call for call in lane.begun.ended if call not in lane.warm_up]
            primers.add(*last_answered(session, before, play))
        if lane.warm_up:
            warm_up.add(_hurried(session, lane.warm_up, play))
        load.add(rest)
        offsets_s.append(rest.offset_s or 0.0)
        free_s.append(offsets_s[-1] + _least_s(rest.session, cap_s))
    heapq.heapify(free_s)
    end_s = math.inf if rules.by_count else duration_s
    while free_s and free_s[0] < end_s and (session := next(sessions, None)) is not None:
        if load.file.requests >= _MAX_REQUESTS:
            if rules.by_count:
                raise BadOption(f"rules '{rules.name}' play every session of the workload; give trial.max_requests")
            break
        load.add(PlannedSession(session, None))
        heapq.heapreplace(free_s, free_s[0] + _least_s(session, cap_s))
    passed_s = min(offsets_s) if rules.first_at_once and offsets_s else 0.0
    return Play(primers.file, warm_up.file, load.file, passed_s)


def lane_of(session: Session, rules: Rules, number: int, seed: int) -> Lane:
    """Where a lane's first session is.

    In mid-session rules the point is uniform over the given part of the recorded time from the first to the last call's
    start, drawn for session and lane as InferenceX's harness draws it. A call that began before it counts as answered.

    Args:
        session: the session.
        rules: of the play.
        number: of the lane, from 0.
        seed: of the points.
    """
    links = Links.of(session.turns)
    starts_s, ends_s = links.times_s([turn.recorded_s for turn in session.turns])
    if rules.start is Start.FIRST_CALL:
        now_s, ended, warm_up = 0.0, set[int](), ()
    else:
        low_s, high_s = min(starts_s), max(starts_s)
        share = _generator(seed, session.id, number).uniform(*rules.start_share)
        now_s = low_s + share * (high_s - low_s)
        ended = {call for call, start_s in enumerate(starts_s) if start_s < now_s}
        later = sorted(set(range(len(starts_s))) - ended, key=lambda call: (starts_s[call], call))
        warm_up = tuple(sorted(later[: min(rules.warm_up_calls, len(later) - 1)]))
        ended |= set(warm_up)
        now_s = max((ends_s[call] for call in warm_up), default=now_s)
    calls = tuple(
        BegunCall(call, max(0.0, starts_s[call] - now_s))
        for call, parents in enumerate(links.parents)
        if call not in ended and ended.issuperset(parents)
    )
    return Lane(Begun(number, calls, tuple(sorted(ended))), warm_up)


def _generator(seed: int, session: str, lane: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}:{session}:{lane}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def _hurried(session: Session, calls: tuple[int, ...], play: str) -> PlannedSession:
    """Some calls of a session, for one token of answer and without pauses."""
    turns = tuple(
        msgspec.structs.replace(turn, output_tokens=1, think_s=0.0, lags_s=()) for turn in kept(session.turns, calls)
    )
    return PlannedSession(msgspec.structs.replace(session, turns=turns), None, tuple(sorted(calls)), play=play)


def _least_s(session: Session, cap_s: float) -> float:
    """Least seconds of a session whose pauses are capped."""
    links = Links.of(session.turns)
    capped = Links(
        links.parents,
        tuple(tuple(min(lag_s, cap_s) for lag_s in lags_s) for lags_s in links.lags_s),
        tuple(min(pause_s, cap_s) for pause_s in links.pauses_s),
    )
    _, ends_s = capped.times_s([max(_MIN_ANSWER_S, _MIN_TOKEN_S * turn.output_tokens) for turn in session.turns])
    return max(ends_s)


class _Part:
    """A part of the load, written while it is planned: the prompts of one session may have a hundred megabytes."""

    def __init__(self, name: str, file_of: FileOf) -> None:
        self._waiting: deque[PlannedSession] = deque()
        self.file = file_of(name, iter(self._waiting.popleft, None))

    def add(self, *sessions: PlannedSession) -> None:
        """Write further sessions."""
        self._waiting.extend(sessions)
        self.file.write(lambda _: not self._waiting)
