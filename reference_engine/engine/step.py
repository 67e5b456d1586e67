"""The step loop: plan, launch, collect, emit. Single-threaded.

While a step is planned, at most as many are in flight as a pipeline has stages: one without a pipeline.

A plan counts its tokens as computed at once. Only collected steps (`Request.num_settled`) put blocks into the prefix
cache and release those that left a window, because a step in flight can still be wrong.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import TypeVar

import msgspec

from bakeoff.reference_engine.core.outputs import Phases, SampledToken, StepReport, StepTimes, TokenOutput
from bakeoff.reference_engine.core.request import FinishReason, Request
from bakeoff.reference_engine.engine.runner import Collected, InFlight, Runner, Tokens
from bakeoff.reference_engine.errors import EngineBugError, EngineUnavailableError, ReferenceEngineError
from bakeoff.reference_engine.sampling import Sampler
from bakeoff.reference_engine.scheduling.limits import Limits
from bakeoff.reference_engine.scheduling.scheduler import Scheduler
from bakeoff.reference_engine.scheduling.step import Chunk, Step
from bakeoff.reference_engine.speculation.speculator import Speculator

T = TypeVar("T")
Clock = Callable[[], float]  # seconds from an arbitrary origin, never going back


class _Launched(msgspec.Struct, frozen=True):
    """A step in flight, and the changes that its plan made."""

    step: Step
    results: InFlight
    planned_s: float
    launched_s: float
    computed_tokens: int
    fresh: list[Request]
    preemptions: int
    swaps: int
    evicted_blocks: int


class Engine:
    """Requests go in through `add`, tokens come out of `step`. Not thread-safe.

    Args:
        scheduler: decides what each step computes.
        runner: computes it.
        limits: what a request may ask for.
        sampler: the runner's; the engine starts and frees requests in it. None where the runner has none.
        clock: for durations and the times of requests.
        occupancy_steps: sample cache occupancy every N steps.
        overlap: whether to launch steps before those in flight are collected; useful if the runner does not wait.
        stages: of a pipeline, which computes as many steps at once.
        speculator: plans drafts; None for none.
        close: ends the runner's other processes.

    Attributes:
        on_step: called with each step and its report; None if they are not recorded.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        limits: Limits,
        *,
        sampler: Sampler | None = None,
        clock: Clock = time.perf_counter,
        occupancy_steps: int = 1,
        overlap: bool = False,
        stages: int = 1,
        speculator: Speculator | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._sampler = Sampler() if sampler is None else sampler
        self.limits = limits
        self._clock = clock
        self._occupancy_steps = occupancy_steps
        self.overlap, self._stages = overlap, stages
        self._speculator = speculator
        self._num_steps = 0
        self._in_flight = deque[_Launched]()
        self._settled_s = -float("inf")
        self._failure: EngineUnavailableError | None = None
        self.on_step: Callable[[Step, StepReport], None] | None = None
        self.close = close

    @property
    def has_work(self) -> bool:
        """Whether `step` would compute something."""
        return bool(self._in_flight or self._scheduler.num_running or self._scheduler.num_waiting)

    @property
    def preemptions(self) -> int:
        """Times a request lost its blocks, since the start."""
        return self._scheduler.num_preemptions

    @property
    def num_arrived(self) -> int:
        """Requests that were ever added."""
        return self._scheduler.num_arrived

    def add(self, request: Request) -> None:
        """Queues a request, and its siblings with it.

        Raises:
            RequestError: it could never be computed here, or too many wait.
        """
        self.limits.check_request(request)
        for member in (request, *request.siblings):
            if member.arrival_s is None:
                member.arrival_s = self._clock()
        self._sampler.start(request)
        try:
            self._scheduler.add(request)
        except ReferenceEngineError:
            self._sampler.free(member.request_id for member in (request, *request.siblings))
            raise

    def cancel(self, request_id: str) -> None:
        """Forgets a request and its siblings that are not forked off yet, and frees its blocks; ignores unknown ids."""
        self._scheduler.remove(request_id)
        self._free_ended()

    def fork(self, parent: Request, child: Request) -> None:
        """Adds a request that continues from the computed tokens of another one and shares its blocks.

        Args:
            parent: added before; it may be paused.
            child: new; its tokens start with the parent's computed ones.
        """
        child.num_cached_tokens = parent.num_cached_tokens
        self._scheduler.fork(parent, child)

    def resume(self, request: Request, token_id: int) -> None:
        """Continues a paused request with candidates, or one just forked from it, with its next token."""
        request.token_ids.append(token_id)
        self._scheduler.resume(request)

    def has(self, request: Request) -> bool:
        """Whether a request has been added and has not ended."""
        return self._scheduler.has(request)

    def refreshed(self, report: StepReport) -> StepReport:
        """The report with queues and blocks as they are now, after forks and cancellations."""
        return msgspec.structs.replace(
            report,
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            free_seats=self._scheduler.free_seats,
            used_blocks=self._scheduler.cache.num_used,
        )

    def reset_prefix_cache(self) -> None:
        """Empties the prefix cache; running requests keep their blocks."""
        self._scheduler.reset_prefix_cache()

    def step(self) -> StepReport:
        """Computes one step. Requests that end in it are forgotten and their blocks are free.

        With `overlap` the next steps are planned and launched before this one is collected, unless a token of this one
        is needed on the host first (`SamplingParams.needs_host`, drafts, siblings). A request that ends in this step is
        then computed once more, and that result is dropped. The steps of a pipeline compute different requests, if
        there are enough: a stage would otherwise wait for tokens of the last one.

        A request with `SamplingParams.num_candidates` gets no token: its output carries the candidates, and it pauses
        until it is resumed or cancelled.

        Raises:
            EngineUnavailableError: this step or an earlier one failed.
        """
        if self._failure is not None:
            raise self._failure
        in_flight = self._in_flight
        if not in_flight:
            in_flight.append(self._launch())
        while self.overlap and len(in_flight) <= self._stages and self._launch_ahead():
            pass
        launched = in_flight.popleft()
        report = self._settle(launched)
        if self.on_step is not None:
            self.on_step(launched.step, report)
        return report

    def _launch(self, excluded: Set[str] = frozenset()) -> "_Launched":
        """Plans and launches the next step.

        Args:
            excluded: ids of the requests that it must leave out.
        """
        scheduler, cache = self._scheduler, self._scheduler.cache
        planned_s = self._clock()
        before = (scheduler.num_preemptions, scheduler.num_swaps, cache.num_evicted)
        if self._speculator is not None:
            self._speculator.plan(scheduler.running)
        step, copies = scheduler.schedule(excluded, self._stages if self.overlap else 1)
        # As much as possible happens here: the model evicts all of this data from the processor's caches.
        computed_tokens = sum([chunk.length for chunk in step.chunks])
        fresh = [request for request, _ in step.admitted if request.first_scheduled_s is None]
        for request in fresh:
            for member in (request, *request.siblings):
                member.first_scheduled_s = planned_s
        preemptions, swaps = scheduler.num_preemptions - before[0], scheduler.num_swaps - before[1]
        evicted_blocks = cache.num_evicted - before[2]
        results = self._guarded(lambda: self._runner.launch(step, copies)) if step.chunks or copies else Collected()
        launched_s = self._clock()
        return _Launched(
            step, results, planned_s, launched_s, computed_tokens, fresh, preemptions, swaps, evicted_blocks
        )  # fmt: skip

    def _launch_ahead(self) -> bool:
        """Launches a step behind those in flight; False if the oldest must be collected first, or there is no work."""
        if self._speculator is not None and self._speculator.needs_tokens():
            return False
        oldest, *others = self._in_flight
        excluded = {chunk.request.request_id for launched in others for chunk in launched.step.chunks}
        if self._stages > 1:
            of_oldest = {chunk.request.request_id for chunk in oldest.step.chunks}
            if len(self._in_flight) < self._stages and self._launch_behind(excluded | of_oldest):
                return True
            # A later step has taken the blocks of some: to come back, these need their token on the host.
            excluded |= of_oldest - {request.request_id for request in self._scheduler.running}
        chunks = [chunk for chunk in oldest.step.chunks if self._scheduler.has(chunk.request)]
        if not chunks or _is_needed_on_host(oldest.step):
            return False
        for chunk in chunks:
            if chunk.is_sampled and chunk.request.request_id not in excluded:
                chunk.request.num_pending = 1
        return self._launch_behind(excluded)

    def _launch_behind(self, excluded: Set[str]) -> bool:
        """Launches a step without some requests; False if nothing is left."""
        ahead = self._launch(excluded)
        if ahead.computed_tokens or ahead.preemptions:
            self._in_flight.append(ahead)
            return True
        return False

    def _settle(self, launched: "_Launched") -> StepReport:
        """Collects a step and returns its tokens."""
        scheduler, fresh = self._scheduler, launched.fresh
        tokens = iter(self._guarded(launched.results.collect))
        now_s = self._clock()
        outputs, prompt_tokens, verified = self._settle_chunks(launched.step.chunks, tokens, now_s)
        if next(tokens, None) is not None:
            raise EngineBugError("more tokens were sampled than there are output sequences")
        scheduler.release_unseen()
        self._free_ended(verified)
        self._num_steps += 1
        ended_s = self._clock()
        duration_s = ended_s - max(launched.planned_s, self._settled_s)
        self._settled_s = ended_s
        if self._speculator is not None:
            self._speculator.observe_step(launched.step.chunks, duration_s)
        return StepReport(
            outputs=outputs,
            duration_s=duration_s,
            times=StepTimes(launched.planned_s, launched.launched_s, now_s, launched.results.computed_s),
            computed_tokens=launched.computed_tokens,
            prompt_tokens=prompt_tokens,
            queue_times_s=[launched.planned_s - each.arrival_s for each in fresh if each.arrival_s is not None],
            preemptions=launched.preemptions,
            swaps=launched.swaps,
            looked_up_tokens=sum([request.prompt_len for request in fresh if request.num_cached_tokens is not None]),
            cached_tokens=sum([request.num_cached_tokens or 0 for request in fresh]),
            evicted_blocks=launched.evicted_blocks,
            drafted=_by_place(len(chunk.drafts) for chunk, _ in verified),
            accepted=_by_place(count for _, count in verified),
            arrived=scheduler.num_arrived,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            free_seats=scheduler.free_seats,
            used_blocks=scheduler.cache.num_used,
            occupancy=None if self._num_steps % self._occupancy_steps else scheduler.occupancy(),
        )

    def _settle_chunks(
        self, chunks: Sequence[Chunk], tokens: Iterator[Tokens], now_s: float
    ) -> tuple[list[TokenOutput], int, list[tuple[Chunk, int]]]:
        """Gives chunks the next `tokens`, one for each output sequence.

        Returns:
            Outputs; tokens of prompts that are computed; verified chunks, each with its accepted drafts.
        """
        scheduler = self._scheduler
        outputs, verified, prompt_tokens = list[TokenOutput](), list[tuple[Chunk, int]](), 0
        for chunk in chunks:
            request = chunk.request
            if not scheduler.has(request):  # ended or cancelled while this was in flight
                for _ in request.output_sequences if chunk.is_sampled else ():
                    next(tokens)
                continue
            if not chunk.is_sampled:
                scheduler.settle(chunk, 0)
                continue
            request.num_pending = 0
            last_s = request.last_token_s
            if last_s is None:
                scheduler.settle(chunk, 0)
                if request.sampling.num_candidates:
                    scheduler.pause(request)
                    prompt = self._sampler.prompts.take(request.request_id)
                    outputs.append(TokenOutput(request.request_id, next(tokens)[0], None, prompt_logprobs=prompt))
                    continue
                first = self._first_tokens(request, tokens, now_s)
                outputs += first
                prompt_tokens += len(first) * request.prompt_len
                continue
            new = next(tokens)
            scheduler.settle(chunk, len(chunk.drafts) + 1 - len(new))
            if chunk.drafts:
                verified.append((chunk, len(new) - 1))
            outputs += self._next_tokens(request, new, last_s, now_s)
        return outputs, prompt_tokens, verified

    def _free_ended(self, verified: Sequence[tuple[Chunk, int]] = ()) -> None:
        """Frees the data of requests that have ended, after the speculator has counted their accepted drafts."""
        ended = self._scheduler.take_ended()
        self._sampler.free(ended)
        if self._speculator is not None:
            self._speculator.observe(verified)
            self._speculator.free(ended)

    def check_integrity(self) -> None:
        """Raises BlockAccountingError if a block leaked or the prefix cache finds wrong blocks."""
        self._scheduler.check_integrity()

    def _guarded(self, act: Callable[[], T]) -> T:
        """Runs a launch or a collection. Planned tokens already count as computed, so a failure ends the engine."""
        try:
            return act()
        except EngineUnavailableError as error:
            self._failure = error
            raise
        except BaseException as error:
            message = f"a step was broken off ({type(error).__name__}); start the engine again"
            self._failure = EngineUnavailableError(message)
            raise

    def _next_tokens(self, request: Request, new: Tokens, last_s: float, now_s: float) -> list[TokenOutput]:
        """Outputs for the next tokens of a request, up to the one that ends it."""
        outputs: list[TokenOutput] = []
        request.last_token_s = now_s
        for token in new:
            reason = request.append(token.token_id)
            if reason is not None:
                outputs.append(self._first_or_last(request, token, reason, last_s, now_s))
                break
            outputs.append(TokenOutput(request.request_id, token, None, now_s - last_s))
            last_s = now_s
        return outputs

    def _first_tokens(self, request: Request, tokens: Iterator[Tokens], now_s: float) -> list[TokenOutput]:
        """Outputs for the first tokens of a request and of its siblings, which continue on their own from here."""
        siblings, request.siblings = request.siblings, ()
        for sibling in siblings:
            self.fork(request, sibling)
        outputs: list[TokenOutput] = []
        for member in (request, *siblings):
            (token,) = next(tokens)
            member.last_token_s, reason = now_s, member.append(token.token_id)
            outputs.append(self._first_or_last(member, token, reason, None, now_s))
        return outputs

    def _first_or_last(
        self, request: Request, token: SampledToken, reason: FinishReason | None, last_s: float | None, now_s: float
    ) -> TokenOutput:
        if last_s is None:
            request.first_token_s = now_s
        if reason is FinishReason.STOP and self._sampler.gave_up(request.request_id):
            reason = FinishReason.GRAMMAR
        if reason is not None:
            self._scheduler.finish(request)
        gap_s, phases = None if last_s is None else now_s - last_s, Phases.of(request, now_s)
        prompt = self._sampler.prompts.take(request.request_id) if last_s is None else None
        return TokenOutput(request.request_id, token, reason, gap_s, phases, request.num_cached_tokens, prompt)


def _is_needed_on_host(step: Step) -> bool:
    """Whether a token of the step must be known before another step is planned.

    Cancelled requests count too: the runner has sampled the whole batch on the host if one of them needed that.
    """
    return any(
        chunk.drafts or chunk.request.siblings or chunk.request.sampling.needs_host
        for chunk in step.chunks
        if chunk.is_sampled
    )


def _by_place(counts: Iterable[int]) -> list[int]:
    """Numbers of the counts that are more than 0, more than 1, and so on, up to the largest."""
    lengths = list(counts)
    return [sum(length > place for length in lengths) for place in range(max(lengths, default=0))]
