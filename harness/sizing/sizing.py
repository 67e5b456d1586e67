"""Which GPUs, how many of them, and which parallelism keep an SLO at a request rate.

Each candidate is one kind of GPU and a degree of tensor parallelism; replicas share the requests at random, so each
gets a Poisson process of its share. A replica's capacity is the highest rate at which the simulated server meets every
objective, found by bisection on one seed; replicas are the rate over that capacity, rounded up.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import msgspec

from bakeoff.harness.errors import BadPlan
from bakeoff.harness.sizing.gpus import Gpu
from bakeoff.harness.sizing.memory import Memory, fitting_sequences, memory_of, sequence_bytes
from bakeoff.harness.sizing.model import Model
from bakeoff.harness.sizing.precision import CachePrecision, Precision
from bakeoff.harness.sizing.server import Limits, Request, Served, poisson_s, simulate
from bakeoff.harness.sizing.step_times import Efficiency, StepTimes, StepWork
from bakeoff.results.metrics.objectives import Objective

RANKS = (1, 2, 4, 8)
CPU_STEP_TOKENS, GPU_STEP_TOKENS = 512, 8192
"""Default token budgets of a step: the reference engine's; on a data-centre GPU vLLM's, too."""
_BISECTIONS = 8  # of a range of factor 64: within 1.6 %
_RANGE = 64.0
_APART = 1e-3  # requests in flight: so few that they hardly ever meet
_GIB = 2**30
_REQUESTS, _TAIL_REQUESTS = 1000, 1500
"""Fewest requests for a percentile, and for a p99."""
_WARM_UPS, _WINDOWS = 3, 5
"""Residence times of a full server: until one that starts empty is in its steady state, and the shortest window."""
_QUANTILE: Mapping[str, Callable[[Served, float], float | None]] = {
    "ttft": Served.ttft,
    "itl": Served.itl,
    "tpot": Served.tpot,
    "e2e": Served.e2e,
}


class Traffic(msgspec.Struct, frozen=True):
    """Requests of equal lengths.

    Attributes:
        input_tokens: of each prompt.
        output_tokens: of each answer.
        cached_tokens: of each prompt, in the prefix cache.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and answer."""
        return self.input_tokens + self.output_tokens

    @property
    def request(self) -> Request:
        """One request."""
        return Request(self.input_tokens, self.output_tokens, cached_tokens=self.cached_tokens)


class Why(StrEnum):
    """Why a candidate fails."""

    DOES_NOT_FIT = "does not fit"
    CANNOT_SPLIT = "cannot be split"
    TOO_SLOW_ALONE = "too slow even for one request at a time"


class Candidate(msgspec.Struct, frozen=True):
    """One kind of GPU in one parallelism.

    Attributes:
        gpu: name.
        ranks: GPUs of tensor parallelism.
        failure: why it fails; None if it keeps the SLO.
        detail: the failure as text.
        capacity_per_s: highest rate of one replica.
        replicas: needed for the rate.
        values: predicted value of each objective's metric at the rate.
        running: mean number of requests in one replica.
        price_per_hour: of all GPUs; None without a price.
        tdp_w: of all GPUs; None if unknown.
    """

    gpu: str
    ranks: int
    failure: Why | None = None
    detail: str = ""
    capacity_per_s: float = 0.0
    replicas: int = 0
    values: dict[str, float | None] = {}
    running: float = 0.0
    price_per_hour: float | None = None
    tdp_w: float | None = None

    @property
    def count(self) -> int:
        """GPUs in all."""
        return self.ranks * self.replicas


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all candidates share; see :class:`bakeoff.harness.sizing.plan.Question`."""

    model: Model
    precision: Precision
    cache: CachePrecision
    traffic: Traffic
    sequences: int
    step_tokens: int | None
    usable_share: float
    runtime_bytes: float
    efficiency: Efficiency
    seed: int

    def step_tokens_of(self, gpu: Gpu) -> int:
        """Token budget of a step."""
        return self.step_tokens or (CPU_STEP_TOKENS if gpu.name == "cpu" else GPU_STEP_TOKENS)

    def memory(self, gpu: Gpu, ranks: int) -> Memory:
        """Memory on one of the GPUs."""
        return memory_of(
            self.model,
            self.model.costs(self.precision, self.cache),
            gpu,
            ranks=ranks,
            step_tokens=self.step_tokens_of(gpu),
            sequences=self.sequences,
            usable_share=self.usable_share,
            runtime_bytes=self.runtime_bytes,
        )

    def why_not_split(self, gpu: Gpu, ranks: int) -> str | None:
        """Why `ranks` of these GPUs cannot split the model; None if they can."""
        if ranks > 1 and gpu.link_bytes_per_s is None:
            return f"{gpu.title} has no link to other GPUs"
        return self.model.why_not_split(ranks)

    def fitting(self, gpu: Gpu, ranks: int) -> int:
        """Number of the requests that the KV cache holds at once."""
        costs = self.model.costs(self.precision, self.cache)
        return fitting_sequences(self.memory(gpu, ranks), costs, ranks, self.traffic.tokens)

    def need_text(self, gpu: Gpu, ranks: int) -> str:
        """The memory that one request needs, and the memory there is."""
        memory, costs = self.memory(gpu, ranks), self.model.costs(self.precision, self.cache)
        needed = memory.usable - memory.for_kv + sequence_bytes(costs, ranks, self.traffic.tokens)
        return f"one request needs {needed / _GIB:.1f} GiB on each GPU, {memory.usable / _GIB:.1f} GiB are usable"

    def server(self, gpu: Gpu, ranks: int) -> "Server":
        """A replica."""
        work = _step_work(self.model, self.precision, self.cache, ranks)
        times = StepTimes(work, gpu, self.precision, self.efficiency)
        limits = Limits(
            self.sequences,
            self.step_tokens_of(gpu),
            self.fitting(gpu, ranks) * self.traffic.tokens,
            plans_ahead=gpu.name != "cpu",
        )
        return Server(times, limits, [self.traffic.request], self.seed)


@functools.lru_cache(maxsize=len(RANKS))
def _step_work(model: Model, precision: Precision, cache: CachePrecision, ranks: int) -> StepWork:
    """Shared by all GPUs, whose simulations repeat the same steps."""
    return StepWork(model.costs(precision, cache), ranks)


class Server:
    """One replica under loads of a mix of requests.

    Args:
        times: of its steps.
        limits: of the server.
        mix: lengths of requests, which repeat in this order.
        seed: of arrivals.
    """

    def __init__(self, times: StepTimes, limits: Limits, mix: Sequence[Request], seed: int) -> None:
        self._times, self._mix, self._seed = times, mix, seed
        self.limits = limits

    def closed(self, concurrency: int) -> Served:
        """Under a closed loop whose first answers are shortened differently, so that they do not end together."""
        count = max(24, 6 * concurrency)
        requests = [self._mix[i % len(self._mix)] for i in range(count)]
        requests[:concurrency] = [
            msgspec.structs.replace(
                request, output_tokens=max(1, math.ceil(request.output_tokens * (slot + 1) / concurrency))
            )
            for slot, request in enumerate(requests[:concurrency])
        ]
        return self._serve(requests, concurrency)

    def open(self, rate_per_s: float, fewest: int = _REQUESTS) -> Served:
        """Under Poisson arrivals, in the steady state: the start, while the server fills, is left out.

        Args:
            rate_per_s: of the arrivals.
            fewest: requests in the window.
        """
        warm_up_s = _WARM_UPS * self.residence_s
        window = max(fewest, math.ceil(_WINDOWS * self.residence_s * rate_per_s))
        count = math.ceil(warm_up_s * rate_per_s) + window
        times = poisson_s(rate_per_s, count, self._seed)
        mixed = [self._mix[i % len(self._mix)] for i in range(count)]
        requests = [msgspec.structs.replace(request, arrival_s=t) for request, t in zip(mixed, times, strict=True)]
        return self._serve(requests, None, warm_up_s)

    @functools.cached_property
    def most_per_s(self) -> float:
        """Throughput of a full server; no higher rate of arrivals can be sustained."""
        return self.closed(self._seats).requests_per_s

    @property
    def residence_s(self) -> float:
        """Mean time of a request in a full server (Little's law)."""
        return self._seats / self.most_per_s

    @property
    def _seats(self) -> int:
        """Requests that run at once."""
        if self.limits.kv_tokens is None:
            return self.limits.sequences
        largest = max(request.prompt_tokens + request.output_tokens for request in self._mix)
        return min(self.limits.sequences, int(self.limits.kv_tokens // largest))

    def decode_s(self, batch: int, context: int) -> float:
        """Seconds of one decode step."""
        return self._times.seconds(batch, context)

    def _serve(self, requests: Sequence[Request], concurrency: int | None, warm_up_s: float | None = None) -> Served:
        delays = self._times.efficiency.delays
        return simulate(requests, self._times, self.limits, concurrency=concurrency, delays=delays, warm_up_s=warm_up_s)


def check_predictable(objectives: Sequence[Objective]) -> None:
    """Check that a plan predicts the metric of each objective.

    Raises:
        BadPlan: it does not predict one.
    """
    for objective in objectives:
        family, share = _quantile(objective)
        if family not in _QUANTILE or share is None:
            names = ", ".join(f"{name}_p90" for name in _QUANTILE)
            raise BadPlan(f"a plan cannot predict {objective.metric}; bound percentiles such as {names}")


def objective_value(objective: Objective, served: Served) -> float | None:
    """The simulated value of an objective's metric; None if no request has it."""
    family, share = _quantile(objective)
    assert share is not None
    return _QUANTILE[family](served, share)


def _quantile(objective: Objective) -> tuple[str, float | None]:
    """``ttft`` and 0.9 of ``ttft_p90_s``."""
    family, _, percentile = objective.metric.removesuffix("_s").rpartition("_p")
    return family, float(f"0.{percentile}") if percentile.isdigit() else None


def holds(objectives: Sequence[Objective], served: Served) -> bool:
    """Whether a simulated load meets every objective."""
    values = [(objective, objective_value(objective, served)) for objective in objectives]
    return all(value is None or objective.holds(value) for objective, value in values)


def capacity_per_s(server: Server, objectives: Sequence[Objective]) -> float:
    """Highest Poisson rate at which a replica meets the objectives; 0 if it meets them at none.

    The search goes down from the throughput of a full server until requests hardly ever meet.
    """
    fewest, high = _fewest_requests(objectives), server.most_per_s
    low = high / _RANGE
    while not holds(objectives, server.open(low, fewest)):
        if low * server.residence_s < _APART:
            return 0.0
        low, high = low / _RANGE, low
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(objectives, server.open(middle, fewest)) else (low, middle)
    return low


def _fewest_requests(objectives: Sequence[Objective]) -> int:
    return _TAIL_REQUESTS if any("_p99" in objective.metric for objective in objectives) else _REQUESTS


def candidate(
    setting: Setting,
    gpu: Gpu,
    ranks: int,
    objectives: Sequence[Objective],
    *,
    rate_per_s: float,
    price: float | None,
) -> Candidate:
    """Judge one kind of GPU in one parallelism.

    Args:
        setting: model, precision and traffic.
        gpu: the device.
        ranks: GPUs of tensor parallelism.
        objectives: what every replica must meet.
        rate_per_s: requests per second in all.
        price: of one GPU hour.
    """
    if detail := setting.why_not_split(gpu, ranks):
        return Candidate(gpu.name, ranks, Why.CANNOT_SPLIT, detail)
    if setting.fitting(gpu, ranks) == 0:
        return Candidate(gpu.name, ranks, Why.DOES_NOT_FIT, setting.need_text(gpu, ranks))
    server = setting.server(gpu, ranks)
    if detail := _too_slow(objectives, server.closed(1)):
        return Candidate(gpu.name, ranks, Why.TOO_SLOW_ALONE, detail)
    capacity = capacity_per_s(server, objectives)
    if capacity == 0:
        return Candidate(gpu.name, ranks, Why.TOO_SLOW_ALONE, "arrivals that hardly ever meet already break the SLO")
    replicas = math.ceil(rate_per_s / capacity)
    served = server.open(rate_per_s / replicas, _fewest_requests(objectives))
    return Candidate(
        gpu.name,
        ranks,
        capacity_per_s=capacity,
        replicas=replicas,
        values={objective.metric: objective_value(objective, served) for objective in objectives},
        running=served.running * served.busy_share,
        price_per_hour=None if price is None else price * ranks * replicas,
        tdp_w=None if gpu.tdp_w is None else gpu.tdp_w * ranks * replicas,
    )


def cheapest_first(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates that keep the SLO by price, without one by power and last; then those that fail."""

    def key(candidate: Candidate) -> tuple[bool, float, float, int]:
        price, power = candidate.price_per_hour, candidate.tdp_w
        return (
            candidate.failure is not None,
            math.inf if price is None else price,
            math.inf if power is None else power,
            candidate.count,
        )

    return sorted(candidates, key=key)


def _too_slow(objectives: Sequence[Objective], alone: Served) -> str:
    """The objective that one request at a time breaks; empty if there is none."""
    for objective in objectives:
        value = objective_value(objective, alone)
        if value is not None and not objective.holds(value):
            return f"{objective.metric.removesuffix('_s')} {value * 1e3:.1f} ms, {objective.text} wanted"
    return ""
