"""Beam search above the engine, which knows only requests that pause with candidates, forks and resumptions.

A search consists of one request for each beam. Its leader computes the prompt; then its members hold the beams. When a
beam is dropped, its request releases its blocks and later holds a fork of another beam, with which it shares all blocks
(PagedAttention, SOSP'23, §4.4). Beams advance in lockstep: the engine pauses each with its candidates until all have
theirs. A paused beam may be preempted meanwhile but keeps its candidates, so that a search progresses even if the cache
holds only one of its beams.
"""

import time
from collections.abc import Sequence

import msgspec

from bakeoff.reference_engine.core.outputs import (
    Candidate,
    Phases,
    PromptLogprob,
    SampledToken,
    StepReport,
    TokenOutput,
)
from bakeoff.reference_engine.core.request import BeamParams, FinishReason, Request
from bakeoff.reference_engine.engine.beam_search import BeamSearch, Extension, check_beams
from bakeoff.reference_engine.engine.step import Clock, Engine
from bakeoff.reference_engine.errors import EngineBugError
from bakeoff.reference_engine.sampling.grammar import Grammars
from bakeoff.reference_engine.scheduling.limits import Limits


class BeamSearchEngine:
    """An `Engine` that also searches beams, for requests whose sampling parameters ask for it. Not thread-safe.

    The tokens of a search are returned when it is over; the leader returns those of the best hypothesis.

    Args:
        core: runs all requests.
        conflict: the core's setting that rules out beam search; None if none does.
        clock: the core's.
        grammars: those of the core's sampler; None if requests cannot have grammars.
    """

    def __init__(
        self,
        core: Engine,
        conflict: str | None = None,
        clock: Clock = time.perf_counter,
        grammars: Grammars | None = None,
    ) -> None:
        self.core = core
        self.grammars = grammars
        self.close = core.close
        self._conflict = conflict
        self._clock = clock
        self._searches: dict[str, _Search] = {}  # by the id of each member

    @property
    def limits(self) -> Limits:
        """What a request may ask for."""
        return self.core.limits

    @property
    def has_work(self) -> bool:
        return self.core.has_work

    @property
    def preemptions(self) -> int:
        return self.core.preemptions

    @property
    def num_arrived(self) -> int:
        return self.core.num_arrived

    def check(self, request: Request) -> None:
        """Refuses a request that can never be computed.

        Raises:
            RequestError: with the numbers, naming the field at fault.
        """
        self.limits.check_request(request)
        for member in (request, *request.siblings):
            check_beams(member.sampling, self.limits, self._conflict)

    def add(self, request: Request) -> None:
        """Queues a request with its siblings, which for a search are its further beams.

        Raises:
            RequestError: it could never be computed here, or too many wait.
        """
        self.check(request)
        search = None if request.sampling.beams is None else _Search(request, request.sampling.beams)
        self.core.add(request)
        if search is not None:
            self._searches |= {member.request_id: search for member in search.members}

    def cancel(self, request_id: str) -> None:
        """Cancelling a beam cancels its whole search."""
        search = self._searches.get(request_id)
        if search is None:
            self.core.cancel(request_id)
        elif any(beam.request_id == request_id for beam in search.beams):
            for beam in search.beams:
                self.core.cancel(beam.request_id)
            self._forget(search)

    def reset_prefix_cache(self) -> None:
        self.core.reset_prefix_cache()

    def step(self) -> StepReport:
        report = self.core.step()
        if not self._searches:
            return report
        outputs: list[TokenOutput] = []
        prompt_tokens = report.prompt_tokens
        for output in report.outputs:
            search = self._searches.get(output.request_id)
            if search is None:
                outputs.append(output)
            elif search.take(output, self.core, self._clock()):
                self._forget(search)
                outputs += search.outputs(self._clock())
                prompt_tokens += len(search.members) * search.members[0].prompt_len
        return self.core.refreshed(msgspec.structs.replace(report, outputs=outputs, prompt_tokens=prompt_tokens))

    def check_integrity(self) -> None:
        """Raises BlockAccountingError or EngineBugError if the engine or a search is inconsistent."""
        self.core.check_integrity()
        for search in {id(search): search for search in self._searches.values()}.values():
            search.check_integrity(self.core)

    def _forget(self, search: "_Search") -> None:
        for member in search.members:
            del self._searches[member.request_id]


class _Search:
    """The requests of one search.

    Args:
        leader: has a sibling for each further beam; the search takes these over when the prompt is computed.
        params: the leader's.

    Attributes:
        members: all requests of the search; each returns one hypothesis.
        beams: the members that hold a beam now, best first.
    """

    def __init__(self, leader: Request, params: BeamParams) -> None:
        self.members = [leader, *leader.siblings]
        self.beams = [leader]
        if len(self.members) != params.width:
            raise EngineBugError(f"{len(self.members)} requests cannot search {params.width} beams")
        self._rules = BeamSearch(params, leader.sampling.stop_token_ids, leader.sampling.max_tokens)
        self._candidates: dict[str, Sequence[Candidate]] = {}  # of the paused beams
        self._prompt_logprobs: tuple[PromptLogprob, ...] | None = None

    def take(self, output: TokenOutput, core: Engine, now_s: float) -> bool:
        """Stores the candidates of one beam; advances the search when all beams have theirs.

        Returns:
            Whether the search is over; then the engine holds none of its requests.
        """
        for member in self.members:
            member.first_token_s = now_s if member.first_token_s is None else member.first_token_s
        self._candidates[output.request_id] = output.token.candidates
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs
        if len(self._candidates) < len(self.beams):
            return False
        extensions = self._rules.advance([self._candidates[beam.request_id] for beam in self.beams])
        self._candidates.clear()
        self._branch(extensions, core)
        return not extensions

    def outputs(self, now_s: float) -> list[TokenOutput]:
        """Every token of every member's hypothesis, when the search is over."""
        outputs: list[TokenOutput] = []
        for request, tokens, reason in self._answers():
            request_id, cached = request.request_id, request.num_cached_tokens
            outputs += [TokenOutput(request_id, token, None, num_cached_tokens=cached) for token in tokens[:-1]]
            outputs.append(TokenOutput(request_id, tokens[-1], reason, None, Phases.of(request, now_s), cached))
        outputs[0] = msgspec.structs.replace(outputs[0], prompt_logprobs=self._prompt_logprobs)
        return outputs

    def check_integrity(self, core: Engine) -> None:
        """Raises EngineBugError unless the engine has exactly the beams, in lockstep, and one is still uncomputed."""
        name = self.members[0].request_id
        if {beam.request_id for beam in self.beams} != {
            member.request_id for member in self.members if core.has(member)
        }:
            raise EngineBugError(f"the search of {name} has other beams than the engine")
        if len({beam.num_tokens for beam in self.beams}) > 1:
            raise EngineBugError(f"the beams of {name} are not of one length")
        if len(self._candidates) == len(self.beams):
            raise EngineBugError(f"the beams of {name} wait for each other")

    def _answers(self) -> list[tuple[Request, tuple[SampledToken, ...], FinishReason]]:
        return [
            (member, hypothesis.tokens, self._rules.finish_reason(hypothesis))
            for member, hypothesis in zip(self.members, self._rules.hypotheses, strict=True)
        ]

    def _branch(self, extensions: Sequence[Extension], core: Engine) -> None:
        """Drops the beams that do not continue, and makes the next ones of those that do."""
        parents, self.beams = self.beams, []
        continued = {extension.parent for extension in extensions}
        for number, parent in enumerate(parents):
            parent.siblings = ()
            if number not in continued:
                core.cancel(parent.request_id)
        spare = [member for member in self.members if not any(member is parents[number] for number in continued)]
        for extension in extensions:
            parent = beam = parents[extension.parent]
            if extension.parent in continued:
                continued.remove(extension.parent)  # the beam keeps its best continuation, the others become forks
            else:
                beam = spare.pop(0)
                beam.token_ids = list(parent.token_ids)
                core.fork(parent, beam)
            self.beams.append(beam)
        for beam, extension in zip(self.beams, extensions, strict=True):
            core.resume(beam, extension.token.token_id)
