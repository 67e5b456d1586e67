"""What a trial sends: planned and checked before it, kept in a file, so that no plan has to fit into memory."""

import contextlib
import functools
import hashlib
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import msgspec

from harness.experiment import EngineConfig, Experiment
from results.frames import FrameAppender, FrameLog
from results.records import Cache, Load, TrafficRecord
from workloads import (
    BadOption,
    EndlessCache,
    PlanHash,
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

SETTLING_REQUESTS = 3
"""In one round of them."""
_SETTLING_TOKENS = 16
_FLUSH_BYTES = 1 << 22


class Traffic(msgspec.Struct, frozen=True):
    """What one trial sends.

    Attributes:
        warmup: sent first, in words of their own, and never counted.
        primers: sent after it, to bring the cache into the state that the trial declares; empty where it is cold.
        plan: file of the measured sessions.
        shape_sha256: over lengths, order and times.
        record: what is stored of it.
    """

    warmup: tuple[PlannedSession, ...]
    primers: Callable[[], Iterator[PlannedSession]]
    plan: Path
    shape_sha256: str
    record: TrafficRecord

    def sessions(self) -> Iterator[PlannedSession]:
        """The measured sessions, read from the file as they are needed."""
        return iter(FrameLog(self.plan, PlannedSession))


class TrafficPlanner:
    """Plans the traffic of an experiment's trials, each distinct plan once.

    Lengths and times are the same for every engine and repeat, so that the spread between repeats is the noise of
    machine and engine alone. The words are new in every repeat and at every level, so that no trial finds an earlier
    one's prompts in a cache.

    Args:
        experiment: what is sent, and how much of it.
        tokenizer: the model's.
        folder: for the plans' files.

    Attributes:
        tokenizer: as given.
    """

    def __init__(self, experiment: Experiment, tokenizer: Tokenizer, folder: Path) -> None:
        self._experiment = experiment
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

    def settling(self, words: str) -> tuple[PlannedSession, ...]:
        """A round of small requests after an engine's start.

        All rounds are alike in length, answers cut short; ``words`` names the words of this one.
        """
        shape = f"{self._experiment.seed}/settling"
        seed = Seed(shape, f"{shape}/{words}")
        plan = plan_closed(_within(self._workload, 0.0), self.tokenizer, seed, SETTLING_REQUESTS)
        return tuple(_shortened(_first_turn(planned)) for planned in plan)

    def _seed(self, load: Load, repeat: int, engine: str) -> Seed:
        shape = self._experiment.traffic_seed(load)
        return Seed(shape, f"{shape}/{repeat}{self._own_words(engine)}")

    def _own_words(self, engine: str) -> str:
        """Engines at one address share its cache, so each gets words of its own."""
        url = _url(next(side for side in self._experiment.engines if side.shown == engine))
        shared = url is not None and sum(_url(side) == url for side in self._experiment.engines) > 1
        return f"/{engine}" if shared else ""

    def _forget(self) -> None:
        """Plans of another repeat are not needed again; their files may be large."""
        for traffic in self._made.values():
            traffic.plan.unlink()
        self._made.clear()

    def _planned(self, load: Load, seed: Seed) -> Traffic:
        limits, source = self._experiment.trial, self._workload
        path = self._folder / hashlib.sha256(f"{seed.traffic}|{seed.words}".encode()).hexdigest()[:16]
        warmup_seed = Seed(f"{seed.traffic}/warmup", f"{seed.words}/warmup")
        warmup = plan_closed(_within(source, 0.0), self.tokenizer, warmup_seed, limits.warmup_requests)
        record, shape = _written(path, self._measured(load, seed), self.tokenizer, limits.cache)
        if not record.sessions:
            raise BadOption("the workload has no session for this load; give it a longer duration_s or more requests")
        return Traffic(tuple(map(_first_turn, warmup)), self._primers(path, seed), path, shape, record)

    def _measured(self, load: Load, seed: Seed) -> Iterator[PlannedSession]:
        limits, source = self._experiment.trial, self._workload
        if load.concurrency is not None:
            source = _within(source, limits.duration_s)
            return plan_closed(source, self.tokenizer, seed, limits.max_requests)
        span_s, count = limits.duration_s, limits.max_requests
        if load.arrival == "workload":
            warp, thinking = self._time_warp(load)
            source = _within(source, span_s * warp if thinking else span_s)
            return plan_recorded(
                source, self.tokenizer, seed, duration_s=span_s, count=count, time_warp=warp, warp_thinking=thinking
            )
        process = arrival(load.arrival or "poisson", load.rate_per_s or 0.0, load.arrival_options)
        source = _within(source, span_s)
        return plan_open(source, process, self.tokenizer, seed, duration_s=span_s, count=count)

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
        return getattr(self._workload, "rate_per_s", None)

    def _primers(self, path: Path, seed: Seed) -> Callable[[], Iterator[PlannedSession]]:
        match self._experiment.trial.cache:
            case Cache.COLD:
                return lambda: iter(())
            case Cache.WARM:
                return lambda: (_hurried(planned.session) for planned in FrameLog(path, PlannedSession))
            case Cache.PRIMED:
                primers = getattr(self._workload, "primers", None)
                if primers is None or next(iter(primers(self.tokenizer, seed)), None) is None:
                    raise BadOption("this workload shares no system prompts to prime a cache with; use cold or warm")
                return lambda: (_hurried(session) for session in primers(self.tokenizer, seed))


@contextlib.contextmanager
def traffic_planner(experiment: Experiment, tokenizer: Tokenizer) -> Generator[TrafficPlanner]:
    """A planner whose files go with the block."""
    with tempfile.TemporaryDirectory(prefix="bakeoff-traffic-") as folder:
        yield TrafficPlanner(experiment, tokenizer, Path(folder))


def _url(side: EngineConfig) -> str | None:
    return side.url


def _within(source: Workload, reach_s: float) -> Workload:
    """The workload without the turns that a load of that length cannot reach, where it can leave them out."""
    within = getattr(source, "within", None)
    return source if within is None else within(reach_s)


def _written(
    path: Path, plan: Iterator[PlannedSession], tokenizer: Tokenizer, cache: Cache
) -> tuple[TrafficRecord, str]:
    """Write a plan to its file, encoding every prompt once; returns what is stored of it and the hash of its shape."""
    everything, shape, endless = PlanHash(), hashlib.sha256(), EndlessCache()
    reader = prompt_reader(tokenizer)
    sessions = requests = output_tokens = off = waiting = 0
    example: str | None = None
    with FrameAppender(path) as file:
        for planned in plan:
            sessions += 1
            everything.add(planned)
            shape.update(msgspec.json.encode(_shape(planned)))
            for turn in planned.session.turns:
                ids = reader.ids(turn)
                endless.add(ids)
                requests += 1
                output_tokens += turn.output_tokens
                waiting += len(ids) * 4
                if len(ids) != turn.input_tokens:
                    off += 1
                    example = example or f"{planned.session.id}: {len(ids)} tokens where {turn.input_tokens} were meant"
            file.append(planned)
            if waiting > _FLUSH_BYTES:
                file.flush()
                waiting = 0
        file.flush()
    record = TrafficRecord(
        sha256=everything.hexdigest(),
        sessions=sessions,
        requests=requests,
        prompt_tokens=endless.prompt_tokens,
        output_tokens=output_tokens,
        repeated_tokens=endless.hit_tokens,
        block_tokens=endless.block_tokens,
        off_length=off,
        off_example=example,
        cache=cache,
    )
    return record, shape.hexdigest()


def _shape(planned: PlannedSession) -> tuple[object, ...]:
    turns = [(turn.input_tokens, turn.output_tokens, turn.think_s) for turn in planned.session.turns]
    return planned.session.id, planned.offset_s, turns


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
