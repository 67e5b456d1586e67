"""The step loop, synchronous and single-threaded: schedule, run, sample, emit."""

import time
from collections.abc import Callable, Iterator

import msgspec

from reference_engine.engine.limits import Limits
from reference_engine.engine.outputs import Phases, SampledToken, StepReport, TokenOutput
from reference_engine.engine.request import FinishReason, Request
from reference_engine.engine.runner import Runner
from reference_engine.errors import EngineBugError, EngineUnavailableError, ReferenceEngineError
from reference_engine.kv_cache.block_copies import BlockCopies
from reference_engine.sampling import Sampler
from reference_engine.scheduling.scheduler import Scheduler
from reference_engine.scheduling.step import Step

Clock = Callable[[], float]  # seconds from an arbitrary origin, never going back


class Engine:
    """Requests go in through `add`, tokens come out of `step`. Not thread-safe.

    Args:
        scheduler: decides what each step computes.
        runner: computes it.
        limits: what a request may ask for.
        sampler: the runner's; the engine starts and frees requests in it. None where the runner has none.
        clock: for durations and the times of requests.
        occupancy_steps: sample cache occupancy every N steps.
        close: ends the runner's other processes.
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
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._sampler = Sampler() if sampler is None else sampler
        self.limits = limits
        self._clock = clock
        self._occupancy_steps = occupancy_steps
        self._num_steps = 0
        self._failure: EngineUnavailableError | None = None
        self.close = close

    @property
    def has_work(self) -> bool:
        """Whether `step` would compute something."""
        return bool(self._scheduler.num_running or self._scheduler.num_waiting)

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
        """Forgets a request and its siblings that are not forked off yet, and frees its blocks; or ignores the id."""
        self._scheduler.remove(request_id)
        self._sampler.free(self._scheduler.take_ended())

    def fork(self, parent: Request, child: Request) -> None:
        """Adds a request that continues from what another one has computed, and shares its blocks.

        Args:
            parent: added before; it may be paused.
            child: new; its tokens start with the parent's computed ones.
        """
        child.num_cached_tokens = parent.num_cached_tokens
        self._scheduler.fork(parent, child)

    def resume(self, request: Request, token_id: int) -> None:
        """Continues a request that has paused with candidates, or one just forked from it, with its next token."""
        request.token_ids.append(token_id)
        self._scheduler.resume(request)

    def has(self, request: Request) -> bool:
        """Whether a request has been added and has not ended."""
        return self._scheduler.has(request)

    def refreshed(self, report: StepReport) -> StepReport:
        """A report with queues and blocks as they are now, after forks and cancellations."""
        return msgspec.structs.replace(
            report,
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            free_seats=self._scheduler.free_seats,
            used_blocks=self._scheduler.cache.num_used,
        )

    def reset_prefix_cache(self) -> None:
        """Empties the prefix cache; requests under way keep their blocks."""
        self._scheduler.reset_prefix_cache()

    def step(self) -> StepReport:
        """Computes one step. Requests that end in it are forgotten and their blocks are free.

        A request with `SamplingParams.num_candidates` gets no token: its output carries the candidates, and it pauses
        until it is resumed or cancelled.

        Raises:
            EngineUnavailableError: this step or an earlier one failed.
        """
        if self._failure is not None:
            raise self._failure
        scheduler, cache = self._scheduler, self._scheduler.cache
        began_s = self._clock()
        before = (scheduler.num_preemptions, scheduler.num_swaps, cache.num_evicted)
        step, copies = scheduler.schedule()
        # As much as possible happens here: the model evicts all of this from the processor's caches.
        computed_tokens = sum([chunk.length for chunk in step.chunks])
        fresh = [request for request, _ in step.admitted if request.first_scheduled_s is None]
        for request in fresh:
            for member in (request, *request.siblings):
                member.first_scheduled_s = began_s
        preemptions, swaps = scheduler.num_preemptions - before[0], scheduler.num_swaps - before[1]
        evicted_blocks = cache.num_evicted - before[2]
        self._num_steps += 1

        tokens = iter(self._run(step, copies) if step.chunks or copies else ())
        now_s = self._clock()
        outputs: list[TokenOutput] = []
        prompt_tokens = 0
        scheduler.complete()
        for chunk in step.chunks:
            if not chunk.is_sampled:
                continue
            request = chunk.request
            last_s = request.last_token_s
            if last_s is None:
                if request.sampling.num_candidates:
                    scheduler.pause(request)
                    outputs.append(TokenOutput(request.request_id, next(tokens), None))
                    continue
                first = self._first_tokens(request, tokens, now_s)
                outputs += first
                prompt_tokens += len(first) * request.prompt_len
                continue
            token = next(tokens)
            request.last_token_s, reason = now_s, request.append(token.token_id)
            outputs.append(
                TokenOutput(request.request_id, token, None, now_s - last_s)
                if reason is None
                else self._first_or_last(request, token, reason, last_s, now_s)
            )
        if next(tokens, None) is not None:
            raise EngineBugError("more tokens were sampled than there are output sequences")
        self._sampler.free(scheduler.take_ended())
        return StepReport(
            outputs=outputs,
            duration_s=self._clock() - began_s,
            computed_tokens=computed_tokens,
            prompt_tokens=prompt_tokens,
            queue_times_s=[began_s - request.arrival_s for request in fresh if request.arrival_s is not None],
            preemptions=preemptions,
            swaps=swaps,
            looked_up_tokens=sum([request.prompt_len for request in fresh if request.num_cached_tokens is not None]),
            cached_tokens=sum([request.num_cached_tokens or 0 for request in fresh]),
            evicted_blocks=evicted_blocks,
            arrived=scheduler.num_arrived,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            free_seats=scheduler.free_seats,
            used_blocks=cache.num_used,
            occupancy=None if self._num_steps % self._occupancy_steps else scheduler.occupancy(),
        )

    def check_integrity(self) -> None:
        """Raises BlockAccountingError if a block leaked or the prefix cache finds what it should not."""
        self._scheduler.check_integrity()

    def _run(self, step: Step, copies: BlockCopies) -> list[SampledToken]:
        """Runs a step. Planned tokens already count as computed, so the engine cannot go on after a failure."""
        try:
            return self._runner.run(step, copies)
        except EngineUnavailableError as error:
            self._failure = error
            raise
        except BaseException as error:
            what = f"a step was broken off ({type(error).__name__}); start the engine again"
            self._failure = EngineUnavailableError(what)
            raise

    def _first_tokens(self, request: Request, tokens: Iterator[SampledToken], now_s: float) -> list[TokenOutput]:
        """The first tokens of a request and of its siblings, which continue on their own from here."""
        siblings, request.siblings = request.siblings, ()
        for sibling in siblings:
            self.fork(request, sibling)
        outputs: list[TokenOutput] = []
        for member in (request, *siblings):
            token = next(tokens)
            member.last_token_s, reason = now_s, member.append(token.token_id)
            outputs.append(self._first_or_last(member, token, reason, None, now_s))
        return outputs

    def _first_or_last(
        self, request: Request, token: SampledToken, reason: FinishReason | None, last_s: float | None, now_s: float
    ) -> TokenOutput:
        if last_s is None:
            request.first_token_s = now_s
        if reason is not None:
            self._scheduler.finish(request)
        gap_s, phases = None if last_s is None else now_s - last_s, Phases.of(request, now_s)
        return TokenOutput(request.request_id, token, reason, gap_s, phases, request.num_cached_tokens)
