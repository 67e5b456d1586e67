"""Log-probabilities of prompt tokens (teacher forcing), gathered chunk by chunk while prompts are computed."""

import itertools
from collections.abc import Callable, Iterable, Sequence

import torch

from bakeoff.reference_engine.core.outputs import PromptLogprob
from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.sampling.reports import reported

Position = tuple[Request, int]
"""A request and the index of a token of its prompt whose successor is also in the prompt."""


class PromptScores:
    """The scores so far of the prompts whose log-probabilities were requested."""

    def __init__(self) -> None:
        self._scores: dict[str, list[PromptLogprob]] = {}

    def start(self, request: Request) -> None:
        """Starts scoring a request's prompt, if requested. Siblings have the same prompt and are not started."""
        if request.sampling.prompt_logprobs is not None:
            self._scores[request.request_id] = []

    def free(self, request_id: str) -> None:
        """Drops a request's scores."""
        self._scores.pop(request_id, None)

    def missing(self, request: Request, start: int, end: int) -> range:
        """The positions of a chunk that must be scored; a request that is computed again has some scores already.

        Args:
            request: any request.
            start: of the chunk; earlier positions have been scored.
            end: of the chunk.
        """
        scores = self._scores.get(request.request_id)
        if scores is None:
            return range(0)
        return range(max(start, len(scores)), min(end, request.prompt_len - 1))

    def read(self, logits: torch.Tensor, positions: Sequence[Position]) -> None:
        """Scores the successors of positions; each request's come in order.

        Args:
            logits: [len(positions), vocab_size] in any float dtype.
            positions: from `missing`.
        """
        tokens = [request.token_ids[position + 1] for request, position in positions]
        counts = [request.sampling.prompt_logprobs or 0 for request, _ in positions]
        for (request, _), score in zip(positions, prompt_logprobs(logits, tokens, counts), strict=True):
            self._scores[request.request_id].append(score)

    def reader(self, positions: Iterable[Position]) -> Callable[[torch.Tensor], None]:
        """A function that `read`s the logits of all positions of a step, some rows at a time."""
        rest = iter(positions)
        return lambda logits: self.read(logits, list(itertools.islice(rest, len(logits))))

    def take(self, request_id: str) -> tuple[PromptLogprob, ...] | None:
        """Returns the scores of a computed prompt, once; None if they were not requested."""
        scores = self._scores.pop(request_id, None)
        return None if scores is None else tuple(scores)


def prompt_logprobs(logits: torch.Tensor, tokens: Sequence[int], alternatives: Sequence[int]) -> list[PromptLogprob]:
    """Log-probabilities and ranks of given tokens.

    Args:
        logits: [num_rows, vocab_size] in any float dtype.
        tokens: one of each row.
        alternatives: number of likeliest tokens that each row needs besides it.
    """
    scores = logits.float().contiguous()
    ids = torch.tensor(tokens, device=scores.device)[:, None]
    own = scores.gather(1, ids)
    is_smaller_id = torch.arange(scores.shape[1], device=ids.device) < ids
    before = ((scores > own) | ((scores == own) & is_smaller_id)).sum(dim=-1)
    return [
        PromptLogprob(token.token_id, token.logprob or 0.0, 1 + count, token.alternatives)
        for (token,), count in zip(reported(scores, [[t] for t in tokens], alternatives), before.tolist(), strict=True)
    ]
