"""What a trial sends: planned and checked before it, kept in files, so that no plan has to fit into memory.

A steady load has three plans with seeds of their own. The window's is the measured one: its sessions, and in an open
loop their times, are the same for every engine and repeat. Ramp and tail are pools of other sessions in other words,
which begin again when they have been sent.
"""

import contextlib
import functools
import hashlib
import itertools
import math
import statistics
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path

import msgspec

from harness.experiment.config import Experiment
from harness.traffic.plan_file import PlanFile
from results.records import Cache, Load, TrafficRecord
from workloads import (
    VARYING_ARRIVALS,
    BadOption,
    EndlessCache,
    PlannedSession,
    Seed,
    Session,
    Tokenizer,
    Workload,
    arrival,
    plan_closed,
    plan_open,
    plan_recorded,
    prompt_reader,
    workload,
)
from workloads.types import SupportsOwnRate, SupportsPrimers, SupportsReach

WARM_UP_REQUESTS = 3
"""In one round of them."""
_SETTLING_TOKENS = 16
_LEAST_RAMP = 40
_MOST_RAMP = 1000
"""Sessions of the pools of ramp and tail; requests of a closed loop's tail."""
_TURNOVERS = 3
"""Requests of a closed loop's plans that are written beforehand, for each slot."""


class Pool(msgspec.Struct, frozen=True):
    """Sessions that are sent again when they have all been sent.

    Attributes:
        plan: the sessions.
        period_s: open loop: length of the plan.
        think_s: closed loop: mean time for which users think before a request; 0 before the first of a session.
    """

    plan: PlanFile
    period_s: float = 0.0
    think_s: float = 0.0


class Traffic(msgspec.Struct, frozen=True):
    """What one trial sends.

    Attributes:
        primers: sent before the load, to bring the cache into the state that the trial declares.
        window: the measured sessions; of a load that is meant to change, all of them.
        ramp: sent before the window, and
        tail: after it; None for a load that is meant to change.
        length_s: open loop: how long the window's plan lasts; None for a closed one.
        shape_sha256: over lengths, order and times of what is written beforehand: equal for every engine and repeat.
        sha256: over the bytes of the same.
        cache: what the prefix cache may hold.
        endless: prefix cache of the planned prompts.
    """

    primers: Callable[[], Iterator[PlannedSession]]
    window: PlanFile
    ramp: Pool | None
    tail: Pool | None
    length_s: float | None
    shape_sha256: str
    sha256: str
    cache: Cache
    endless: EndlessCache

    @property
    def record(self) -> TrafficRecord:
        """What is stored of it: of the window's plan as far as it was written, and of what all parts repeat."""
        window = self.window
        return TrafficRecord(
            sha256=self.sha256,
            sessions=window.sessions,
            requests=window.requests,
            prompt_tokens=window.prompt_tokens,
            output_tokens=window.output_tokens,
            repeated_tokens=self.endless.hit_tokens,
            block_tokens=self.endless.block_tokens,
            mean_turn=window.mean_turn,
            off_length=window.off_length,
            off_example=window.off_example,
            cache=self.cache,
        )


def is_steady(load: Load) -> bool:
    """Whether a load stays as it is, so that it has a ramp, a window and a tail; a trace at its own times does not."""
    return load.concurrency is not None or load.arrival not in {"workload", *VARYING_ARRIVALS}


class TrafficPlanner:
    """Plans the traffic of an experiment's trials, each distinct plan once.

    Lengths and times are the same for every engine and repeat, so that the spread between repeats is the noise of
    machine and engine alone. The words are new in every repeat and at every level, so that no trial finds an earlier
    one's prompts in a cache.

    Args:
        experiment: what is sent, and how much of it.
        tokenizer: the model's.
        folder: for the plans' files.
        redraw: draw lengths and times anew for each repeat, so that the spread holds that of the traffic, too.

    Attributes:
        tokenizer: as given.
    """

    def __init__(self, experiment: Experiment, tokenizer: Tokenizer, folder: Path, *, redraw: bool = False) -> None:
        self._experiment = experiment
        self._redraw = redraw
        self.tokenizer = tokenizer
        self._folder = folder
        self._workload = workload(experiment.workload.name, experiment.workload.options)
        self._made: dict[Seed, Traffic] = {}
        self._repeat: int | None = None

    def traffic(self, load: Load, repeat: int, engine: str) -> Traffic:
        """The traffic of one trial.

        Raises:
            WorkloadError: the workload cannot be planned under this load.
        """
        if repeat != self._repeat:
            self._forget()
            self._repeat = repeat
        seed = self._seed(load, repeat, engine)
        if seed not in self._made:
            self._made[seed] = self._planned(load, seed)
        return self._made[seed]

    def warm_up_sessions(self, words: str) -> tuple[PlannedSession, ...]:
        """A round of small requests after an engine's start.

        All rounds are alike in length, answers cut short; ``words`` names the words of this one.
        """
        shape = f"{self._experiment.seed}/settling"
        seed = Seed(shape, f"{shape}/{words}")
        plan = plan_closed(_within(self._workload, 0.0), self.tokenizer, seed, WARM_UP_REQUESTS)
        return tuple(_shortened(_first_turn(planned)) for planned in plan)

    def _seed(self, load: Load, repeat: int, engine: str) -> Seed:
        level = self._experiment.traffic_seed(load)
        trial = f"{level}/{repeat}"
        return Seed(trial if self._redraw else level, f"{trial}{self._own_words(engine)}")

    def _own_words(self, engine: str) -> str:
        """Engines at one address share its cache, so each gets words of its own."""
        url = self._experiment.side(engine).url
        shared = url is not None and sum(side.url == url for side in self._experiment.engines) > 1
        return f"/{engine}" if shared else ""

    def _forget(self) -> None:
        """Plans of another repeat are not needed again; their files may be large."""
        for traffic in self._made.values():
            for plan in {traffic.window, *(pool.plan for pool in (traffic.ramp, traffic.tail) if pool)}:
                plan.unlink()
        self._made.clear()

    def _planned(self, load: Load, seed: Seed) -> Traffic:
        limits, endless = self._experiment.trial, EndlessCache()
        steady, warm = is_steady(load), limits.cache is Cache.WARM
        ramp = self._ramp(load, _part(seed, "ramp"), endless) if steady and not warm else None
        window, length_s = self._window(load, seed, endless)
        if not window.sessions:
            raise BadOption("the workload has no session for this load; give it a longer duration_s or more requests")
        shape_sha256, sha256 = window.shape_sha256, window.sha256
        if steady and warm:
            ramp = Pool(window, length_s or 0.0, _mean_think_s(window))
        tail = self._pool(load, _part(seed, "tail"), endless) if steady else None
        primers = self._primers(window, seed)
        return Traffic(primers, window, ramp, tail, length_s, shape_sha256, sha256, limits.cache, endless)

    def _window(self, load: Load, seed: Seed, endless: EndlessCache) -> tuple[PlanFile, float | None]:
        """The window's plan, written as far as can be known, and how long it lasts in an open loop."""
        limits = self._experiment.trial
        if load.concurrency is not None:
            plan = self._file(seed, self._capped(plan_closed(self._source(), self.tokenizer, seed, _NO_END)), endless)
            plan.write(lambda plan: plan.requests >= max(limits.min_requests, _TURNOVERS * (load.concurrency or 1)))
            return plan, None
        if not is_steady(load):
            plan = self._file(seed, self._changing(load, seed), endless)
            plan.write()
            return plan, None
        arrivals = _Arrivals(self._capped(self._arriving(load, seed)), load)
        plan = self._file(seed, arrivals, endless)
        plan.write(lambda plan: arrivals.next_s >= limits.duration_s and plan.requests >= limits.min_requests)
        as_planned = arrivals.last_s < limits.duration_s <= arrivals.end_s
        return plan, limits.duration_s if as_planned else arrivals.end_s

    def _changing(self, load: Load, seed: Seed) -> Iterator[PlannedSession]:
        """All sessions of a load that is meant to change."""
        limits, span_s = self._experiment.trial, self._experiment.trial.duration_s
        count = limits.max_requests or _NO_END
        if load.arrival == "workload":
            warp, thinking = self._time_warp(load)
            source = _within(self._workload, span_s * warp if thinking else span_s)
            return plan_recorded(
                source, self.tokenizer, seed, duration_s=span_s, count=count, time_warp=warp, warp_thinking=thinking
            )
        process = arrival(load.arrival or "poisson", load.rate_per_s or 0.0, load.arrival_options)
        source = _within(self._workload, span_s)
        return plan_open(source, process, self.tokenizer, seed, duration_s=span_s, count=count)

    def _arriving(self, load: Load, seed: Seed) -> Iterator[PlannedSession]:
        process = arrival(load.arrival or "poisson", load.rate_per_s or 0.0, load.arrival_options)
        return plan_open(self._source(), process, self.tokenizer, seed, duration_s=math.inf, count=_NO_END)

    def _ramp(self, load: Load, seed: Seed, endless: EndlessCache) -> Pool:
        """The pool of the ramp; in a closed loop its first sessions are met in the middle, as at any later time."""
        if load.concurrency is None:
            return self._pool(load, seed, endless)
        count = max(_LEAST_RAMP, _TURNOVERS * load.concurrency)
        sessions = list(plan_closed(self._source(), self.tokenizer, seed, count))
        plan = self._file(seed, _begun(sessions, load.concurrency, seed), endless)
        plan.write()
        return Pool(plan, think_s=_mean_think_s(sessions))

    def _pool(self, load: Load, seed: Seed, endless: EndlessCache) -> Pool:
        if load.concurrency is not None:
            least = max(_LEAST_RAMP, _TURNOVERS * load.concurrency)
            plan = self._file(seed, plan_closed(self._source(), self.tokenizer, seed, least), endless)
            plan.write(lambda plan: plan.requests >= least)
            return Pool(plan)
        arrivals = _Arrivals(self._arriving(load, seed), load)
        plan = self._file(seed, arrivals, endless)
        ramp_s = self._experiment.trial.ramp_s
        plan.write(
            lambda plan: plan.sessions >= _MOST_RAMP or (arrivals.next_s >= ramp_s and plan.sessions >= _LEAST_RAMP)
        )
        return Pool(plan, arrivals.end_s)

    def _file(self, seed: Seed, plan: Iterator[PlannedSession], endless: EndlessCache) -> PlanFile:
        name = hashlib.sha256(f"{seed.traffic}|{seed.words}".encode()).hexdigest()[:16]
        return PlanFile(self._folder / name, plan, prompt_reader(self.tokenizer), endless)

    def _capped(self, plan: Iterator[PlannedSession]) -> Iterator[PlannedSession]:
        return itertools.islice(plan, self._experiment.trial.max_requests)

    def _source(self) -> Workload:
        """The workload without the turns that no trial can reach."""
        limits = self._experiment.trial
        return _within(self._workload, limits.ramp_s + limits.max_window_s + 2 * limits.timeout_s)

    def _time_warp(self, load: Load) -> tuple[float, bool]:
        """How much faster than recorded, and whether think times shrink with it.

        Raises:
            BadOption: a rate was asked of a workload that does not know its own.
        """
        if load.rate_per_s is None:
            return load.time_warp or 1.0, True
        if self._natural_rate is None:
            raise BadOption("this workload does not know its own rate; give the load time_warp instead of rate_per_s")
        return load.rate_per_s / self._natural_rate, False

    @functools.cached_property
    def _natural_rate(self) -> float | None:
        """The workload's own, found once: a trace is read to its end for it."""
        return self._workload.own_rate_per_s() if isinstance(self._workload, SupportsOwnRate) else None

    def _primers(self, window: PlanFile, seed: Seed) -> Callable[[], Iterator[PlannedSession]]:
        match self._experiment.trial.cache:
            case Cache.COLD:
                return lambda: iter(())
            case Cache.WARM:
                return lambda: (_hurried(planned.session) for planned in window)
            case Cache.PRIMED:
                source = self._workload
                if not isinstance(source, SupportsPrimers) or next(source.primers(self.tokenizer, seed), None) is None:
                    raise BadOption("this workload shares no system prompts to prime a cache with; use cold or warm")
                return lambda: (_hurried(session) for session in source.primers(self.tokenizer, seed))


_NO_END = 1 << 62
"""Sessions of a plan that goes on as long as it is read."""


class _Arrivals:
    """A plan of an open loop that is read one session ahead, so that it is known when the next one would arrive.

    Attributes:
        last_s: when the last session that was read arrives.
    """

    def __init__(self, plan: Iterator[PlannedSession], load: Load) -> None:
        self._plan = plan
        self._gap_s = 1 / (load.rate_per_s or 1.0)
        self._next = next(plan, None)
        self.last_s = 0.0

    @property
    def next_s(self) -> float:
        """When the next session arrives; infinite where there is none."""
        return math.inf if self._next is None else self._next.offset_s or 0.0

    @property
    def end_s(self) -> float:
        """When what was read is over: at the next arrival, or a mean gap after the last one."""
        return self.next_s if self._next else self.last_s + self._gap_s

    def __iter__(self) -> "_Arrivals":
        return self

    def __next__(self) -> PlannedSession:
        if self._next is None:
            raise StopIteration
        planned, self._next = self._next, next(self._plan, None)
        self.last_s = planned.offset_s or 0.0
        return planned


@contextlib.contextmanager
def traffic_planner(experiment: Experiment, tokenizer: Tokenizer, *, redraw: bool = False) -> Generator[TrafficPlanner]:
    """A planner whose files go with the block."""
    with tempfile.TemporaryDirectory(prefix="bakeoff-traffic-") as folder:
        yield TrafficPlanner(experiment, tokenizer, Path(folder), redraw=redraw)


def _part(seed: Seed, name: str) -> Seed:
    return Seed(f"{seed.traffic}/{name}", f"{seed.words}/{name}")


def _mean_think_s(sessions: Iterable[PlannedSession]) -> float:
    turns = (pair for planned in sessions for pair in enumerate(planned.session.turns))
    thinks_s = [turn.think_s if number else 0.0 for number, turn in turns]
    return statistics.fmean(thinks_s) if thinks_s else 0.0


def _begun(sessions: list[PlannedSession], count: int, seed: Seed) -> Iterator[PlannedSession]:
    """Sessions as a load in progress has them: ``count`` of them at a turn drawn from all turns, then the others.

    Long sessions are met more often.
    """
    places = [(number, turn) for number, planned in enumerate(sessions) for turn in range(len(planned.session.turns))]
    rng = seed.draws("begun")
    drawn: dict[int, int] = {}
    while len(drawn) < min(count, len(sessions)):
        drawn.setdefault(*places[rng.below(len(places))])
    for number, turn in drawn.items():
        session = sessions[number].session
        yield PlannedSession(msgspec.structs.replace(session, turns=session.turns[turn:]), None, turn)
    yield from (planned for number, planned in enumerate(sessions) if number not in drawn)


def _within(source: Workload, reach_s: float) -> Workload:
    """The workload without the turns that a load of that length cannot reach, where it can leave them out."""
    return source.within(reach_s) if isinstance(source, SupportsReach) else source


def _first_turn(planned: PlannedSession) -> PlannedSession:
    return PlannedSession(msgspec.structs.replace(planned.session, turns=planned.session.turns[:1]), None)


def _shortened(planned: PlannedSession) -> PlannedSession:
    """A session whose answers are a few tokens long."""
    turns = tuple(
        msgspec.structs.replace(turn, output_tokens=min(turn.output_tokens, _SETTLING_TOKENS))
        for turn in planned.session.turns
    )
    return PlannedSession(msgspec.structs.replace(planned.session, turns=turns), None)


def _hurried(session: Session) -> PlannedSession:
    """A session to fill a cache with: one token for an answer, no thinking."""
    turns = tuple(msgspec.structs.replace(turn, output_tokens=1, think_s=0.0) for turn in session.turns)
    return PlannedSession(msgspec.structs.replace(session, turns=turns), None)
