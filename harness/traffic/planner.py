"""Plans the traffic of trials: drawn and checked beforehand, and kept in files so that no plan must fit into memory.

A steady load has three plans with separate seeds. The window's plan is measured: its sessions, and in an open loop
their arrival times, are equal for every engine and repeat. Ramp and tail are pools of other sessions with other
prompts, which start over once they have all been sent.
"""

import contextlib
import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from bakeoff.harness.experiment.config import Experiment, is_steady
from bakeoff.harness.host.scratch import scratch_folder
from bakeoff.harness.rules.rule_set import Start
from bakeoff.harness.traffic.arriving import arriving, within
from bakeoff.harness.traffic.beginning import Beginning, Beginnings
from bakeoff.harness.traffic.plan_file import PlanFile
from bakeoff.harness.traffic.play import Play, planned_play
from bakeoff.harness.traffic.session_law import SessionLaw
from bakeoff.results.records import Cache, Load, Pace, TrafficRecord
from bakeoff.workloads import (
    BadOption,
    EndlessCache,
    PlannedSession,
    PromptPlace,
    Seed,
    Session,
    Tokenizer,
    Workload,
    plan_closed,
    plan_recorded,
    prompt_reader,
)
from bakeoff.workloads.graph import first_alone
from bakeoff.workloads.mix import Mix
from bakeoff.workloads.types import SupportsOwnRate, SupportsPrimers

WARM_UP_REQUESTS = 3
"""Requests per warm-up round."""
_WARM_UP_TOKENS = 16
"""Maximum output tokens of a warm-up request."""
_MIN_POOL = 40
_MAX_POOL = 1000
"""Sessions in the pools of ramp and tail; of a closed loop, requests."""
_MAX_POOL_ERROR = 0.05
"""Relative error of an open loop's pool in sessions per second."""
_TURNOVERS = 3
"""Requests per slot that a closed loop's plans hold before the trial."""
_ENDLESS = 1 << 62
"""Session count of a plan that is generated as far as it is read."""


class Pool(msgspec.Struct, frozen=True):
    """Sessions that are sent again from the start once all have been sent.

    Attributes:
        plan: the sessions.
        period_s: open loop: seconds from the start of one cycle to the next.
    """

    plan: PlanFile
    period_s: float = 0.0


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic of one trial.

    Attributes:
        window: the measured sessions; of loads without a window of their own, all sessions.
        primed: shared system prompts, which are sent before the load; None unless the cache is to be primed.
        shape_sha256: over lengths, order and times of the window's plan before the trial: equal for all engines and
            repeats.
        sha256: over the bytes of the same sessions.
        cache: what the prefix cache may hold.
        endless: an unlimited prefix cache, as the planned prompts would fill it.
    """

    window: PlanFile
    primed: PlanFile | None = None
    shape_sha256: str
    sha256: str
    cache: Cache
    endless: EndlessCache

    def primers(self) -> Iterator[PlannedSession]:
        """What is sent before the load, to bring the prefix cache into the state that the trial declares."""
        if self.cache is Cache.WARM:
            return (_primer(planned.session, planned.places) for planned in self.window)
        return iter(self.primed or ())

    @property
    def plans(self) -> list[PlanFile]:
        """All its plans."""
        return [self.window, *([self.primed] if self.primed else [])]

    @property
    def record(self) -> TrafficRecord:
        """The stored summary: counts of the window's plan as written so far, and repeated tokens of all plans."""
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
            turns=window.requests / max(1, window.sessions),
            off_length=window.off_length,
            off_example=window.off_example,
            cache=self.cache,
        )


class VaryingTraffic(Traffic, frozen=True, kw_only=True):
    """Traffic of a load with varying or recorded arrivals."""


class PlayedTraffic(Traffic, frozen=True, kw_only=True):
    """Traffic by rules of play that begin sessions elsewhere than in their long run."""

    play: Play

    @property
    def plans(self) -> list[PlanFile]:
        """All its plans."""
        return [self.window, self.play.primers, self.play.warm_up]


class SteadyTraffic(Traffic, frozen=True, kw_only=True):
    """Traffic of a steady load.

    Attributes:
        law: of the sessions in the long run.
        begin: plans the sessions in progress when the load begins, from ``pace``, ``restart`` and ``whole``; see
            :meth:`bakeoff.harness.traffic.beginning.Beginnings.plan`.
        ramp_again: takes the number of earlier starts of the load; what it sends before the window, with words that
            none of them has sent, which the engine may have cached. Of a warm cache, the window's sessions.
        tail: sent after the window.
        length_s: open loop: seconds that the window's plan lasts; None for a closed loop.
        ramps: the plans of all ramps so far.
    """

    law: SessionLaw
    begin: Callable[..., Beginning]
    ramp_again: Callable[[int], Pool]
    tail: Pool
    length_s: float | None
    ramps: list[PlanFile]

    @property
    def plans(self) -> list[PlanFile]:
        """All its plans."""
        return [*super().plans, self.tail.plan, *self.ramps]

    @property
    def record(self) -> TrafficRecord:
        """As of all traffic, with the sessions in the long run."""
        return msgspec.structs.replace(
            super().record,
            ramp_repeated_tokens=sum(plan.hit_tokens for plan in self.ramps),
            ramp_requests=sum(plan.requests for plan in self.ramps),
            mean_turn=self.law.mean_turn,
            turns=self.law.turns,
            session_tool_s=self.law.session_s(Pace(0.0, 0.0)),
            mean_output_tokens=self.law.output_tokens,
            output_tokens_sd=self.law.output_tokens_sd,
        )


class TrafficPlanner:
    """Plans the traffic of an experiment's trials, each distinct plan once.

    Lengths and times are equal for every engine and repeat, so that the spread between repeats is the noise of machine
    and engine alone. The words differ between repeats and levels, so that no trial finds an earlier one's prompts in a
    cache.

    Args:
        experiment: its workload, seed and trial limits.
        tokenizer: the model's.
        folder: for the plans' files.
        redraw: draw lengths and times anew for each repeat, so that the spread includes that of the traffic.
        only: class of the traffic to plan; None for all.

    Attributes:
        tokenizer: as given.
        experiment: as given.
    """

    def __init__(
        self,
        experiment: Experiment,
        tokenizer: Tokenizer,
        folder: Path,
        *,
        redraw: bool = False,
        only: str | None = None,
    ) -> None:
        self._only = only
        self._alone: dict[str, TrafficPlanner] = {}
        self.experiment = experiment
        self._redraw = redraw
        self.tokenizer = tokenizer
        self._folder = folder
        self._workload = experiment.source(None if only is None else {only})
        self._planned: dict[Seed, Traffic] = {}
        self._repeat: int | None = None
        reach_s = experiment.trial.ramp_s + experiment.trial.max_window_s + 2 * experiment.trial.request_timeout_s
        self._beginnings = Beginnings(experiment, self._workload, tokenizer, folder, reach_s=reach_s)
        self._reach_s = reach_s

    def traffic(self, load: Load, repeat: int, engine: str, attempt: int = 0) -> Traffic:
        """The traffic of one trial; each attempt has other words of the same lengths, which no cache knows.

        Raises:
            WorkloadError: the workload cannot be planned under this load.
        """
        if self._only is None and load.only is not None:
            return self._of_class(load.only).traffic(load, repeat, engine, attempt)
        if repeat != self._repeat:
            self._forget()
            self._repeat = repeat
        seed = self._seed(load, repeat, engine)
        if attempt:
            seed = Seed(seed.traffic, f"{seed.words}/again-{attempt}")
        if seed not in self._planned:
            self._planned[seed] = self._plan(load, seed)
        return self._planned[seed]

    def warm_up_sessions(self, name: str) -> tuple[PlannedSession, ...]:
        """One round of warm-up requests.

        Lengths are equal in all rounds, with at most 16 output tokens. Each class of the traffic has a request.

        Args:
            name: of the round; seeds its words.
        """
        shape = f"{self.experiment.seed}/settling"  # part of the seed: another name would send other words
        seed = Seed(shape, f"{shape}/{name}")
        count = max(WARM_UP_REQUESTS, len(self.experiment.classes))
        source = self._workload.in_turn() if isinstance(self._workload, Mix) else self._workload
        plan = plan_closed(within(source, 0.0), self.tokenizer, seed, count)
        return tuple(_shortened(_first_turn(planned)) for planned in plan)

    def _of_class(self, name: str) -> "TrafficPlanner":
        """The planner of a class that is sent alone."""
        if name not in self._alone:
            self._alone[name] = TrafficPlanner(
                self.experiment, self.tokenizer, self._folder, redraw=self._redraw, only=name
            )
        return self._alone[name]

    def _seed(self, load: Load, repeat: int, engine: str) -> Seed:
        level = self.experiment.traffic_seed(load)
        words = f"{self.experiment.seed}/{load.label}/{repeat}{self._own_words(engine)}"
        return Seed(f"{level}/{repeat}" if self._redraw else level, words)

    def _own_words(self, engine: str) -> str:
        """A seed suffix that gives engines at one address different words, because they share its prefix cache."""
        own = {address.url for address in self.experiment.engine(engine).addresses}
        sharing = [config for config in self.experiment.engines if own & {a.url for a in config.addresses}]
        is_shared = len(sharing) > 1
        return f"/{engine}" if is_shared else ""

    def _forget(self) -> None:
        """Delete all plans: a repeat's plans are not needed after it, and their files can be large."""
        for traffic in self._planned.values():
            for plan in set(traffic.plans):
                plan.unlink()
        self._planned.clear()
        self._beginnings.forget()

    def _plan(self, load: Load, seed: Seed) -> Traffic:
        limits, endless = self.experiment.trial, EndlessCache()
        if self.experiment.rules_of_play.start is not Start.LONG_RUN:
            return self._played(load, seed, endless)
        primed = self._primed(seed, endless) if limits.cache is Cache.PRIMED else None
        steady, warm = is_steady(load), limits.cache is Cache.WARM
        ramps: list[PlanFile] = []
        ramp_again = functools.cache(functools.partial(self._ramp, load, seed, endless, ramps))
        if steady and not warm:
            ramp_again(0)
        window, length_s = self._window(load, seed, endless)
        if not window.sessions:
            raise BadOption("the workload has no session for this load; give it a longer duration_s or more requests")
        shape_sha256, sha256 = window.shape_sha256, window.sha256  # now: what follows extends the window's plan
        if load.concurrency is not None:
            window.write(lambda plan: plan.sessions >= min(self.experiment.client.workers, load.concurrency or 1))
        if models := self.experiment.workload.models:
            shape_sha256 = hashlib.sha256(shape_sha256.encode() + msgspec.json.encode(models)).hexdigest()
        common: dict[str, Any] = {"window": window, "primed": primed, "shape_sha256": shape_sha256, "sha256": sha256}
        common |= {"cache": limits.cache, "endless": endless}
        if not steady:
            return VaryingTraffic(**common)
        begun_from, whole_window = (window, Pool(window, length_s or 0.0)) if warm else (None, None)
        law = self._beginnings.law(begun_from)
        assert law is not None, "the window has sessions"
        return SteadyTraffic(
            **common,
            law=law,
            begin=functools.partial(self._beginnings.plan, load, seed, begun_from, endless, length_s=length_s),
            ramp_again=ramp_again if whole_window is None else lambda _: whole_window,
            tail=self._pool(load, _part(seed, "tail"), endless),
            length_s=length_s,
            ramps=ramps,
        )

    def _played(self, load: Load, seed: Seed, endless: EndlessCache) -> Traffic:
        """The traffic of a trial by rules of play that begin sessions elsewhere than in their long run."""
        limits, rules = self.experiment.trial, self.experiment.rules_of_play
        sessions = itertools.islice(self._workload.sessions(self.tokenizer, seed), limits.max_requests)
        play = planned_play(
            rules, sessions, load.concurrency or 1, seed=self.experiment.seed, duration_s=limits.duration_s,
            file_of=lambda name, plan: self._file(_part(seed, name), plan, endless),
        )  # fmt: skip
        plan = play.load
        if not plan.sessions:
            raise BadOption("the workload has no session for this load")
        return PlayedTraffic(
            window=plan, shape_sha256=plan.shape_sha256, sha256=plan.sha256, cache=limits.cache, endless=endless,
            play=play,
        )  # fmt: skip

    def _window(self, load: Load, seed: Seed, endless: EndlessCache) -> tuple[PlanFile, float | None]:
        """The window's plan, written as far as its need is known, and its length in seconds (steady open loop only)."""
        limits = self.experiment.trial
        if load.concurrency is not None:
            plan = self._file(seed, self._capped(plan_closed(self._source(), self.tokenizer, seed, _ENDLESS)), endless)
            plan.write(lambda plan: plan.requests >= max(limits.min_requests, _TURNOVERS * (load.concurrency or 1)))
            return plan, None
        if not is_steady(load):
            plan = self._file(seed, self._varying(load, seed), endless)
            plan.write()
            return plan, None
        arrivals = _Arrivals(self._capped(self._constant(load, seed)), load)
        plan = self._file(seed, arrivals, endless)
        plan.write(lambda plan: arrivals.next_s >= limits.duration_s and plan.requests >= limits.min_requests)
        # else the plan lasts longer, for min_requests, or shorter, because max_requests ended it
        as_planned = arrivals.last_s < limits.duration_s <= arrivals.end_s
        return plan, limits.duration_s if as_planned else arrivals.end_s

    def _varying(self, load: Load, seed: Seed) -> Iterator[PlannedSession]:
        """All sessions of a load with varying or recorded arrivals."""
        limits, span_s = self.experiment.trial, self.experiment.trial.duration_s
        count = limits.max_requests or _ENDLESS
        if load.arrival == "workload":
            warp, thinking = self._time_warp(load)
            source = within(self._workload, span_s * warp if thinking else span_s)
            return plan_recorded(
                source, self.tokenizer, seed, duration_s=span_s, count=count, time_warp=warp, warp_thinking=thinking
            )
        plan = arriving(self.experiment, load, self.tokenizer, seed, duration_s=span_s, reach_s=span_s)
        return itertools.islice(plan, count)

    def _constant(self, load: Load, seed: Seed) -> Iterator[PlannedSession]:
        """Sessions of a steady open loop, without end."""
        return arriving(self.experiment, load, self.tokenizer, seed, duration_s=math.inf, reach_s=self._reach_s)

    def _ramp(self, load: Load, seed: Seed, endless: EndlessCache, ramps: list[PlanFile], restart: int) -> Pool:
        part = _part(seed, "ramp")
        pool = self._pool(load, Seed(part.traffic, f"{part.words}/{restart}"), endless)
        ramps.append(pool.plan)
        return pool

    def _pool(self, load: Load, seed: Seed, endless: EndlessCache) -> Pool:
        if load.concurrency is not None:
            plan = self._file(seed, plan_closed(self._source(), self.tokenizer, seed, _ENDLESS), endless)
            fewest = max(_MIN_POOL, _TURNOVERS * load.concurrency)
            plan.write(lambda plan: plan.requests >= fewest)
            return Pool(plan)
        arrivals = _Arrivals(self._constant(load, seed), load)
        plan = self._file(seed, arrivals, endless)
        ramp_s, rate_per_s = self.experiment.trial.ramp_s, load.rate_per_s or 1.0

        def is_enough(plan: PlanFile) -> bool:
            """Whether the part that was written may repeat: the middle of a burst would be a load of its own."""
            if plan.sessions < _MIN_POOL or arrivals.next_s < ramp_s:
                return plan.sessions >= _MAX_POOL
            due = rate_per_s * arrivals.end_s
            return abs(plan.sessions - due) <= _MAX_POOL_ERROR * due or plan.sessions >= _MAX_POOL

        plan.write(is_enough)
        return Pool(plan, arrivals.end_s)

    def _file(self, seed: Seed, plan: Iterator[PlannedSession], endless: EndlessCache) -> PlanFile:
        name = hashlib.sha256(f"{seed.traffic}|{seed.words}".encode()).hexdigest()[:16]
        return PlanFile(self._folder / name, plan, prompt_reader(self.tokenizer), endless)

    def _capped(self, plan: Iterator[PlannedSession]) -> Iterator[PlannedSession]:
        return itertools.islice(plan, self.experiment.trial.max_requests)

    def _source(self) -> Workload:
        """The workload without turns that lie beyond the longest possible trial."""
        return within(self._workload, self._reach_s)

    def _time_warp(self, load: Load) -> tuple[float, bool]:
        """The speed-up of a recorded workload, and whether think times shrink too.

        Raises:
            BadOption: the load has a rate, but the workload has no recorded one to scale.
        """
        if load.rate_per_s is None:
            return load.time_warp or 1.0, True
        if self._recorded_rate is None:
            raise BadOption("this workload has no recorded rate; give the load time_warp instead of rate_per_s")
        return load.rate_per_s / self._recorded_rate, False

    @functools.cached_property
    def _recorded_rate(self) -> float | None:
        """Sessions per second of the workload itself; cached because a trace must be read to its end."""
        return self._workload.own_rate_per_s() if isinstance(self._workload, SupportsOwnRate) else None

    def _primed(self, seed: Seed, endless: EndlessCache) -> PlanFile:
        """The shared system prompts of a load, which fill the cache before it."""
        shared = self._workload.primers(self.tokenizer, seed) if isinstance(self._workload, SupportsPrimers) else ()
        plan = self._file(_part(seed, "primers"), map(_primer, shared), endless)
        plan.write()
        if not plan.sessions:
            raise BadOption("this workload shares no system prompts to prime a cache with; use cold or warm")
        return plan


class _Arrivals:
    """An open loop's plan with one session of lookahead, so that the next arrival time is known.

    Attributes:
        last_s: arrival time of the last session that was read.
    """

    def __init__(self, plan: Iterator[PlannedSession], load: Load) -> None:
        self._plan = plan
        self._gap_s = 1 / (load.rate_per_s or 1.0)
        self._next = next(plan, None)
        self.last_s = 0.0

    @property
    def next_s(self) -> float:
        """Arrival time of the next session; infinite if there is none."""
        return math.inf if self._next is None else self._next.offset_s or 0.0

    @property
    def end_s(self) -> float:
        """End of the part that was read: the next arrival, or one mean gap after the last."""
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
    """A planner whose files are deleted at the end of the block."""
    with scratch_folder() as folder:
        yield TrafficPlanner(experiment, tokenizer, folder, redraw=redraw)


def _part(seed: Seed, name: str) -> Seed:
    return Seed(f"{seed.traffic}/{name}", f"{seed.words}/{name}")


def _first_turn(planned: PlannedSession) -> PlannedSession:
    turns = (first_alone(planned.session.turns[0]),)
    return PlannedSession(msgspec.structs.replace(planned.session, turns=turns), None)


def _shortened(planned: PlannedSession) -> PlannedSession:
    """The session with answers cut to warm-up length."""
    turns = tuple(
        msgspec.structs.replace(turn, output_tokens=min(turn.output_tokens, _WARM_UP_TOKENS))
        for turn in planned.session.turns
    )
    return PlannedSession(msgspec.structs.replace(planned.session, turns=turns), None)


def _primer(session: Session, places: tuple[PromptPlace, ...] = ()) -> PlannedSession:
    """The session as it fills a cache: one output token per answer, no pauses."""
    turns = tuple(msgspec.structs.replace(turn, output_tokens=1, think_s=0.0, lags_s=()) for turn in session.turns)
    return PlannedSession(msgspec.structs.replace(session, turns=turns), None, places=places)
