"""A continuous-batching server in virtual time: latencies and throughput that follow from the durations of its steps.

Each step decodes one token of every running answer, and fills the rest of its token budget with chunks of prompts,
the oldest first (Sarathi-Serve, arXiv 2403.02310; the scheduling of vLLM and of the reference engine). A request is
admitted when a seat is free and the KV cache has room for its prompt and its whole answer, so nothing is preempted.
Consecutive steps without a change are simulated as one.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from bakeoff.harness.errors import BadPlan

_GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 fill the interval evenly (Kronecker)
_LONGEST_STRETCH = 64  # decode steps simulated as one: contexts grow meanwhile


class Durations(Protocol):
    """Seconds of steps, see :class:`bakeoff.harness.sizing.step_times.StepTimes`."""

    def seconds(self, decodes: int, past: float, prompts: Sequence[tuple[int, int]] = ()) -> float:
        """Duration of one step."""
        ...


class Request(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        prompt_tokens: of its prompt.
        output_tokens: of its answer, at least 1.
        arrival_s: planned time; in a closed loop only that of each slot's first request counts.
        cached_tokens: leading tokens of the prompt that are in the prefix cache.
    """

    prompt_tokens: int
    output_tokens: int
    arrival_s: float = 0.0
    cached_tokens: int = 0


class Limits(msgspec.Struct, frozen=True):
    """Limits of a server.

    Attributes:
        sequences: requests that run at once.
        step_tokens: tokens per step, decodes included.
        kv_tokens: tokens that the KV cache holds; None for any number.
        plans_ahead: whether a step is planned when the step before it begins, as in engines that overlap a GPU's step
            with their own work. A request then waits for one more step.
    """

    sequences: int = 256
    step_tokens: int = 8192
    kv_tokens: float | None = None
    plans_ahead: bool = False


class Delays(msgspec.Struct, frozen=True):
    """Seconds that a server spends outside its steps.

    Attributes:
        request_s: mean time of a request before it reaches the scheduler: client, HTTP, tokenizer. Drawn evenly from
            half to one and a half of it, because constant times would synchronise with the steps.
        token_s: of the front end for each token: detokenise, write. It sends the tokens of a step one after another,
            and only then reads the requests of a closed loop, which follow on these tokens.
        idle_s: extra time of a step on an idle engine: preparation and launches that another step would hide.
    """

    request_s: float = 0.0
    token_s: float = 0.0
    idle_s: float = 0.0


NO_DELAYS = Delays()


class Served(msgspec.Struct, frozen=True):
    """Result of a simulated load; requests and tokens of the steady window only.

    Attributes:
        ttft_s: of each request.
        e2e_s: of each request.
        tpot_s: of each request with several tokens.
        itl_s: values of ITL.
        itl_counts: how often each value occurs.
        output_tokens_per_s: over the window.
        requests_per_s: over the window.
        running: mean number of requests in steps, weighted by time.
        busy_share: of the window, spent in steps.
        peak_kv_tokens: most tokens in the KV cache, over the whole load.
        peak_step_tokens: most tokens of one step, over the whole load.
        mean_kv_tokens: mean tokens in the KV cache, weighted by time.
        backlog: requests that waited for admission when the last one arrived.
    """

    ttft_s: np.ndarray
    e2e_s: np.ndarray
    tpot_s: np.ndarray
    itl_s: np.ndarray
    itl_counts: np.ndarray
    output_tokens_per_s: float
    requests_per_s: float
    running: float
    busy_share: float
    peak_kv_tokens: float
    peak_step_tokens: int
    mean_kv_tokens: float
    backlog: int

    def ttft(self, share: float) -> float:
        """Quantile of TTFT in seconds."""
        return float(np.quantile(self.ttft_s, share))

    def e2e(self, share: float) -> float:
        """Quantile of E2E in seconds."""
        return float(np.quantile(self.e2e_s, share))

    def tpot(self, share: float) -> float | None:
        """Quantile of TPOT in seconds; None if every answer has one token."""
        return float(np.quantile(self.tpot_s, share)) if len(self.tpot_s) else None

    def itl(self, share: float) -> float | None:
        """Quantile of ITL in seconds; None if every answer has one token."""
        if not len(self.itl_s):
            return None
        order = np.argsort(self.itl_s)
        reached = np.cumsum(self.itl_counts[order])
        return float(self.itl_s[order][np.searchsorted(reached, share * reached[-1])])


class _Running:
    """A request in the server."""

    __slots__ = ("computed", "first_s", "generated", "planned_s", "request")

    def __init__(self, request: Request, planned_s: float) -> None:
        self.request, self.planned_s = request, planned_s
        self.computed = min(request.cached_tokens, request.prompt_tokens - 1)
        self.first_s = 0.0
        self.generated = 0


def simulate(
    requests: Sequence[Request],
    durations: Durations,
    limits: Limits,
    *,
    concurrency: int | None = None,
    delays: Delays = NO_DELAYS,
    max_in_flight: int | None = None,
    warm_up_s: float | None = None,
) -> Served:
    """Simulate a load.

    Args:
        requests: in order of arrival.
        durations: of steps.
        limits: of the server.
        concurrency: closed loop: number of slots, each of which sends its next request when the last one has ended.
            None for an open loop.
        max_in_flight: open loop: requests above this number wait inside the client, from their planned time on.
        delays: times that the server spends outside its steps.
        warm_up_s: open loop: time before the steady window; None for a tenth of the planned times.

    Raises:
        BadPlan: a request does not fit into the KV cache.
    """
    largest = max(request.prompt_tokens + request.output_tokens for request in requests)
    if limits.kv_tokens is not None and largest > limits.kv_tokens:
        raise BadPlan(f"a request of {largest:,} tokens does not fit into a KV cache of {limits.kv_tokens:,.0f} tokens")
    simulation = _Simulation(
        requests, durations, limits, concurrency, max_in_flight=max_in_flight, delays=delays, warm_up_s=warm_up_s
    )
    return simulation.run()


class _Simulation:
    """State of one simulation; times in seconds."""

    def __init__(
        self,
        requests: Sequence[Request],
        durations: Durations,
        limits: Limits,
        concurrency: int | None,
        *,
        max_in_flight: int | None,
        delays: Delays,
        warm_up_s: float | None,
    ) -> None:
        self._durations, self._limits, self._delays = durations, limits, delays
        self._concurrency, self._warm_up_s = concurrency, warm_up_s
        self._slots = max_in_flight if concurrency is None else concurrency
        self._now = self._planned = 0.0  # planned: when the next step is planned
        self._is_idle = True
        self._unsent = deque(requests)
        self._arriving: list[tuple[float, int, _Running]] = []  # heap: in the engine's queue from then on
        self._waiting: deque[_Running] = deque()
        self._prompts: deque[_Running] = deque()
        self._decoding: list[tuple[int, int, _Running]] = []  # heap by the decode step that ends it
        self._order = itertools.count()
        self._decode_steps = 0
        self._context = 0.0  # tokens of all decoding sequences
        self._reserved = 0.0
        self._gaps: list[tuple[float, float, int]] = []  # end, seconds, how many
        self._ended: list[tuple[_Running, float]] = []
        self._loads: list[tuple[float, float, int, float]] = []  # end, seconds, running, KV tokens
        self._peak_kv = self._peak_step = self._backlog = 0
        self._last_sent = 0.0

    def run(self) -> Served:
        """Serve all requests."""
        self._send_first()
        while self._arriving or self._waiting or self._prompts or self._decoding:
            self._receive()
            self._admit()
            if self._prompts:
                self._mixed_step()
            elif self._decoding:
                self._decode_stretch()
            else:
                self._now = self._planned = self._arriving[0][0]
                self._is_idle = True
        return self._served()

    def _send_first(self) -> None:
        sent = len(self._unsent)
        for _ in range(sent if self._slots is None else min(self._slots, sent)):
            self._send(self._unsent[0].arrival_s, 0.0)

    def _send(self, planned_s: float, front_end_s: float) -> None:
        """Send the next request; the front end reads it at ``front_end_s`` or later."""
        running = _Running(self._unsent.popleft(), planned_s)
        self._last_sent = max(self._last_sent, planned_s)
        number = next(self._order)
        delay_s = self._delays.request_s * (0.5 + number * _GOLDEN % 1)
        heapq.heappush(self._arriving, (max(planned_s, front_end_s) + delay_s, number, running))

    def _receive(self) -> None:
        while self._arriving and self._arriving[0][0] <= self._planned:
            self._waiting.append(heapq.heappop(self._arriving)[2])
            if not self._arriving and not self._unsent:
                self._backlog = len(self._waiting)

    def _may_admit(self, running: _Running) -> bool:
        room = self._limits.kv_tokens
        size = running.request.prompt_tokens + running.request.output_tokens
        seats = self._limits.sequences - len(self._prompts) - len(self._decoding)
        return seats > 0 and (room is None or self._reserved + size <= room)

    def _admit(self) -> None:
        while self._waiting and self._may_admit(self._waiting[0]):
            running = self._waiting.popleft()
            self._reserved += running.request.prompt_tokens + running.request.output_tokens
            self._prompts.append(running)

    def _mixed_step(self) -> None:
        """One step of all decodes and of as many prompt tokens as fit."""
        self._now += self._delays.idle_s * self._is_idle
        self._is_idle = False
        decodes = len(self._decoding)
        budget = max(1, self._limits.step_tokens - decodes)
        chunks: list[tuple[int, int]] = []
        scheduled: list[_Running] = []
        for running in self._prompts:
            length = min(budget, running.request.prompt_tokens - running.computed)
            if length == 0:
                break
            chunks.append((length, running.computed))
            running.computed += length
            scheduled.append(running)
            budget -= length
        past = self._context / decodes if decodes else 0.0
        self._advance(self._durations.seconds(decodes, past, chunks), 1, decodes, sum(length for length, _ in chunks))
        for running in scheduled:
            if running.computed == running.request.prompt_tokens:
                self._prompts.remove(running)
                self._begin_decoding(running)
        self._end_finished()

    def _decode_stretch(self) -> None:
        """Decode steps until a request ends or one may join."""
        decodes = len(self._decoding)
        steps = min(self._decoding[0][0] - self._decode_steps, _LONGEST_STRETCH)
        past = self._context / decodes
        seconds = self._durations.seconds(decodes, past + steps / 2)
        if self._arriving and not self._waiting:
            until = math.ceil((self._arriving[0][0] - self._now) / seconds) + self._limits.plans_ahead
            steps = min(steps, max(1, until))
        self._advance(seconds, steps, decodes, 0)
        self._end_finished()

    def _advance(self, seconds: float, steps: int, decodes: int, prompt_tokens: int) -> None:
        self._now += seconds * steps
        self._planned = self._now - seconds if self._limits.plans_ahead else self._now
        self._decode_steps += steps
        self._context += decodes * steps
        if decodes:
            self._gaps.append((self._now, seconds, decodes * steps))
        cached = self._context + sum(running.computed for running in self._prompts)
        self._loads.append((self._now, seconds * steps, decodes + len(self._prompts), cached))
        self._peak_kv = max(self._peak_kv, cached)
        self._peak_step = max(self._peak_step, decodes + prompt_tokens)

    def _begin_decoding(self, running: _Running) -> None:
        running.first_s = self._now + self._delays.token_s * (len(self._decoding) + 1)  # the newest are sent last
        last = self._decode_steps + running.request.output_tokens - 1
        self._context += running.request.prompt_tokens
        heapq.heappush(self._decoding, (last, next(self._order), running))

    def _end_finished(self) -> None:
        """Emit the step's tokens.

        A finished answer's last token leaves, on average, halfway through the front end's work.
        """
        front_end_s = self._now + self._delays.token_s * len(self._decoding)
        last_s = (self._now + front_end_s) / 2
        while self._decoding and self._decoding[0][0] <= self._decode_steps:
            running = heapq.heappop(self._decoding)[2]
            size = running.request.prompt_tokens + running.request.output_tokens
            self._context -= size - 1
            self._reserved -= size
            self._ended.append((running, max(last_s, running.first_s)))
            if self._slots is not None and self._unsent:
                self._send(self._unsent[0].arrival_s if self._concurrency is None else last_s, front_end_s)

    def _served(self) -> Served:
        start, end = self._window()
        inside = [(running, t) for running, t in self._ended if start <= running.planned_s <= end]
        gaps = [(seconds, count) for t, seconds, count in self._gaps if start < t <= end]
        loads = [load for load in self._loads if start < load[0] <= end]
        length, busy = max(end - start, 1e-12), sum(load[1] for load in loads) or 1e-12
        firsts = sum(start < running.first_s <= end for running, _ in self._ended)
        later = [(running, t) for running, t in inside if running.request.output_tokens > 1]
        return Served(
            ttft_s=np.array([running.first_s - running.planned_s for running, _ in inside]),
            e2e_s=np.array([t - running.planned_s for running, t in inside]),
            tpot_s=np.array([(t - running.first_s) / (running.request.output_tokens - 1) for running, t in later]),
            itl_s=np.array([seconds for seconds, _ in gaps]),
            itl_counts=np.array([count for _, count in gaps]),
            output_tokens_per_s=(firsts + sum(count for _, count in gaps)) / length,
            requests_per_s=sum(start < t <= end for _, t in self._ended) / length,
            running=sum(load[1] * load[2] for load in loads) / busy,
            busy_share=min(1.0, busy / length),
            peak_kv_tokens=self._peak_kv,
            peak_step_tokens=self._peak_step,
            mean_kv_tokens=sum(load[1] * load[3] for load in loads) / length,
            backlog=self._backlog,
        )

    def _window(self) -> tuple[float, float]:
        """From the end of the first requests, one per slot, to the last planned time; the whole load if that is empty.

        In an open loop it begins after the warm-up.
        """
        last = self._last_sent
        if self._concurrency is None:
            start = last / 10 if self._warm_up_s is None else self._warm_up_s
        else:
            ends = sorted(t for _, t in self._ended)
            start = ends[min(len(ends), self._concurrency) - 1]
        return (start, last) if last > start else (-1.0, self._now)


def poisson_s(rate_per_s: float, count: int, seed: int) -> list[float]:
    """Times of a Poisson process. The same seed at another rate stretches the same times."""
    gaps = np.random.default_rng(seed).exponential(1.0, count)
    return (np.cumsum(gaps) / rate_per_s).tolist()
