"""Plans the sessions that are in progress when a steady load begins, and what fills the cache with their history."""

import hashlib
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from bakeoff.harness.client.wire.orders import RAMP_REQUESTS
from bakeoff.harness.client.worker.steady import CHECK_GROWTH, RAMP_ANSWERS
from bakeoff.harness.experiment.config import Experiment, TrialConfig
from bakeoff.harness.traffic.plan_file import PlanFile
from bakeoff.harness.traffic.session_law import Begun, SessionLaw
from bakeoff.harness.traffic.window_length import window_s
from bakeoff.results.records import Load, Pace
from bakeoff.results.units import NS_PER_S
from bakeoff.workloads import (
    EndlessCache,
    PlannedSession,
    Seed,
    Session,
    SessionShape,
    Tokenizer,
    Workload,
    chosen_sessions,
    prompt_reader,
    session_shapes,
)
from bakeoff.workloads.graph import first_alone, is_chain, parents_of
from bakeoff.workloads.shapes import SupportsChoice
from bakeoff.workloads.types import Turn

_MIN_SAMPLE, _SAMPLE_PER_SESSION, _MAX_SAMPLE = 2000, 10, 50_000
"""Sessions in the sample of the law: at least, per session in progress, and at most."""
_SAMPLE_REQUESTS = 400_000
"""A sample of fewer sessions is enough if they have this many requests, whose lengths take three seconds to draw. Of
2,000 sessions of `agent-coding`, the longest preset, the mean number of requests has a standard error of 2 %."""
_WRITTEN_SAMPLE, _WRITTEN_REQUESTS = 400, 20_000
"""Fewest sessions in the sample of a workload that must write all of them to write any, if they have so many requests.
Writing these takes about ten seconds."""
_MAX_BEGUN = 5000
"""Most sessions in progress with which an open loop begins: each takes a few milliseconds to write."""
_START_SHARE = 0.5
"""The slots of a closed loop start over this part of the shortest ramp, so that their prompts do not arrive at once."""
_SLOTS_PER_STEP, _STEP_S = 4, 0.001
"""Where that part is too short, they start in groups of this many, this far apart."""
_SPARE, _ANSWERS_BESIDE = 1.5, 6.0
"""Sessions in progress are written for 1.5 × (ramp + window + 6 answer times) and :data:`PLANNING_S`: writing all of an
agent's session, which may last an hour, would take longer than the trial."""
PLANNING_S = 15.0
"""Seconds between the end of the ramp and the window, in which more of its sessions may have to be written."""
_MIN_PRIMED, _MAX_PRIMED = 2, 32
"""Fewest and most requests in flight while histories are sent."""


class Beginning(msgspec.Struct, frozen=True):
    """The sessions in progress when a load begins.

    Attributes:
        plan: the sessions, cut to what is left of them, by the time of their next request.
        history: prompts that the engine has answered and later calls share, from :func:`cached`.
        slots: requests that may be in flight while the history is sent.
        pace: of the engine, as assumed.
        is_guess: whether that of the engine is unknown.
        reach_s: seconds of the load for which no session ends early, since later calls are left out; infinite if none
            is.
    """

    plan: PlanFile
    history: PlanFile
    slots: int
    pace: Pace
    reach_s: float
    is_guess: bool = False

    def unwritten_s(self, start_ns: int, window: tuple[int, int] | None) -> float:
        """Seconds at the end of a window that no session was written for, in a load that began at an instant."""
        return 0.0 if window is None else max(0.0, (window[1] - start_ns) / NS_PER_S - self.reach_s)


class Beginnings:
    """Plans sessions in progress for the loads of one experiment.

    Args:
        experiment: its seed and trial limits.
        workload: whose sessions are in progress.
        tokenizer: the model's.
        folder: for the plans' files.
        reach_s: longest possible load.
    """

    def __init__(
        self, experiment: Experiment, workload: Workload, tokenizer: Tokenizer, folder: Path, *, reach_s: float
    ) -> None:
        self._experiment = experiment
        self._workload = workload
        self._tokenizer = tokenizer
        self._folder = folder
        self._reach_s = reach_s
        self._shapes: list[SessionShape] = []
        self._law: SessionLaw | None = None
        self._sample_size = 0
        self._written: list[PlanFile] = []

    def law(self, window: PlanFile | None = None, sessions: int = 0) -> SessionLaw | None:
        """The law of the workload's sessions, or of those of a window's plan; None if there are none.

        Args:
            window: take the sessions of this plan, for a cache that holds no others.
            sessions: in progress at once; the more, the larger the sample.
        """
        if window is not None:
            return SessionLaw.of(SessionShape.of(planned.session.turns) for planned in window)
        size, least, most_requests = _MIN_SAMPLE, _WRITTEN_SAMPLE, _WRITTEN_REQUESTS
        if isinstance(self._workload, SupportsChoice):
            least, most_requests = _SAMPLE_PER_SESSION * sessions, _SAMPLE_REQUESTS
            size = min(_MAX_SAMPLE, max(_MIN_SAMPLE, least))
        if self._law is None or self._sample_size < size:
            shapes = session_shapes(self._workload, self._tokenizer, self._seed(""))
            self._shapes = list(_sample(shapes, size, least, most_requests))
            self._law, self._sample_size = SessionLaw.of(self._shapes), size
        return self._law

    def plan(
        self,
        load: Load,
        seed: Seed,
        window: PlanFile | None,
        endless: EndlessCache,
        *,
        length_s: float | None,
        pace: Pace | None,
        restart: int = 0,
        whole: bool = False,
    ) -> Beginning:
        """The sessions in progress under a load.

        Args:
            load: the level.
            seed: of the trial's traffic.
            window: as for :meth:`law`.
            endless: simulates an unlimited prefix cache.
            length_s: seconds of the window's plan, if that is fixed.
            pace: of the engine; None while it is unknown. Sessions of a closed loop without pauses are then divided by
                their answer lengths, and all others are in a pause.
            restart: number of earlier starts of this trial's load, whose words are cached.
            whole: write the sessions as far as the longest possible load goes, not as far as the expected one.
        """
        seed = Seed(seed.traffic, f"{seed.words}/{restart}")
        law = self.law(window)
        assert law is not None, "a plan without sessions is refused before"
        is_guess = pace is None
        if pace is None:
            pace = Pace(0.0, 1.0 if load.concurrency is not None and not law.think_s else 0.0)
        count = self._count(load, law, pace)
        if window is None:
            law = self.law(None, count) or law
        begun = law.in_progress(count, pace, seed.draws("begun").uniform)
        starts_s = _starts_s(len(begun), self._experiment.trial.ramp_s) if load.concurrency is not None else None
        places: dict[int, list[int]] = defaultdict(list)
        for at, entry in enumerate(begun):
            places[entry.number].append(at)
        rests: dict[int, PlannedSession] = {}
        seen: list[Answered] = []
        reach_s = self._reach_s if whole else min(self._reach_s, self._needed_s(load, law, pace, length_s))
        lasts = [self._last_within(entry, reach_s) if window is None else None for entry in begun]
        for number, written in self._sessions(begun, lasts, seed, window):  # one at a time: some have 100 megabytes
            for at in places[number]:
                session = msgspec.structs.replace(written, turns=written.turns[: lasts[at]])
                play = f"b{restart}.{at}"
                rests[at] = rest_of(session, begun[at], starts_s[at] if starts_s else 0.0, play)
                seen += answered(session, begun[at], play)
        has_history = window is None and self._experiment.spec.enable_prefix_caching is not False
        history = self._file(seed, pace, cached(seen) if has_history else (), endless)
        history.write()
        in_order = sorted(sorted(rests), key=lambda at: rests[at].offset_s or 0.0)
        plan = self._file(seed, pace, (rests.pop(at) for at in in_order), endless)
        plan.write()
        in_flight = math.ceil(count * law.answered_share(pace))
        slots = min(_MAX_PRIMED, max(_MIN_PRIMED, in_flight))
        is_cut = reach_s < self._reach_s and any(
            last is not None and last < len(self._shapes[entry.number].output_tokens)
            for entry, last in zip(begun, lasts, strict=True)
        )
        return Beginning(plan, history, slots, pace, reach_s if is_cut else math.inf, is_guess)

    def forget(self) -> None:
        """Delete the files of all plans."""
        for plan in self._written:
            plan.unlink()
        self._written.clear()

    def _count(self, load: Load, law: SessionLaw, pace: Pace) -> int:
        if load.concurrency is not None:
            return load.concurrency
        sessions = round((load.rate_per_s or 0.0) * law.session_s(pace))
        return min(sessions, _MAX_BEGUN)

    def _needed_s(self, load: Load, law: SessionLaw, pace: Pace, length_s: float | None) -> float:
        """Seconds of the load that sessions in progress must last at this pace, with some to spare."""
        limits, answer_s = self._experiment.trial, law.answer_s(pace)
        turnover_s = 0.0 if load.concurrency is None else law.turnover_s(answer_s)
        window = min(limits.max_window_s, window_s(load, limits, turnover_s, length_s))
        return _SPARE * (ramp_s(load, law, pace, limits) + window + _ANSWERS_BESIDE * answer_s) + PLANNING_S

    def _seed(self, words: str) -> Seed:
        """Lengths and pauses are the experiment's, so that the law is; words are the trial's."""
        return Seed(f"{self._experiment.seed}/begun", f"{words}/begun")

    def _last_within(self, entry: Begun, reach_s: float) -> int:
        """Number of a session's first turns that hold all within reach."""
        due_s = {call.turn: call.delay_s for call in entry.calls}
        return self._shapes[entry.number].links.first_within(reach_s, ended=entry.ended, due_s=due_s)

    def _sessions(
        self, begun: Sequence[Begun], lasts: Sequence[int | None], seed: Seed, window: PlanFile | None
    ) -> Iterator[tuple[int, Session]]:
        """The chosen sessions with their numbers, up to the last turn within reach of any entry."""
        if window is not None:
            numbers = {entry.number for entry in begun}
            yield from ((number, planned.session) for number, planned in enumerate(window) if number in numbers)
            return
        turns: Counter[int] = Counter()
        for entry, last in zip(begun, lasts, strict=True):
            turns[entry.number] = max(turns[entry.number], last or 0)
        written = chosen_sessions(self._workload, self._tokenizer, self._seed(seed.words), turns)
        yield from zip(sorted(turns), written, strict=True)

    def _file(self, seed: Seed, pace: Pace, plan: Iterable[PlannedSession], endless: EndlessCache) -> PlanFile:
        key = f"{seed.traffic}|{seed.words}|begun|{pace.ttft_s}|{pace.token_s}|{len(self._written)}"
        path = self._folder / hashlib.sha256(key.encode()).hexdigest()[:16]
        self._written.append(PlanFile(path, iter(plan), prompt_reader(self._tokenizer), endless))
        return self._written[-1]


def ramp_s(load: Load, law: SessionLaw, pace: Pace, limits: TrialConfig) -> float:
    """Seconds that the ramp takes at this pace, with the time to its next check."""
    answer_s = law.answer_s(pace)
    if load.concurrency is not None:
        needed_s = law.turnover_s(answer_s) * min(1.0, RAMP_REQUESTS / load.concurrency)
    else:
        needed_s = RAMP_REQUESTS / ((load.rate_per_s or 1.0) * law.turns)
    return CHECK_GROWTH * max(limits.ramp_s + RAMP_ANSWERS * answer_s, needed_s)


def _sample(shapes: Iterable[SessionShape], size: int, least: int, most_requests: int) -> Iterator[SessionShape]:
    """The first ``size`` shapes; fewer, but at least ``least``, if these have ``most_requests``."""
    requests = 0
    for number, shape in enumerate(itertools.islice(shapes, size)):
        if number >= least and requests >= most_requests:
            return
        yield shape
        requests += len(shape.output_tokens)


def last_answered(session: Session, ended: Sequence[int], play: str = "") -> Iterator[PlannedSession]:
    """The last answered prompt of each of a session's agents, with an answer of one token.

    Args:
        session: the session.
        ended: positions of the calls that have been answered, in order.
        play: see :attr:`~bakeoff.workloads.plan.PlannedSession.play`.
    """
    last = {session.turns[number].agent: number for number in ended}
    for number in last.values():
        yield _seen(session, number, play)


class Answered(NamedTuple):
    """What an agent of a session in progress has asked so far.

    Attributes:
        age_s: seconds since its last answer.
        goes_on: whether it has calls left, which share that prompt.
        opening: what agents of its kind begin with: instructions and tools.
        first: its first prompt, with an answer of one token.
        last: its last answered prompt, likewise.
    """

    age_s: float
    goes_on: bool
    opening: str
    first: PlannedSession
    last: PlannedSession


def answered(session: Session, begun: Begun, play: str = "") -> list[Answered]:
    """What each agent of a session in progress has asked; arguments as of :func:`rest_of`."""
    ended = set(begun.ended)
    going_on = {turn.agent for number, turn in enumerate(session.turns) if number not in ended}
    calls: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for number, age_s in zip(begun.ended, begun.ages_s, strict=True):
        calls[session.turns[number].agent].append((number, age_s))
    return [
        Answered(
            of_agent[-1][1],
            agent in going_on,
            _opening(session.turns[of_agent[0][0]]),
            *(_seen(session, number, play) for number in (of_agent[0][0], of_agent[-1][0])),
        )
        for agent, of_agent in calls.items()
    ]


def cached(seen: Sequence[Answered]) -> tuple[PlannedSession, ...]:
    """What later calls could find in a prefix cache that keeps the latest prompts, the earliest first.

    These are the last prompts of all agents that go on, and those of others since: where memory is short, they have
    pushed earlier ones out. Older prompts of agents that have ended would be pushed out before any of these. What they
    share with an agent that starts later is their beginning, so the first prompt of one agent of each kind comes first.
    """
    oldest_s = max((agent.age_s for agent in seen if agent.goes_on), default=-math.inf)
    kept = sorted((agent for agent in seen if agent.age_s <= oldest_s), key=lambda agent: -agent.age_s)
    openings = {agent.opening for agent in kept}
    kinds = {agent.opening: agent.first for agent in seen if agent.opening not in openings}
    return (*kinds.values(), *(agent.last for agent in kept))


def _seen(session: Session, number: int, play: str) -> PlannedSession:
    alone = first_alone(msgspec.structs.replace(session.turns[number], output_tokens=1))
    return PlannedSession(msgspec.structs.replace(session, turns=(alone,)), None, (number,), play=play)


def _opening(turn: Turn) -> str:
    return f"{turn.tools or ''}{turn.messages[0].content if turn.messages else turn.prompt or ''}"


def rest_of(session: Session, begun: Begun, start_s: float, play: str = "") -> PlannedSession:
    """What is left of a session that goes on at ``start_s``; see :attr:`PlannedSession.play`."""
    calls = {call.turn: call for call in begun.calls}
    numbers = [number for number in range(len(session.turns)) if number not in begun.ended]
    places = {number: place for place, number in enumerate(numbers)}
    first_s = min(call.delay_s for call in begun.calls)
    links = parents_of(session.turns)
    turns: list[Turn] = []
    parts = [1.0] * len(numbers)
    for place, number in enumerate(numbers):
        turn = session.turns[number]
        if (call := calls.get(number)) is not None:
            tokens = max(1, round(call.part * turn.output_tokens))
            parts[place] = tokens / turn.output_tokens
            turn = msgspec.structs.replace(turn, output_tokens=tokens)
        if not is_chain(session.turns):
            left = [index for index, parent in enumerate(links[number]) if parent in places]
            turn = msgspec.structs.replace(
                turn,
                parents=tuple(places[links[number][index]] for index in left),
                lags_s=tuple(turn.lags_s[index] for index in left) if turn.lags_s else (),
                think_s=turn.think_s if call is None else call.delay_s - first_s,
            )
        turns.append(turn)
    rest = msgspec.structs.replace(session, turns=tuple(turns))
    numbered = tuple(numbers) if begun.ended else ()
    return PlannedSession(rest, start_s + first_s, numbered, _unless_whole(parts), play=play)


def _unless_whole(parts: Sequence[float]) -> tuple[float, ...]:
    return () if all(part == 1 for part in parts) else tuple(parts)


def _starts_s(slots: int, ramp_s: float) -> list[float]:
    """Starts of the slots of a closed loop, in seconds."""
    step_s = max(_START_SHARE * ramp_s / slots, _STEP_S / _SLOTS_PER_STEP)
    return [slot * step_s for slot in range(slots)]
