"""One beam search among the running and waiting requests. Pure Python.

A search is as many requests as it has beams. Its leader computes the prompt; from then on they take turns in being the
beams: one that is dropped gives up what it holds, and serves again where another goes two ways, as a fork that shares
all blocks (PagedAttention, SOSP'23, §4.4). Beams advance in lockstep: one whose continuations are known has nothing to
compute until the others have theirs. It may lose its blocks meanwhile, but never what it knows, so that a search gets
on even where the cache holds a single one of its beams.
"""

from collections.abc import Sequence
from typing import Protocol

from reference_engine.engine.beam_search import BeamSearch, Extension
from reference_engine.engine.outputs import Continuation, SampledToken
from reference_engine.engine.request import BeamParams, FinishReason, Request
from reference_engine.errors import EngineBugError


class Forking(Protocol):
    """What carries out the branching of a search."""

    def fork(self, parent: Request, child: Request) -> None:
        """Lets a new request go on from what another has computed."""
        ...

    def drop(self, request: Request) -> None:
        """Forgets one request and frees its blocks."""
        ...


class Search:
    """The requests of one search.

    Args:
        leader: with siblings, which are taken from it when its prompt is computed; together as many as beams.
        params: the leader's.

    Attributes:
        members: all of them; as many hypotheses come out, the best one as the leader's answer.
        beams: those that hold the beams, best first.
        continuations: of the beams that are computed and wait for the others, by request id.
    """

    __slots__ = ("_rules", "beams", "continuations", "members")

    def __init__(self, leader: Request, params: BeamParams) -> None:
        self.members = [leader, *leader.siblings]
        self.beams = [leader]
        self.continuations: dict[str, tuple[Continuation, ...]] = {}
        if len(self.members) != params.width:
            raise EngineBugError(f"{len(self.members)} requests cannot search {params.width} beams")
        self._rules = BeamSearch(params, leader.sampling.stop_token_ids, leader.sampling.max_tokens)

    def settle(self, beam: Request, continuations: tuple[Continuation, ...], scheduler: Forking) -> bool:
        """Takes what was computed of one beam, and the search's next step if it was the last one.

        Returns:
            Whether the search is over; nothing of it is left with the scheduler then.
        """
        self.continuations[beam.request_id] = continuations
        if len(self.continuations) < len(self.beams):
            return False
        ready = [self.continuations[one.request_id] for one in self.beams]
        self.continuations.clear()
        extensions = self._rules.advance(ready)
        kept = {extension.parent for extension in extensions}
        for number, one in enumerate(self.beams):
            one.siblings = ()
            if number not in kept:
                scheduler.drop(one)
        self._branch(extensions, scheduler)
        return not extensions

    def answers(self) -> list[tuple[Request, tuple[SampledToken, ...], FinishReason]]:
        """Each member with the hypothesis that is its answer, best first; to be asked when the search is over."""
        best = self._rules.hypotheses
        return [
            (member, one.tokens, self._rules.finish_reason(one))
            for member, one in zip(self.members, best, strict=True)
        ]  # fmt: skip

    def check_integrity(self, present: Sequence[Request]) -> None:
        """Raises EngineBugError unless the scheduler has exactly the beams, in lockstep, and one is yet to be computed.

        Args:
            present: what the scheduler has of this search.
        """
        beams = {id(beam) for beam in self.beams}
        if beams != {id(one) for one in present} or not beams <= {id(member) for member in self.members}:
            raise EngineBugError(f"the search of {self.members[0].request_id} has other beams than the scheduler")
        if len({beam.num_tokens for beam in self.beams}) > 1:
            raise EngineBugError(f"the beams of {self.members[0].request_id} are not of one length")
        if len(self.continuations) == len(self.beams):
            raise EngineBugError(f"the beams of {self.members[0].request_id} wait for each other")

    def _branch(self, extensions: list[Extension], scheduler: Forking) -> None:
        """Makes the next beams out of those that are left."""
        parents, self.beams = self.beams, []
        numbers = {extension.parent for extension in extensions}
        spare = [one for one in self.members if not any(one is parents[number] for number in numbers)]
        for extension in extensions:
            parent = beam = parents[extension.parent]
            if extension.parent in numbers:
                numbers.remove(extension.parent)  # its best way is its own, the others are forks
            else:
                beam = spare.pop(0)
                beam.token_ids = list(parent.token_ids)
                beam.num_cached_tokens = parent.num_cached_tokens
                scheduler.fork(parent, beam)
            self.beams.append(beam)
        for beam, extension in zip(self.beams, extensions, strict=True):
            beam.token_ids.append(extension.token.token_id)
