"""The step loop, synchronous and single-threaded: schedule, run, sample, emit."""

import time
from collections.abc import Callable, Iterator, Sequence

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
    """Requests go in by `add`, tokens come out of `step`. Not thread-safe.

    Args:
        scheduler: decides what each step computes.
        runner: computes it.
        limits: what a request may ask for.
        sampler: what the runner samples with; told which requests come and go. None where the runner needs none.
        clock: for durations and the times of requests.
        occupancy_steps: sample cache occupancy every N steps.
        close: ends what the runner has besides this process.
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
        for one in (request, *request.siblings):
            if one.arrival_s is None:
                one.arrival_s = self._clock()
        self._sampler.start(request)
        try:
            self._scheduler.add(request)
        except ReferenceEngineError:
            self._sampler.free(one.request_id for one in (request, *request.siblings))
            raise

    def cancel(self, request_id: str) -> None:
        """Forgets a request, its siblings that are not forked off yet with it, and frees its blocks.

        A beam search goes as a whole, when one of its beams does. A request that has ended already is no mistake.
        """
        self._scheduler.remove(request_id)
        self._sampler.free(self._scheduler.take_ended())

    def reset_prefix_cache(self) -> None:
        """Makes sure that no later request finds what was computed so far; requests under way go on."""
        self._scheduler.reset_prefix_cache()

    def step(self) -> StepReport:
        """Computes one step. Requests that end in it are forgotten and their blocks are free.

        Raises:
            EngineUnavailableError: a step was broken off, this one or one before it.
        """
        if self._failure is not None:
            raise self._failure
        scheduler, cache = self._scheduler, self._scheduler.cache
        began_s = self._clock()
        before = (scheduler.num_preemptions, scheduler.num_swaps, cache.num_evicted)
        step, copies = scheduler.schedule()
        # Whatever can be is done before the model has pushed all of this out of the processor's caches.
        computed_tokens = sum([chunk.length for chunk in step.chunks])
        fresh = [request for request, _ in step.admitted if request.first_scheduled_s is None]
        for request in fresh:
            for one in (request, *request.siblings):
                one.first_scheduled_s = began_s
        preemptions, swaps = scheduler.num_preemptions - before[0], scheduler.num_swaps - before[1]
        evicted_blocks = cache.num_evicted - before[2]
        self._num_steps += 1

        tokens = iter(self._run(step, copies) if step.chunks or copies else ())
        made_s = self._clock()
        outputs: list[TokenOutput] = []
        prompt_tokens = 0
        scheduler.complete()
        for chunk in step.chunks:
            if not chunk.is_sampled:
                continue
            request = chunk.request
            last_s = request.last_token_s
            if last_s is None:
                told, begun = self._begin(request, tokens, made_s)
                outputs += told
                prompt_tokens += begun * request.prompt_len
                continue
            token = next(tokens)
            request.last_token_s, reason = made_s, request.append(token.token_id)
            outputs.append(
                TokenOutput(request.request_id, token, None, made_s - last_s)
                if reason is None
                else self._first_or_last(request, token, reason, last_s, made_s)
            )
        if next(tokens, None) is not None:
            raise EngineBugError("more tokens were sampled than somebody takes")
        self._sampler.free(scheduler.take_ended())
        return StepReport(
            outputs=outputs,
            duration_s=self._clock() - began_s,
            computed_tokens=computed_tokens,
            prompt_tokens=prompt_tokens,
            queue_times_s=[began_s - request.arrival_s for request in fresh if request.arrival_s is not None],
            preemptions=preemptions,
            swaps=swaps,
            looked_up_tokens=sum([one.prompt_len for one in fresh if one.num_cached_tokens is not None]),
            cached_tokens=sum([one.num_cached_tokens or 0 for one in fresh]),
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
        """What was planned counts as computed, so that an engine in which it was not must not go on."""
        try:
            return self._runner.run(step, copies)
        except EngineUnavailableError as error:
            self._failure = error
            raise
        except BaseException as error:
            what = f"a step was broken off ({type(error).__name__}); start the engine again"
            self._failure = EngineUnavailableError(what)
            raise

    def _begin(self, request: Request, tokens: Iterator[SampledToken], made_s: float) -> tuple[list[TokenOutput], int]:
        """The first tokens of a request and of the siblings that it had, and how many answers got theirs.

        A beam is always at its beginning: its search tells everything when it is over.
        """
        if request.sampling.beams is not None:
            told = self._search_on(request, next(tokens), made_s)
            return told, sum(one.finish_reason is not None for one in told)
        told: list[TokenOutput] = []
        for one in (request, *self._forks(request)):
            token = next(tokens)
            one.last_token_s, reason = made_s, one.append(token.token_id)
            told.append(self._first_or_last(one, token, reason, None, made_s))
        return told, len(told)

    def _forks(self, leader: Request) -> Sequence[Request]:
        """A request's siblings, who run on from here by themselves."""
        siblings, leader.siblings = leader.siblings, ()
        for sibling in siblings:
            sibling.num_cached_tokens = leader.num_cached_tokens
            self._scheduler.fork(leader, sibling)
        return siblings

    def _first_or_last(
        self, request: Request, token: SampledToken, reason: FinishReason | None, last_s: float | None, made_s: float
    ) -> TokenOutput:
        if last_s is None:
            request.first_token_s = made_s
        if reason is not None:
            self._scheduler.finish(request)
        gap_s, phases = None if last_s is None else made_s - last_s, Phases.of(request, made_s)
        return TokenOutput(request.request_id, token, reason, gap_s, phases, request.num_cached_tokens)

    def _search_on(self, beam: Request, token: SampledToken, made_s: float) -> list[TokenOutput]:
        """All tokens of all hypotheses when it is known which they are; nothing before."""
        search = self._scheduler.search_of(beam)
        for member in search.members:
            member.first_token_s = made_s if member.first_token_s is None else member.first_token_s
        if not self._scheduler.settle(beam, token.continuations):
            return []
        outputs: list[TokenOutput] = []
        for request, told, reason in search.answers():
            name, cached = request.request_id, request.num_cached_tokens
            outputs += [TokenOutput(name, token, None, num_cached_tokens=cached) for token in told[:-1]]
            outputs.append(TokenOutput(name, told[-1], reason, None, Phases.of(request, made_s), cached))
        return outputs
