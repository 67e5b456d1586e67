"""From logits to tokens, for a whole batch: change the scores, choose, report.

Rows with the same kind of parameters are computed in one call, and steps that no row needs are skipped. A row's token
does not depend on the other rows: the same seed gives the same tokens in any batch.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
import torch

from bakeoff.reference_engine.core.outputs import Candidate, SampledToken
from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.errors import EngineBugError
from bakeoff.reference_engine.kernels.cpu import best_kernels
from bakeoff.reference_engine.sampling.blocks import BlockedScores
from bakeoff.reference_engine.sampling.drawing import draw
from bakeoff.reference_engine.sampling.grammar import Grammars, GrammarState
from bakeoff.reference_engine.sampling.history import TokenHistory
from bakeoff.reference_engine.sampling.overrides import add_bias, forbid_by_grammar, forbid_early_stops
from bakeoff.reference_engine.sampling.penalties import penalise
from bakeoff.reference_engine.sampling.places import Place
from bakeoff.reference_engine.sampling.prompt_scores import PromptScores
from bakeoff.reference_engine.sampling.reports import best_of_rows, reported
from bakeoff.reference_engine.sampling.truncation import draw_truncated
from bakeoff.reference_engine.sampling.uniform import uniforms
from bakeoff.reference_engine.sampling.watermark import add_watermark

Chooser = Callable[[torch.Tensor, Sequence[Request]], list[int]]
"""Tokens from scores float32 [num_rows, vocab_size] and one request per row."""

_FEW = 4  # drawn rows are few if they are less than one in so many


def all_plain(requests: Sequence[Request]) -> bool:
    """Whether every request takes the likeliest token and reports nothing else."""
    return all(request.sampling.is_plain for request in requests)


def argmax(scores: torch.Tensor) -> torch.Tensor:
    """The tokens that `Sampler.sample` chooses if `all_plain` is true: int64 [num_rows], on the device of the scores.

    Args:
        scores: [num_rows, vocab_size]; the first of equal ones is chosen.
    """
    return best_kernels(scores.device, scores.dtype).argmax(scores)


class Sampler:
    """Chooses tokens, and keeps each request's grammar state and token history.

    Args:
        grammars: compiles grammars; None if no request may have one.

    Attributes:
        prompts: log-probabilities of prompts.
    """

    def __init__(self, grammars: Grammars | None = None) -> None:
        self.prompts: PromptScores = PromptScores()
        self._compiled = grammars
        self._grammars: dict[str, GrammarState] = {}
        self._histories: dict[str, TokenHistory] = {}

    def start(self, request: Request) -> None:
        """Prepares a request and its siblings: compiles their grammars, if they have any.

        Raises:
            EngineBugError: a request has a grammar, and no compiler was given.
        """
        for member in (request, *request.siblings):
            if member.sampling.grammar is not None:
                if self._compiled is None:
                    raise EngineBugError("a request has a grammar and this engine has nothing to read it with")
                self._grammars[member.request_id] = self._compiled.start(member.sampling.grammar)
        self.prompts.start(request)

    def gave_up(self, request_id: str) -> bool:
        """Whether a request's grammar became too complex to follow."""
        state = self._grammars.get(request_id)
        return state is not None and state.is_given_up

    def free(self, request_ids: Iterable[str]) -> None:
        """Drops the state of requests that have ended."""
        for request_id in request_ids:
            self._grammars.pop(request_id, None)
            self._histories.pop(request_id, None)
            self.prompts.free(request_id)

    def sample(
        self, logits: torch.Tensor, requests: Sequence[Request], choose: Chooser | None = None
    ) -> list[SampledToken]:
        """Chooses the next token of each request.

        Args:
            logits: [num_rows, vocab_size] in any float dtype; may be changed in place.
            requests: one per row.
            choose: chooses the tokens, from scores that are final; None for `choose_on_host`.

        Returns:
            One token per row, with its log-probability and with candidates if the request asked for them.
        """
        if choose is None and all_plain(requests):
            return list(map(SampledToken, argmax(logits).tolist()))
        scores = logits.float().contiguous()
        reporting = [row for row, request in enumerate(requests) if request.sampling.logprobs is not None]
        unchanged = scores[reporting] if reporting else None
        listing = [row for row, request in enumerate(requests) if request.sampling.num_candidates]
        if listing:
            scores[listing] = _log_probs(scores[listing])
        # Same order as in Transformers and vLLM: bias, then penalties.
        add_bias(scores, requests)
        penalise(scores, requests, self._histories)
        add_watermark(scores, requests)
        forbid_early_stops(scores, requests)
        forbid_by_grammar(scores, requests, self._grammars)
        sampled = [SampledToken(token) for token in (choose or choose_on_host)(scores, requests)]
        best = _best_tokens(scores, requests, listing) if listing else {}
        tokens = {row: [SampledToken(token) for token, _ in pairs] for row, pairs in best.items()}
        if unchanged is not None:
            num_alternatives = [requests[row].sampling.logprobs or 0 for row in reporting]
            chosen = [[token.token_id for token in tokens.get(row, sampled[row : row + 1])] for row in reporting]
            for row, reports in zip(reporting, reported(unchanged, chosen, num_alternatives), strict=True):
                sampled[row], tokens[row] = reports[0], reports
        for row, pairs in best.items():
            candidates = tuple(
                Candidate(token, log_prob) for token, (_, log_prob) in zip(tokens[row], pairs, strict=True)
            )
            sampled[row] = msgspec.structs.replace(sampled[row], candidates=candidates)
        return sampled


def _log_probs(scores: torch.Tensor) -> torch.Tensor:
    """Log-probabilities; NaN from the model becomes the lowest number, so that there are always candidates."""
    return torch.nan_to_num(scores.log_softmax(dim=-1), nan=torch.finfo(scores.dtype).min, neginf=float("-inf"))


def _best_tokens(
    scores: torch.Tensor, requests: Sequence[Request], rows: Sequence[int]
) -> dict[int, tuple[tuple[int, float], ...]]:
    """The best tokens of some rows and their log-probabilities, by row."""
    counts = [requests[row].sampling.num_candidates for row in rows]
    best = best_of_rows(scores[list(rows)], counts, np.zeros(len(rows), np.float32))
    return dict(zip(rows, best, strict=True))


def choose_on_host(scores: torch.Tensor, requests: Sequence[Place]) -> list[int]:
    """Token ids, from final scores, float32 [num_rows, vocab_size]."""
    drawn = [row for row, request in enumerate(requests) if not request.sampling.is_greedy]
    tokens = argmax(scores).tolist() if len(drawn) < len(requests) else [0] * len(requests)
    if not drawn:
        return tokens
    numbers = uniforms([requests[row].sampling.seed for row in drawn], [requests[row].num_sampled for row in drawn])
    # If few rows draw, a copy of them is cheaper than a pass over all.
    is_few = len(drawn) * _FEW < len(requests)
    blocked = BlockedScores(scores[drawn]) if is_few else BlockedScores(scores).of(np.array(drawn))
    params = [requests[row].sampling for row in drawn]
    for is_truncated, choose in ((True, draw_truncated), (False, draw)):
        matching = [place for place, sampling in enumerate(params) if sampling.is_truncated is is_truncated]
        places = np.array(matching, np.int64)
        if len(places):
            chosen = choose(blocked.of(places), [params[place] for place in places], numbers[places])
            for place, token in zip(places, chosen.tolist(), strict=True):
                tokens[drawn[place]] = token
    return tokens
