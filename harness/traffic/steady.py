"""Ramp, window and tail of a steady load in an engine's dialect, and the length of the window."""

import math
from collections.abc import Callable, Iterable, Iterator

from bakeoff.harness.client.fleet.fleet import SteadyPlan, WindowPlan, WirePool
from bakeoff.harness.client.wire.orders import Open, Ramped, Steady
from bakeoff.harness.client.wire.plan import WireSession
from bakeoff.harness.client.worker.steady import OVERDUE_ANSWERS
from bakeoff.harness.experiment.config import TrialConfig, is_steady
from bakeoff.harness.traffic.beginning import PLANNING_S, Beginning, ramp_s
from bakeoff.harness.traffic.plan_file import PlanFile
from bakeoff.harness.traffic.planner import Pool, SteadyTraffic
from bakeoff.harness.traffic.window_length import window_s
from bakeoff.results.records import Cache, Load, Pace, RampRecord
from bakeoff.results.units import NS_PER_S
from bakeoff.workloads import PlannedSession

_MAX_PLANNED = 100_000
"""Most requests to which the plan of a closed loop is extended: each takes about a millisecond to write."""
_SPARE = 2.0
"""A closed loop's plan has this many times the requests that the ramp's pace would send, in case the pace rises."""
_FASTEST = Pace(0.02, 0.005)
"""Pace for which the sessions of a ramp suffice, while that of the engine is unknown."""
_TO_WINDOW_S, _SHORTEST_S = 1.0, 1e-3
"""The window opens about so much after its ramp; a session lasts at least so long."""
_MAX_RAMP_TOKENS = 4_000_000
"""Most prompt tokens in a ramp of different sessions: they take two to seven seconds to write."""
_SIGMAS = 3.0
"""Sessions of many turns end at random times: a worker has so many standard deviations more than the mean."""

_MIN_LOST, _MIN_OVERDUE = 20, 0.5
"""An open loop is not waited for if at least this many requests are in flight at the end of its window, and more than
this share of them are overdue. Varying answer times do not suffice: of lognormal ones with sigma 1.2, a quarter is."""

Encode = Callable[[Iterable[PlannedSession], int], Iterator[WireSession]]
"""Encodes sessions in an engine's dialect, numbering their requests from the second argument on."""


def share_of(load: Load, limits: TrialConfig) -> Open | Steady:
    """The client's instructions for one load level."""
    if is_steady(load):
        return Steady(load.concurrency, load.max_in_flight, limits.ramp_s)
    return Open(limits.duration_s, load.max_in_flight)


def ramp_record(
    load: Load, limits: TrialConfig, traffic: SteadyTraffic, begun: int, ramped: Ramped, *, unwritten_s: float = 0.0
) -> RampRecord:
    """The ramp's turnover time and the window length that follows from it."""
    turnover_s = None
    if load.concurrency is not None and ramped.request_s is not None:
        # Users with long think times have sent one request each when the ramp ends, so think times come from the plan.
        turnover_s = traffic.law.turnover_s(ramped.request_s)
    needed_s = window_s(load, limits, turnover_s or 0.0, traffic.length_s)
    return RampRecord(ramped.complete, turnover_s, needed_s, begun, ramped.pace, ramped.has_failed, unwritten_s)


class SteadyOrders:
    """The traffic of one steady trial, as orders for the client.

    Request numbers: the window's plan from 0 up, the tail's plan after it, and everything before the window below 0:
    first what was sent before the load, then the sessions in progress, then the ramp. Each time a plan starts over, its
    numbers shift by a stride that keeps them unique.

    Args:
        load: the trial's level.
        limits: of the trial.
        traffic: its plans.
        beginning: the sessions in progress when the load begins.
        may_restart: whether to end the load after the ramp if these do not fit the engine's pace.
        sent: number of requests sent before the load.
        encode: encodes ramp and tail.
        encode_window: encodes the window.
        opened: takes the instant at which the window opens.
        workers: of the client, which divide every plan by sessions.
        restart: number of earlier starts of the load.

    Attributes:
        fell_short: whether the load ended after the ramp because its sessions in progress, which are written only as
            far as the assumed pace needs, might have ended before the window does.
    """

    def __init__(
        self,
        load: Load,
        limits: TrialConfig,
        traffic: SteadyTraffic,
        beginning: Beginning,
        *,
        may_restart: bool,
        sent: int,
        encode: Encode,
        encode_window: Encode,
        opened: Callable[[int], None],
        workers: int = 1,
        restart: int = 0,
    ) -> None:
        self._load = load
        self._limits = limits
        self._traffic = traffic
        self._beginning = beginning
        self._may_restart = may_restart
        self._sent = sent
        self._encode = encode
        self._encode_window = encode_window
        self._opened = opened
        self._workers = workers
        self._restart = restart
        self.fell_short: bool = False

    def plan(self) -> SteadyPlan:
        """The order for the client: the ramp, and the callbacks that plan the window and detect saturation."""
        begun, pool = self._beginning.plan, self.ramp
        first, requests = -self._sent - begun.requests, pool.plan.requests
        ramp = self._pool(pool, first=first - requests, stride=-requests)
        return SteadyPlan(WirePool(self._encode(begun, first)), ramp, self._window, self._is_lost, self._opened)

    @property
    def ramp(self) -> Pool:
        """What this start of the load sends before the window."""
        return self._traffic.ramp_again(self._restart)

    def _window(self, ramped: Ramped) -> WindowPlan | None:
        if ramped.has_failed or (self._may_restart and self._is_off(ramped)):
            return None
        plan, tail = self._traffic.window, self._traffic.tail
        length_s, law = self._length_s(ramped), self._traffic.law
        answer_s = law.answer_s(ramped.pace) if ramped.pace else 0.0
        needed_s = ramped.elapsed_s + PLANNING_S + length_s + OVERDUE_ANSWERS * answer_s
        self.fell_short = needed_s > self._beginning.reach_s
        if self.fell_short:
            return None
        self._extend(plan, ramped, length_s)
        stride = plan.requests + tail.plan.requests
        warm = self._traffic.cache is Cache.WARM and self._load.concurrency is not None
        return WindowPlan(
            round(length_s * NS_PER_S),
            WirePool(self._encode_window(plan, 0), stride if warm else None),
            self._pool(tail, first=plan.requests, stride=stride),
        )

    def _length_s(self, ramped: Ramped) -> float:
        """Seconds of the window."""
        return min(self._traffic.length_s or self._record(ramped).window_s, self._limits.max_window_s)

    def _record(self, ramped: Ramped) -> RampRecord:
        return ramp_record(self._load, self._limits, self._traffic, self._beginning.plan.sessions, ramped)

    def _extend(self, plan: PlanFile, ramped: Ramped, length_s: float) -> None:
        """Extend a closed loop's plan as far as the ramp's pace will need."""
        turnover_s, law = self._record(ramped).turnover_s, self._traffic.law
        if not turnover_s or self._traffic.cache is Cache.WARM:
            return
        slots, sessions = self._load.concurrency or 1, 0
        if ramped.pace:
            session_s = law.session_s(ramped.pace)
            # The ramp begins with answers in progress, which are met in proportion to their length: of lengths that
            # vary much, the first ones take several times as long as the window's. Their pace does not depend on it.
            turnover_s = min(turnover_s, session_s / law.turns)
            sessions = _sessions(self._load, self._workers, length_s / session_s)
        needed = min(_MAX_PLANNED, slots * (1 + _SPARE * length_s / turnover_s))
        plan.write(lambda plan: plan.requests >= needed and plan.sessions >= min(sessions, needed))

    def _is_off(self, ramped: Ramped) -> bool:
        law, is_closed = self._traffic.law, self._load.concurrency is not None
        if ramped.pace is None:
            return False
        return law.is_off(self._beginning.pace, ramped.pace, closed=is_closed, error=ramped.pace_error)

    def _pool(self, pool: Pool, *, first: int, stride: int) -> WirePool:
        return WirePool(self._encode(pool.plan, first), stride, round(pool.period_s * NS_PER_S))

    def _is_lost(self, in_flight: int, overdue: int) -> bool:
        is_open = self._load.concurrency is None
        return is_open and in_flight >= _MIN_LOST and overdue > _MIN_OVERDUE * in_flight


def write_ramp(
    load: Load, limits: TrialConfig, traffic: SteadyTraffic, beginning: Beginning, *, workers: int = 1, restart: int = 0
) -> None:
    """Write as many sessions of a closed loop's ramp as it will begin: one sent again would be in the cache, whole.

    Args:
        load: as for `SteadyOrders`, like all others.
        limits: of the trial.
        traffic: its plans.
        beginning: the sessions in progress when the load begins.
        workers: of the client.
        restart: number of earlier starts of the load.
    """
    law, pace = traffic.law, _FASTEST if beginning.is_guess else beginning.pace
    if load.concurrency is None or traffic.cache is Cache.WARM:
        return
    session_s = max(law.session_s(pace), _SHORTEST_S)
    needed = _sessions(load, workers, (ramp_s(load, law, pace, limits) + _TO_WINDOW_S) / session_s)
    traffic.ramp_again(restart).plan.write(
        lambda plan: plan.sessions >= needed or plan.prompt_tokens >= _MAX_RAMP_TOKENS
    )


def _sessions(load: Load, workers: int, turnovers: float) -> int:
    """Sessions that suffice for every worker of a closed loop, if a slot begins so many in a mean time."""
    slots = load.concurrency or 1
    workers = min(workers, slots)
    mean = turnovers * slots / workers
    return workers * math.ceil(1 + mean + _SIGMAS * math.sqrt(mean))
