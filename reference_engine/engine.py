"""The step loop, synchronous and single-threaded: schedule, run, sample, emit."""

import time
from collections.abc import Callable, Sequence

from reference_engine.errors import EngineBugError
from reference_engine.grammar import Grammars, GrammarState
from reference_engine.limits import Limits
from reference_engine.outputs import Phases, SampledToken, StepReport, TokenOutput
from reference_engine.request import Request
from reference_engine.runner import Runner
from reference_engine.scheduling.scheduler import Scheduler
from reference_engine.scheduling.search import Search
from reference_engine.scheduling.step import Chunk

Clock = Callable[[], float]  # seconds from an arbitrary origin, never going back


class Engine:
    """Requests go in by `add`, tokens come out of `step`. Not thread-safe.

    Args:
        scheduler: decides what each step computes.
        runner: computes it.
        limits: what a request may ask for.
        grammars: start those of requests that have one; None where no request may.
        clock: for durations and the times of requests.
        occupancy_steps: in one of so many steps it is looked how full the cache is.
        close: ends what the runner has besides this process.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        limits: Limits,
        *,
        grammars: Grammars | None = None,
        clock: Clock = time.perf_counter,
        occupancy_steps: int = 1,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._grammars = grammars
        self.limits = limits
        self._clock = clock
        self._occupancy_steps = occupancy_steps
        self._num_steps = 0
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
            if one.sampling.grammar is not None:
                one.grammar = self._start(one.sampling.grammar)
        if request.sampling.beams is not None:
            search = Search(request, request.sampling.beams)
            for one in search.members:
                one.search = search
        self._scheduler.add(request)

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
        # Whatever can be is done before the model has pushed all of this out of the processor's caches.
        computed_tokens = sum(chunk.length for chunk in step.chunks)
        sampled = self._runner.run(step, moves) if step.chunks or moves else []
        made_s = self._clock()
        outputs: list[TokenOutput] = []
        prompt_tokens = 0
        for chunk, tokens in zip(step.chunks, sampled, strict=True):
            scheduler.complete(chunk)
            if chunk.request.search is not None:
                told = self._search_on(chunk.request, chunk.request.search, tokens, made_s)
                prompt_tokens += sum(one.finish_reason is not None for one in told) * chunk.request.prompt_len
                outputs.extend(told)
                continue
            for request, token in zip(self._takers(chunk) if tokens else (), tokens, strict=True):
                prompt_tokens += 0 if request.num_output else request.prompt_len
                outputs.append(self._take(request, token, made_s))
        self._num_steps += 1
        return StepReport(
            outputs=outputs,
            duration_s=self._clock() - began_s,
            computed_tokens=computed_tokens,
            prompt_tokens=prompt_tokens,
            queue_times_s=[began_s - request.arrival_s for request in fresh if request.arrival_s is not None],
            preemptions=scheduler.num_preemptions - before[0],
            swaps=scheduler.num_swaps - before[1],
            looked_up_tokens=sum(request.prompt_len for request in fresh if request.num_cached_tokens is not None),
            cached_tokens=sum(request.num_cached_tokens or 0 for request in fresh),
            evicted_blocks=cache.num_evicted - before[2],
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

    def _takers(self, chunk: Chunk) -> Sequence[Request]:
        """Who gets a token from the chunk's last row; siblings run on from here by themselves."""
        leader = chunk.request
        if not leader.siblings:
            return (leader,)
        siblings, leader.siblings = leader.siblings, []
        for sibling in siblings:
            sibling.num_cached_tokens = leader.num_cached_tokens
            self._scheduler.fork(leader, sibling)
        return (leader, *siblings)

    def _take(self, request: Request, token: SampledToken, made_s: float) -> TokenOutput:
        request.token_ids.append(token.token_id)
        reason = request.finish_reason()
        last_s, request.last_token_s = request.last_token_s, made_s
        if last_s is None:
            request.first_token_s = made_s
        phases = Phases.of(request, made_s) if last_s is None or reason is not None else None
        if reason is not None:
            self._scheduler.finish(request)
        gap_s = None if last_s is None else made_s - last_s
        return TokenOutput(request.request_id, token, reason, gap_s, phases, request.num_cached_tokens)

    def _start(self, source: str) -> GrammarState:
        if self._grammars is None:
            raise EngineBugError("a request has a grammar and this engine has nothing to read it with")
        return self._grammars.start(source)

    def _search_on(
        self, beam: Request, search: Search, tokens: Sequence[SampledToken], made_s: float
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
            name, cached = request.request_id, request.num_cached_tokens
            outputs += [TokenOutput(name, token, None, num_cached_tokens=cached) for token in told[:-1]]
            outputs.append(TokenOutput(name, told[-1], reason, None, Phases.of(request, made_s), cached))
        return outputs
