"""A simulated engine with continuous batching and chunked prefill, whose true phases are known.

It writes what a real trial leaves behind: the client's requests, and the engine's record of its steps.
"""

import math
import random
from collections import defaultdict
from dataclasses import dataclass, field

import msgspec

from bakeoff.results.attribution import Attribution, Part, attribution_of
from bakeoff.results.log.step_log import ChunkRecord, EngineEvent, HttpRecord, RequestQueued, StepRecord, WriteRecord
from bakeoff.results.records import Load, Outcome, Phase, RequestRecord, TrialRecord, Verdict, Window

MS = 1_000_000


@dataclass(frozen=True)
class Simulated:
    """Times are in milliseconds."""

    requests: int = 40
    every_ms: float = 60.0
    prompt_tokens: int = 200
    long_prompt_tokens: int = 0
    """Of every third request; 0: as of the others."""
    output_tokens: int = 20
    client_ms: float = 0.1
    network_ms: float = 0.05
    front_end_ms: float = 0.3
    slots: int = 64
    budget_tokens: int = 128
    base_ms: float = 6.0
    row_ms: float = 0.3
    context_ms: float = 0.001
    prefill_ms: float = 0.04
    """Of one prompt token."""
    gap_ms: float = 0.1
    late_ms: float = 0.0
    """From the end of a step on the device until its tokens are collected."""
    detokenise_ms: float = 0.05
    noise: float = 0.02
    """Relative standard deviation of the duration of a step."""
    stalls: tuple[int, ...] = ()
    """Steps that the machine holds up for five seconds."""
    preempts: tuple[int, ...] = ()
    """Steps before which the newest running request loses its place for ten steps."""


@dataclass
class _Running:
    index: int
    prompt: int
    output: int
    planned: int
    past: int = 0
    made: int = 0
    queued: RequestQueued | None = None
    received: int = 0
    arrivals: list[int] = field(default_factory=list)
    writes: list[WriteRecord] = field(default_factory=list)
    parked_until: int = -1


@dataclass(frozen=True)
class Outcomes:
    """The records of a simulation, and the truth: nanoseconds of each part over all requests."""

    requests: list[RequestRecord]
    events: list[EngineEvent]
    front_end: list[HttpRecord]
    truth_ns: dict[Part, float]

    def attribution(self, **changes: object) -> Attribution:
        return attribution_of(trial_record(**changes), self.requests, [self.events], self.front_end)

    def truth_ms(self, part: Part) -> float:
        """Mean over requests."""
        return self.truth_ns[part] / MS / len(self.requests)


def trial_record(**changes: object) -> TrialRecord:
    record = TrialRecord(
        id="r1-sim-1-profiled", engine="sim", workload="chat", load=Load(concurrency=4), repeat=1, order=1,
        started_ns=0, ended_ns=10**12, issue_start_ns=0, issue_end_ns=10**12, window=Window(0, 10**12),
        planned_requests=40, workload_sha256="", verdict=Verdict.VALID, profiled=True,
    )  # fmt: skip
    return msgspec.structs.replace(record, **changes)


def simulate(setup: Simulated, seed: int = 1) -> Outcomes:
    """Run the simulation to its end."""
    rng, truth = random.Random(seed), defaultdict[Part, float](float)
    waiting = [_request(setup, index) for index in range(setup.requests)]
    events: list[EngineEvent] = [request.queued for request in waiting if request.queued]
    running: list[_Running] = []
    finished: list[_Running] = []
    now, step = 0, 0
    while waiting or running:
        while waiting and len(running) < setup.slots and waiting[0].queued.submitted_ns <= now:
            running.append(waiting.pop(0))
        if not running:
            now = max(now, waiting[0].queued.submitted_ns)
            continue
        if step in setup.preempts:
            running[-1].parked_until = step + 10
        now = _step(setup, rng, step, now, running, events, truth)
        finished += [request for request in running if request.made == request.output]
        running = [request for request in running if request.made < request.output]
        now += round(setup.gap_ms * MS * rng.uniform(0.9, 1.1))
        step += 1
    records = [_record(setup, request, truth) for request in sorted(finished, key=lambda request: request.index)]
    front_end = [
        HttpRecord([f"answer-{r.index}-0"], r.received, r.queued.submitted_ns, r.writes, r.arrivals[-1])
        for r in finished
    ]  # fmt: skip
    _gaps(finished, events, truth)
    return Outcomes(records, events, front_end, dict(truth))


def _request(setup: Simulated, index: int) -> _Running:
    long = setup.long_prompt_tokens and index % 3 == 0
    prompt = setup.long_prompt_tokens if long else setup.prompt_tokens
    planned = round(index * setup.every_ms * MS)
    received = planned + round((setup.client_ms + setup.network_ms) * MS)
    submitted = received + round(setup.front_end_ms * MS)
    queued = RequestQueued(index, f"answer-{index}-0", prompt, submitted, submitted + 10_000)
    return _Running(index, prompt, setup.output_tokens, planned, queued=queued, received=received)


def _step(setup, rng, step, now, running, events, truth) -> int:
    able = [request for request in running if request.parked_until < step]
    decodes = [request for request in able if request.past >= request.prompt]
    left = setup.budget_tokens - len(decodes)
    prefills: list[tuple[_Running, int]] = []
    for request in able:
        if request.past < request.prompt and left > 0:
            tokens = min(left, request.prompt - request.past)
            prefills.append((request, tokens))
            left -= tokens
    prompt_tokens = sum(tokens for _, tokens in prefills)
    context = sum(request.past for request in decodes)
    alone = setup.base_ms + setup.row_ms * len(decodes) + setup.context_ms * context
    factor = math.exp(rng.gauss(0, setup.noise))
    added = setup.prefill_ms * prompt_tokens
    stall = 5_000.0 if step in setup.stalls else 0.0
    end = now + round(((alone + added) * factor + stall) * MS)
    collected = end + round(setup.late_ms * MS)
    chunks = []
    for request in decodes:
        truth[Part.DECODE] += alone * factor * MS + stall * MS
        truth[Part.INTERFERENCE] += added * factor * MS
        chunks.append(ChunkRecord(request.index, request.past, 1, 0, 1))
        request.past += 1
    for request, tokens in prefills:
        is_last = request.past + tokens == request.prompt
        truth[Part.PREFILL] += end - now
        chunks.append(ChunkRecord(request.index, request.past, tokens, 0, int(is_last)))
        request.past += tokens
    computed = {chunk.request for chunk in chunks}
    for request in running:
        if request.index not in computed and request.past:
            truth[Part.STALL] += end - now
    for chunk in chunks:
        if chunk.output_tokens:
            request = next(request for request in running if request.index == chunk.request)
            request.made += 1
            written = collected + round(setup.detokenise_ms * MS)
            request.writes.append(WriteRecord(1, collected + 1_000, written))
            request.arrivals.append(written + round(setup.network_ms * MS))
    events.append(
        StepRecord(
            step, now, end - 1_000, collected, chunks, [], len(running), 0, 10 * len(running),
            computed_ns=end if setup.late_ms else None,
        )
    )  # fmt: skip
    return end


def _record(setup: Simulated, request: _Running, truth: dict[Part, float]) -> RequestRecord:
    truth[Part.CLIENT] += setup.client_ms * MS
    truth[Part.NETWORK_IN] += setup.network_ms * MS
    truth[Part.NETWORK_OUT] += setup.network_ms * MS
    truth[Part.FRONT_END] += setup.front_end_ms * MS
    truth[Part.COLLECT] += setup.late_ms * MS
    truth[Part.DETOKENISE] += setup.detokenise_ms * MS
    return RequestRecord(
        index=request.index, phase=Phase.MEASURED, session=str(request.index), turn=0, planned_ns=request.planned,
        sent_ns=request.planned + round(setup.client_ms * MS), ended_ns=request.arrivals[-1], outcome=Outcome.OK,
        chunk_ns=request.arrivals, chunk_tokens=[1] * len(request.arrivals), answer_id=f"answer-{request.index}",
    )  # fmt: skip


def _gaps(finished: list[_Running], events: list[EngineEvent], truth: dict[Part, float]) -> None:
    """The gaps that each request experienced, and its wait in the queue."""
    steps = [event for event in events if isinstance(event, StepRecord)]
    for request in finished:
        own = [i for i, step in enumerate(steps) if any(chunk.request == request.index for chunk in step.chunks)]
        truth[Part.QUEUE] += steps[own[0]].planned_ns - request.queued.submitted_ns
        for i in range(own[0] + 1, own[-1] + 1):
            truth[Part.BUBBLES] += steps[i].planned_ns - steps[i - 1].ended_ns
