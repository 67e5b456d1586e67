"""Ramp, window and tail of a steady load in an engine's dialect, and the length of the window."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from harness.client.fleet import SteadyPlan, WindowPlan, WirePool
from harness.client.orders import Open, Ramped, Steady
from harness.client.wire import WireSession
from harness.experiment.config import TrialConfig
from harness.traffic.plan_file import PlanFile
from harness.traffic.planner import Pool, Traffic, is_steady
from results.metrics.steadiness import growth
from results.records import Cache, Load, RampRecord
from results.units import NS_PER_S
from workloads import PlannedSession

TURNOVERS = 3
"""Minimum length of a closed loop's window, in turnovers: mean times from one request of a slot to its next."""
_SPARE = 2.0
"""A closed loop's plan has this many times the requests that the ramp's pace would send, in case the pace rises."""

Encode = Callable[[Iterable[PlannedSession], int], Iterator[WireSession]]
"""Encodes sessions in an engine's dialect, numbering their requests from the second argument on."""


def share_of(load: Load, limits: TrialConfig) -> Open | Steady:
    """The client's instructions for one load level."""
    if is_steady(load):
        return Steady(load.concurrency, load.max_in_flight, limits.ramp_s)
    return Open(limits.duration_s, load.max_in_flight)


def ramp_record(load: Load, limits: TrialConfig, traffic: Traffic, ramped: Ramped) -> RampRecord:
    """The ramp's turnover time and the window length that follows from it."""
    # Users with long think times have sent one request each when the ramp ends, so think times come from the plan.
    think_s = traffic.ramp.think_s if traffic.ramp else 0.0
    turnover_s = None if ramped.request_s is None else ramped.request_s + think_s
    for_requests_s = traffic.length_s or limits.min_requests * (turnover_s or 0.0) / (load.concurrency or 1)
    needed_s = max(limits.duration_s, for_requests_s, TURNOVERS * (turnover_s or 0.0))
    return RampRecord(ramped.complete, turnover_s, needed_s)


class SteadyTraffic:
    """The traffic of one steady trial, as orders for the client.

    Request numbers: the window's plan from 0 up, the tail's plan after it, and everything before the window below 0.
    Each time a plan starts over, its numbers shift by a stride that keeps them unique.

    Args:
        load: the trial's level.
        limits: of the trial.
        traffic: its plans.
        primed: number of requests sent before the load.
        encode: encodes ramp and tail.
        encode_window: encodes the window.
    """

    def __init__(
        self, load: Load, limits: TrialConfig, traffic: Traffic, *, primed: int, encode: Encode, encode_window: Encode
    ) -> None:
        self._load = load
        self._limits = limits
        self._traffic = traffic
        self._primed = primed
        self._encode = encode
        self._encode_window = encode_window

    def plan(self) -> SteadyPlan:
        """The order for the client: the ramp, and the callbacks that plan the window and detect saturation."""
        assert self._traffic.ramp is not None
        requests = self._traffic.ramp.plan.requests
        ramp = self._pool(self._traffic.ramp, first=-requests - self._primed, stride=-requests)
        return SteadyPlan(ramp, self._window, self._is_saturated)

    def _window(self, ramped: Ramped) -> WindowPlan:
        assert self._traffic.tail is not None
        plan, tail = self._traffic.window, self._traffic.tail
        length_s = self._length_s(ramped, plan)
        stride = plan.requests + tail.plan.requests
        warm = self._traffic.cache is Cache.WARM and self._load.concurrency is not None
        return WindowPlan(
            round(length_s * NS_PER_S),
            WirePool(self._encode_window(plan, 0), stride if warm else None),
            self._pool(tail, first=plan.requests, stride=stride),
        )

    def _length_s(self, ramped: Ramped, plan: PlanFile) -> float:
        """Seconds of the window. Extends a closed loop's plan as far as the ramp's pace will need."""
        if self._traffic.length_s is not None:
            return min(self._traffic.length_s, self._limits.max_window_s)
        record = ramp_record(self._load, self._limits, self._traffic, ramped)
        length_s = min(record.window_s, self._limits.max_window_s)
        if record.turnover_s and self._traffic.cache is not Cache.WARM:
            slots = self._load.concurrency or 1
            needed = slots * (1 + _SPARE * length_s / record.turnover_s)
            plan.write(lambda plan: plan.requests >= needed)
        return length_s

    def _pool(self, pool: Pool, *, first: int, stride: int) -> WirePool:
        return WirePool(self._encode(pool.plan, first), stride, round(pool.period_s * NS_PER_S))

    def _is_saturated(self, in_flight: Sequence[int]) -> bool:
        return self._load.concurrency is None and growth(in_flight).is_saturation
