"""The rules of one beam search: which beams continue, which hypotheses end, and when it is over. Pure Python, no torch.

They are those of Transformers' ``generate(num_beams=…)``, so that tests can compare the two: of all
candidates of all beams, those that end among the best `width` are hypotheses, and the best `width` that do not end
are the next beams. Hypotheses are compared by their log-probability over a power of their length (after GNMT,
arXiv:1609.08144), and the search continues while a beam can become better than the worst of the hypotheses kept.
"""

import dataclasses
from collections.abc import Sequence

from bakeoff.reference_engine.core.ablations import FLAG
from bakeoff.reference_engine.core.config import EngineConfig
from bakeoff.reference_engine.core.outputs import Candidate, SampledToken
from bakeoff.reference_engine.core.request import BeamParams, FinishReason, SamplingParams
from bakeoff.reference_engine.errors import RequestError
from bakeoff.reference_engine.scheduling.limits import Limits


@dataclasses.dataclass(frozen=True, slots=True)
class Hypothesis:
    """A partial or whole answer.

    Attributes:
        tokens: in order.
        log_prob: the sum over its tokens.
    """

    tokens: tuple[SampledToken, ...] = ()
    log_prob: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Extension:
    """A beam with one more token.

    Attributes:
        parent: index of the beam.
        token: the new one.
        log_prob: of all tokens.
    """

    parent: int
    token: SampledToken
    log_prob: float


def conflicting_flag(config: EngineConfig) -> str | None:
    """The setting that rules out beam search; None if none does.

    Beam search needs sequences that can leave a batch at any step, and blocks that can be shared and copied.
    """
    ablations = config.ablations
    return f"{FLAG} static_batching" if ablations.static_batching else ablations.flag_without_forks


def check_beams(sampling: SamplingParams, limits: Limits, conflict: str | None) -> None:
    """Refuses a search that cannot be run.

    Args:
        sampling: nothing is refused if it has no beams.
        limits: of the engine.
        conflict: as `conflicting_flag` returned it.

    Raises:
        RequestError: with the setting or the parameter at fault.
    """
    if sampling.beams is None:
        return
    if conflict is not None:
        raise RequestError(
            f"beams cannot be searched with {conflict}; start the server without it", param="use_beam_search"
        )
    if sampling.grammar is not None:
        raise RequestError("beam search heeds no grammar; leave out one of the two", param="use_beam_search")
    if sampling.num_candidates > limits.vocab_size:
        raise RequestError(
            f"{sampling.beams.width} beams and {len(sampling.stop_token_ids)} stop tokens are more than the "
            f"{limits.vocab_size} tokens of the vocabulary; ask for fewer",
            param="best_of",
        )


class BeamSearch:
    """One search, from one beam without tokens to its hypotheses.

    Args:
        params: of the search.
        stop_token_ids: tokens that end a hypothesis.
        max_tokens: length at which the search ends in any case.

    Attributes:
        beams: the beams to extend, best first; empty when the search is over.
        hypotheses: at most `width` that have ended, best first.
    """

    def __init__(self, params: BeamParams, stop_token_ids: frozenset[int], max_tokens: int) -> None:
        self._params = params
        self._stops = stop_token_ids
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self.beams: list[Hypothesis] = [Hypothesis()]
        self.hypotheses: list[Hypothesis] = []

    def advance(self, candidates: Sequence[Sequence[Candidate]]) -> list[Extension]:
        """Takes one step of all beams.

        Args:
            candidates: the best next tokens of each beam, at least `SamplingParams.num_candidates` of them.

        Returns:
            The next beams, best first; empty if the search is over.
        """
        self._num_tokens += 1
        width, is_last = self._params.width, self._num_tokens == self._max_tokens
        ranked = sorted(
            (
                Extension(parent, candidate.token, self.beams[parent].log_prob + candidate.log_prob)
                for parent, best in enumerate(candidates)
                for candidate in best
            ),
            key=lambda extension: -extension.log_prob,  # stable: among equals, the better beam's comes first
        )
        # A stop token ranked after the best `width` ends no hypothesis: better ones may still come.
        ended = [extension for extension in ranked[:width] if is_last or extension.token.token_id in self._stops]
        continued = (
            []
            if is_last
            else [extension for extension in ranked if extension.token.token_id not in self._stops][:width]
        )
        self.hypotheses = sorted([*self.hypotheses, *map(self._extended, ended)], key=self._loss)[:width]
        if not continued or not self._can_improve(continued[0].log_prob):
            continued = []
        self.beams = [self._extended(extension) for extension in continued]
        return continued

    def finish_reason(self, hypothesis: Hypothesis) -> FinishReason:
        """Why a hypothesis ended."""
        is_stopped = hypothesis.tokens[-1].token_id in self._stops
        return FinishReason.STOP if is_stopped else FinishReason.LENGTH

    def _extended(self, by: Extension) -> Hypothesis:
        return Hypothesis((*self.beams[by.parent].tokens, by.token), by.log_prob)

    def _can_improve(self, log_prob: float) -> bool:
        """Whether the best beam, with this log-probability, can still become one of the kept hypotheses."""
        if len(self.hypotheses) < self._params.width:
            return True
        if self._params.early_stopping is True:
            return False
        is_patient = self._params.early_stopping == "never" and self._params.length_penalty > 0
        length = self._max_tokens if is_patient else self._num_tokens
        return self._score(log_prob, length) > -self._loss(self.hypotheses[-1])

    def _loss(self, hypothesis: Hypothesis) -> float:
        return -self._score(hypothesis.log_prob, len(hypothesis.tokens))

    def _score(self, log_prob: float, length: int) -> float:
        return log_prob / length**self._params.length_penalty
