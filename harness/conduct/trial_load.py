"""The load of one trial: what fills the cache before it, and the requests of ramp, window and tail."""

import asyncio
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from bakeoff.engines.addresses import replica_header_of
from bakeoff.harness.client import Closed, Fleet, LoadResult
from bakeoff.harness.client.fleet.fleet import LoadOrder, Share
from bakeoff.harness.client.wire.orders import Format, Target
from bakeoff.harness.client.wire.plan import WireSession, new_nonce, wire_sessions
from bakeoff.harness.conduct.addresses import reset_caches, targets_at
from bakeoff.harness.conduct.engine_start import EngineUnderTest
from bakeoff.harness.conduct.kernels import LOAD_S
from bakeoff.harness.conduct.progress import Observer, Stage
from bakeoff.harness.conduct.recording import SpanLog
from bakeoff.harness.conduct.step_log import StepLog
from bakeoff.harness.conduct.traffic_classes import classes_of
from bakeoff.harness.conduct.world import Telemetry, World
from bakeoff.harness.experiment.config import EngineConfig, Experiment
from bakeoff.harness.quality import asks_logprobs
from bakeoff.harness.traffic.plan_file import PlanFile
from bakeoff.harness.traffic.planner import PlayedTraffic, SteadyTraffic, Traffic
from bakeoff.harness.traffic.play import share_by
from bakeoff.harness.traffic.steady import Encode, SteadyOrders, share_of, write_ramp
from bakeoff.results.log.store import TrialFolder
from bakeoff.results.records import Cache, Load, Pace, Phase, TrialPlan, TrialRecord
from bakeoff.workloads import PlannedSession, Tokenizer
from bakeoff.workloads.models import ModelMix

MAX_RESTARTS = 2
"""Times that a steady load may start again because its sessions in progress did not fit the engine's pace."""
_SLOTS = 2
"""Sessions at a time while shared prompts are sent to fill a cache."""


class Paces:
    """The last pace of each engine under each load, from which later loads of a run begin."""

    def __init__(self) -> None:
        self._known: dict[tuple[str | None, str | None], Pace] = {}
        """By engine and load; None for any."""

    def assumed(self, engine: str, load: Load) -> Pace | None:
        """That of the engine under this load, else under another one, else of another engine; None if none is known."""
        keys = ((engine, load.label), (engine, None), (None, load.label), (None, None))
        return next((self._known[key] for key in keys if key in self._known), None)

    def learn(self, engine: str, load: Load, pace: Pace | None) -> None:
        """Note a measured pace; None if there is none."""
        if pace is not None:
            for of in (engine, None):
                self._known[of, load.label] = self._known[of, None] = pace


class LoadContext(msgspec.Struct, frozen=True):
    """What the loads of a run have in common.

    Attributes:
        experiment: has the limits and seeds.
        fleet: the client's workers.
        sampler: telemetry, which is marked before and after a load.
        tokenizer: counts the tokens of prompts.
        world: has threads for planning.
        observer: is notified of each stage.
        paces: of the engines.
    """

    experiment: Experiment
    fleet: Fleet
    sampler: Telemetry
    tokenizer: Tokenizer | None
    world: World
    observer: Observer
    paces: Paces


class TrialLoad:
    """Applies the load of one trial.

    Args:
        context: of the run.
        under_test: the running engine.
        plan: of the trial.
        traffic: of the trial.
        folder: that gets every exchange.

    Attributes:
        was_reset: whether the engine's caches were emptied before.
    """

    def __init__(
        self, context: LoadContext, under_test: EngineUnderTest, plan: TrialPlan, traffic: Traffic, folder: TrialFolder
    ) -> None:
        self._experiment = context.experiment
        self._fleet = context.fleet
        self._sampler = context.sampler
        self._tokenizer = context.tokenizer
        self._world = context.world
        self._observer = context.observer
        self._paces = context.paces
        self._under_test = under_test
        self._plan = plan
        self._traffic = traffic
        self._folder = folder
        self._nonce = new_nonce()
        self.was_reset: bool = False

    async def apply(self, log: StepLog | SpanLog | None, opened: Callable[[int], None]) -> LoadResult:
        """Fill the cache as the trial wants it, and apply the load.

        Args:
            log: of an engine that records itself.
            opened: takes the instant at which the window of a steady load opens.
        """
        under_test, traffic, folder = self._under_test, self._traffic, self._folder
        limits, load = self._experiment.trial, self._plan.load
        await asyncio.sleep(limits.idle_s)
        self.was_reset = limits.cache is not Cache.WARM and await reset_caches(under_test.engine, under_test.addresses)
        sent = 0
        if not isinstance(traffic, PlayedTraffic):
            for target in targets_at(under_test.addresses):
                if not target.is_late:  # each has a cache of its own
                    sent += await self._prime(tuple(traffic.primers()), slots=_SLOTS, sent=sent, only=target)
            share, sessions = share_of(load, limits), traffic.window
        else:
            for part in (traffic.play.primers, traffic.play.warm_up):
                sent += await self._prime(part, slots=load.concurrency or _SLOTS, sent=sent)
            share, sessions = share_by(self._experiment.rules_of_play, load, limits), traffic.play.sessions()
        order = self._order(share, Phase.MEASURED)
        if isinstance(log, SpanLog):
            order = msgspec.structs.replace(order, access=log.access(order.access))

        def window(sessions: Iterable[PlannedSession], first: int) -> Iterator[WireSession]:
            return self._encoded(sessions, first, self._asks(load))

        await self._sampler.mark("before")
        if log:
            await log.start()
        if isinstance(traffic, SteadyTraffic):
            result = await self._steady(order, traffic, sent=sent, window=window, opened=opened)
        else:
            result = await self._fleet.load(order, window(sessions, 0), folder)
        if log:
            await log.stop()
        await self._sampler.mark("after")
        return result

    async def briefly(self, record: TrialRecord, folder: TrialFolder) -> LoadResult:
        """Send the window's requests for a short time, with the trial's mean concurrency, into another folder."""
        streams = [stream for stream in self._folder.read_streams() if stream.phase is Phase.MEASURED]
        busy_ns = sum(stream.ended_ns - stream.planned_ns for stream in streams)
        in_flight = round(busy_ns / max(1, record.window.end_ns - record.window.start_ns))
        # The prompts are the trial's.
        await reset_caches(self._under_test.engine, self._under_test.addresses)
        self._nonce = new_nonce()  # and so are their indices
        order = self._order(Closed(record.load.concurrency or max(1, in_flight), LOAD_S), Phase.TAIL)
        return await self._fleet.load(order, self._encoded(self._traffic.window, 0), folder)

    async def _steady(
        self, order: LoadOrder, traffic: SteadyTraffic, *, sent: int, window: Encode, opened: Callable[[int], None]
    ) -> LoadResult:
        """Apply a steady load, which begins with sessions in progress.

        How many there are and where depends on the engine's pace. If the ramp shows that an assumed pace was off, the
        load starts again with what it measured; the requests of such a ramp count as sent before the load. So it does
        if sessions might end before the window does; then they are written as far as the longest possible load goes.
        """
        trial, load = self._plan, self._plan.load
        planned, restart, whole = 0, 0, False

        def open_window(start_ns: int) -> None:
            self._observer.stage(trial, Stage.WINDOW)
            opened(start_ns)

        while True:
            self._observer.stage(trial, Stage.PLAN)
            pace = self._paces.assumed(trial.engine, load)
            begin = functools.partial(traffic.begin, pace=pace, restart=restart, whole=whole)
            beginning = await self._world.in_thread(begin)
            await self._world.in_thread(
                functools.partial(
                    write_ramp, load, self._experiment.trial, traffic, beginning,
                    workers=self._experiment.client.workers, restart=restart,
                )
            )  # fmt: skip
            if beginning.history.sessions:
                self._observer.stage(trial, Stage.PRIME)
            sent += await self._prime(beginning.history, slots=beginning.slots, sent=sent)
            if beginning.history.sessions or restart:
                await self._sampler.mark("before")  # what the engine counts from here on is the load alone
            steady = SteadyOrders(
                load, self._experiment.trial, traffic, beginning, may_restart=restart - whole < MAX_RESTARTS, sent=sent,
                encode=self._encoded, encode_window=window, opened=open_window,
                workers=self._experiment.client.workers, restart=restart,
            )  # fmt: skip
            self._observer.stage(trial, Stage.RAMP)
            result = await self._fleet.steady(order, steady.plan(), self._folder)
            planned, restart = planned + result.planned, restart + 1
            whole = whole or steady.fell_short
            if result.ramp is not None:
                self._paces.learn(trial.engine, load, result.ramp.pace)
            if result.window is not None or (result.ramp is not None and result.ramp.has_failed):
                return msgspec.structs.replace(
                    result, planned=planned, begun=beginning.plan.sessions,
                    unwritten_s=beginning.unwritten_s(result.issue.start_ns, result.window),
                )  # fmt: skip
            # A worker may have repeated its part of the ramp more often than the others.
            repeated = self._experiment.client.workers * (1 + result.planned // steady.ramp.plan.requests)
            sent += beginning.plan.requests + steady.ramp.plan.requests * repeated

    async def _prime(
        self,
        sessions: PlanFile | Sequence[PlannedSession],
        *,
        slots: int,
        sent: int = 0,
        only: Target | None = None,
    ) -> int:
        """Fill the prefix cache, ``slots`` sessions at a time; returns the number of requests sent.

        With ``only`` they all go to that address, else they are divided as those under load.
        """
        counts = [len(planned.session.turns) for planned in sessions]
        requests = sum(counts)
        if counts:
            share = Closed(min(slots, len(counts)), self._experiment.trial.request_timeout_s * requests)
            order = self._order(share, Phase.WARMUP)
            if only is not None:
                order = msgspec.structs.replace(order, targets=(only,))
            # numbered below 0, because the window's requests are numbered from 0
            await self._fleet.load(order, self._encoded(sessions, -sent - requests), self._folder)
        return requests

    def _asks(self, load: Load) -> Callable[[int], bool] | None:
        """Predicate of the positions of the window's plan that request log-probabilities; None if none does."""
        quality = self._experiment.quality
        return asks_logprobs(self._experiment.traffic_seed(load), quality.samples) if quality.logprobs else None

    def _encoded(
        self,
        sessions: Iterable[PlannedSession],
        first: int,
        logprobs: Callable[[int], bool] | None = None,
    ) -> Iterator[WireSession]:
        dialect, model = self._under_test.engine.dialect, self._under_test.engine.model_id
        shares = self._experiment.workload.models
        return wire_sessions(
            sessions, dialect, model, first_index=first, tokenizer=self._tokenizer, logprobs=logprobs,
            models=ModelMix(shares, str(self._experiment.seed)) if shares else None,
            classes=classes_of(self._experiment, dialect),
            history=self._experiment.workload.history, nonce=self._nonce,
        )  # fmt: skip

    def _order(self, share: Share, phase: Phase) -> LoadOrder:
        under_test, config = self._under_test, self._experiment.engine(self._plan.engine)
        return LoadOrder(
            targets=targets_at(under_test.addresses),
            access=under_test.server.access,
            share=share,
            timeout_s=self._experiment.trial.request_timeout_s,
            phase=phase,
            transport=self._experiment.client.transport,
            format=format_of(config),
            balance=config.division,
            replica_header=replica_header_of(config.replica_header, config.addresses)
            if config.replica_header
            else None,
        )


def format_of(config: EngineConfig) -> Format:
    """The wire format of an engine's answers."""
    return Format(config.adapter, config.options, config.address)
