"""From logits to tokens, for a whole batch: change the scores, choose, report.

Rows that ask for the same kind of thing are computed in one call, and what nobody asks for is not computed at all. No
row's token depends on the other rows: the same seed gives the same tokens in any company.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import torch

from reference_engine.engine.grammar import Grammars, GrammarState
from reference_engine.engine.outputs import Continuation, SampledToken
from reference_engine.engine.request import Request
from reference_engine.errors import EngineBugError
from reference_engine.kernels.cpu import best_kernels
from reference_engine.sampling.blocks import BlockedScores
from reference_engine.sampling.drawing import draw
from reference_engine.sampling.history import TokenHistory
from reference_engine.sampling.overrides import add_bias, forbid_by_grammar, forbid_early_stops
from reference_engine.sampling.penalties import penalise
from reference_engine.sampling.reports import best_of_rows, reported
from reference_engine.sampling.truncation import draw_truncated
from reference_engine.sampling.uniform import uniforms

_FEW = 4  # of so many rows


def all_plain(requests: Sequence[Request]) -> bool:
    """Whether nobody wants anything but the likeliest token."""
    return all(request.sampling.is_plain for request in requests)


def most_likely(logits: torch.Tensor) -> list[SampledToken]:
    """What `Sampler.sample` gives where `all_plain` is true: the largest of each row, the first of equals."""
    return list(map(SampledToken, _argmax(logits)))


class Sampler:
    """Chooses tokens, and keeps what that takes of each request: its place in its grammar, the tokens it has seen.

    Args:
        grammars: compile those of requests; None where no request may have one.
    """

    def __init__(self, grammars: Grammars | None = None) -> None:
        self._compiled = grammars
        self._grammars: dict[str, GrammarState] = {}
        self._histories: dict[str, TokenHistory] = {}

    def start(self, request: Request) -> None:
        """Compiles the grammars of a request and its siblings, where they have one.

        Raises:
            EngineBugError: there is a grammar and nothing to compile it with.
        """
        for member in (request, *request.siblings):
            if member.sampling.grammar is not None:
                if self._compiled is None:
                    raise EngineBugError("a request has a grammar and this engine has nothing to read it with")
                self._grammars[member.request_id] = self._compiled.start(member.sampling.grammar)

    def free(self, request_ids: Iterable[str]) -> None:
        """Forgets requests that have ended."""
        for request_id in request_ids:
            self._grammars.pop(request_id, None)
            self._histories.pop(request_id, None)

    def sample(self, logits: torch.Tensor, requests: Sequence[Request]) -> list[SampledToken]:
        """Chooses the next token of each request.

        Args:
            logits: [num_rows, vocab_size] in any float dtype; of no use afterwards, they may be changed in place.
            requests: one per row.

        Returns:
            One token per row, with its log-probability where the request asked for it, and with all continuations that
            may matter where the request is a beam.
        """
        if all_plain(requests):
            return most_likely(logits)
        scores = logits.float().contiguous()
        telling = [row for row, request in enumerate(requests) if request.sampling.logprobs is not None]
        unchanged = scores[telling] if telling else None
        beams = [row for row, request in enumerate(requests) if request.sampling.beams is not None]
        if beams:
            scores[beams] = _log_probs(scores[beams])
        # Transformers' order and vLLM's: bias, then penalties.
        add_bias(scores, requests)
        penalise(scores, requests, self._histories)
        forbid_early_stops(scores, requests)
        forbid_by_grammar(scores, requests, self._grammars)
        tokens = _choose(scores, requests)
        ways = _ways(scores, requests, beams) if beams else {}
        sampled = [SampledToken(token) for token in tokens]
        among = {row: [SampledToken(token) for token, _ in found] for row, found in ways.items()}
        if unchanged is not None:
            wanted = [requests[row].sampling.logprobs or 0 for row in telling]
            chosen = [[one.token_id for one in among.get(row, sampled[row : row + 1])] for row in telling]
            for row, told in zip(telling, reported(unchanged, chosen, wanted), strict=True):
                sampled[row], among[row] = told[0], told
        for row, found in ways.items():
            continuations = tuple(Continuation(one, value) for one, (_, value) in zip(among[row], found, strict=True))
            sampled[row] = msgspec.structs.replace(sampled[row], continuations=continuations)
        return sampled


def _log_probs(scores: torch.Tensor) -> torch.Tensor:
    """What beams add up. A model that computes NaN must not leave a search without beams that anybody waits for."""
    return torch.nan_to_num(scores.log_softmax(dim=-1), nan=torch.finfo(scores.dtype).min, neginf=float("-inf"))


def _ways(
    scores: torch.Tensor, requests: Sequence[Request], beams: Sequence[int]
) -> dict[int, tuple[tuple[int, float], ...]]:
    """The best continuations of each beam and their log-probabilities, by its row."""
    wanted = [requests[row].sampling.num_continuations for row in beams]
    best = best_of_rows(scores[list(beams)], wanted, np.zeros(len(beams), np.float32))
    return dict(zip(beams, best, strict=True))


def _argmax(scores: torch.Tensor) -> list[int]:
    return best_kernels(scores.device, scores.dtype).argmax(scores)


def _choose(scores: torch.Tensor, requests: Sequence[Request]) -> list[int]:
    """Token ids, from scores that nothing changes any more."""
    drawn = [row for row, request in enumerate(requests) if not request.sampling.is_greedy]
    tokens = _argmax(scores) if len(drawn) < len(requests) else [0] * len(requests)
    if not drawn:
        return tokens
    numbers = uniforms([requests[row].sampling.seed for row in drawn], [requests[row].num_output for row in drawn])
    # Where few rows draw, a copy of them is cheaper than a pass over all.
    is_few = len(drawn) * _FEW < len(requests)
    blocked = BlockedScores(scores[drawn]) if is_few else BlockedScores(scores).of(np.array(drawn))
    params = [requests[row].sampling for row in drawn]
    for is_truncated, choose in ((True, draw_truncated), (False, draw)):
        places = np.array([place for place, one in enumerate(params) if one.is_truncated is is_truncated], np.int64)
        if len(places):
            chosen = choose(blocked.of(places), [params[place] for place in places], numbers[places])
            for place, token in zip(places, chosen.tolist(), strict=True):
                tokens[drawn[place]] = token
    return tokens
