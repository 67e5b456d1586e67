"""The step loop, synchronous and single-threaded: schedule, run, sample, emit."""

import dataclasses
import time
from collections.abc import Callable, Sequence

from reference_engine.limits import Limits
from reference_engine.request import Request, SampledToken, TokenOutput
from reference_engine.runner import Runner
from reference_engine.scheduling.scheduler import Scheduler
from reference_engine.scheduling.search import Search
from reference_engine.scheduling.step import Chunk
from reference_engine.timing import StepTimes

Clock = Callable[[], float]  # seconds from an arbitrary origin, never going back


@dataclasses.dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did, and how things stand after it.

    Attributes:
        outputs: one per new token; those of a beam search when it is over, all at once.
        duration_s: seconds the step took.
        computed_tokens: tokens that went through the model; 0 when there was nothing to do.
        prompt_tokens: prompt lengths of the requests that got their first token.
        queue_times_s: seconds from arrival to first computation, of the requests that began in this step.
        times: of the tokens that were made.
        preemptions: requests that lost their blocks in this step.
        swaps: those of them whose blocks went to host memory.
        looked_up_tokens: prompt lengths of the requests that were looked up in the prefix cache for the first time.
        cached_tokens: how many of those were found there and need not be computed.
        evicted_blocks: blocks that could have been found and were taken for something else.
        running: requests with blocks.
        waiting: requests without blocks.
        used_blocks: KV blocks in use.
        held_tokens: tokens for which there is room in them.
        filled_tokens: those of them that are there.
    """

    outputs: list[TokenOutput]
    duration_s: float
    computed_tokens: int
    prompt_tokens: int
    queue_times_s: list[float]
    times: StepTimes
    preemptions: int
    swaps: int
    looked_up_tokens: int
    cached_tokens: int
    evicted_blocks: int
    running: int
    waiting: int
    used_blocks: int
    held_tokens: int
    filled_tokens: int


class Engine:
    """Requests go in by `add`, tokens come out of `step`. Not thread-safe: `EngineThread` owns one.

    Args:
        scheduler: decides what each step computes.
        runner: computes it.
        limits: what a request may ask for.
        clock: for durations.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, limits: Limits, clock: Clock = time.perf_counter) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self.limits = limits
        self._clock = clock

    @property
    def has_work(self) -> bool:
        """Whether `step` would compute something."""
        return bool(self._scheduler.num_running or self._scheduler.num_waiting)

    @property
    def preemptions(self) -> int:
        """Times a request lost its blocks, since the start."""
        return self._scheduler.num_preemptions

    def add(self, request: Request) -> None:
        """Queues a request, and its siblings with it.

        Raises:
            RequestError: it could never be computed here, or too many wait.
        """
        for one in (request, *request.siblings):
            self.limits.check(one.token_ids, one.sampling.max_tokens, request.width)
            self.limits.check_search(one.sampling)
            self.stamp(one)
        if request.sampling.beams is not None:
            search = Search(request, request.sampling.beams)
            for one in search.members:
                one.search = search
        self._scheduler.add(request)

    def check_queue(self, count: int) -> None:
        """Raises QueueFullError where so many more requests may not wait; callable from any thread, as a forecast."""
        self._scheduler.check_queue(count)

    def stamp(self, request: Request) -> None:
        """Sets the arrival time unless it is set; callable from any thread, so that waiting for `add` counts too."""
        if request.arrival_s is None:
            request.arrival_s = self._clock()

    def cancel(self, request_id: str) -> None:
        """Forgets a request, its siblings that are not forked off yet with it, and frees its blocks.

        A beam search goes as a whole, when one of its beams does. A request that has ended already is no mistake.
        """
        self._scheduler.remove(request_id)

    def reset_prefix_cache(self) -> None:
        """Makes sure that no later request finds what was computed so far; requests under way go on."""
        self._scheduler.cache.forget_all()

    def step(self) -> StepReport:
        """Computes one step. Requests that end in it are forgotten and their blocks are free."""
        scheduler, cache = self._scheduler, self._scheduler.cache
        began_s = self._clock()
        before = (scheduler.num_preemptions, scheduler.num_swaps, cache.num_evicted)
        step, moves = scheduler.schedule()
        fresh = [chunk.request for chunk in step.chunks if chunk.request.first_scheduled_s is None]
        for request in fresh:
            for one in (request, *request.siblings):
                one.first_scheduled_s = began_s
        sampled = self._runner.run(step, moves) if step.chunks or moves else []
        made_s = self._clock()
        outputs: list[TokenOutput] = []
        prompt_tokens, times = 0, StepTimes()
        for chunk, tokens in zip(step.chunks, sampled, strict=True):
            scheduler.complete(chunk)
            if chunk.request.search is not None:
                told = self._search_on(chunk.request, chunk.request.search, tokens, times, made_s)
                prompt_tokens += sum(one.finish_reason is not None for one in told) * chunk.request.prompt_len
                outputs.extend(told)
                continue
            for request, token in zip(self._takers(chunk) if tokens else (), tokens, strict=True):
                prompt_tokens += 0 if request.num_output else request.prompt_len
                outputs.append(self._take(request, token, times, made_s))
        held_tokens, filled_tokens = scheduler.occupancy()
        return StepReport(
            outputs=outputs,
            duration_s=self._clock() - began_s,
            computed_tokens=sum(chunk.length for chunk in step.chunks),
            prompt_tokens=prompt_tokens,
            queue_times_s=[began_s - request.arrival_s for request in fresh if request.arrival_s is not None],
            times=times,
            preemptions=scheduler.num_preemptions - before[0],
            swaps=scheduler.num_swaps - before[1],
            looked_up_tokens=sum(request.prompt_len for request in fresh if request.num_cached_tokens is not None),
            cached_tokens=sum(request.num_cached_tokens or 0 for request in fresh),
            evicted_blocks=cache.num_evicted - before[2],
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            used_blocks=cache.num_used,
            held_tokens=held_tokens,
            filled_tokens=filled_tokens,
        )

    def check_integrity(self) -> None:
        """Raises BlockAccountingError if a block leaked or the prefix cache finds what it should not."""
        self._scheduler.check_integrity()

    def _takers(self, chunk: Chunk) -> Sequence[Request]:
        """Who gets a token from the chunk's last row; siblings run on from here by themselves."""
        leader = chunk.request
        siblings, leader.siblings = leader.siblings, []
        for sibling in siblings:
            sibling.num_cached_tokens = leader.num_cached_tokens
            self._scheduler.fork(leader, sibling)
        return (leader, *siblings)

    def _take(self, request: Request, token: SampledToken, times: StepTimes, made_s: float) -> TokenOutput:
        request.token_ids.append(token.token_id)
        reason = request.finish_reason()
        times.take(request, made_s, is_last=reason is not None)
        if reason is not None:
            self._scheduler.finish(request)
        return TokenOutput(request.request_id, token, reason, request.num_cached_tokens)

    def _search_on(
        self, beam: Request, search: Search, tokens: Sequence[SampledToken], times: StepTimes, made_s: float
    ) -> list[TokenOutput]:
        """All tokens of all hypotheses when it is known which they are; nothing before."""
        if not tokens:
            return []
        for member in search.members:
            member.first_token_s = made_s if member.first_token_s is None else member.first_token_s
        if not search.settle(beam, tokens[0].continuations, self._scheduler):
            return []
        outputs: list[TokenOutput] = []
        for request, told, reason in search.answers():
            times.take(request, made_s, is_last=True)
            outputs += [TokenOutput(request.request_id, token, None, request.num_cached_tokens) for token in told]
            outputs[-1] = dataclasses.replace(outputs[-1], finish_reason=reason)
        return outputs
