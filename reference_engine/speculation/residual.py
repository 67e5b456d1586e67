"""Residual rejection: turns drafts drawn from a draft model's distribution q into draws from the model's own, p.

A draft x is accepted with probability min(1, p(x) / q(x)); a rejected one is replaced by a token drawn from
max(p - q, 0), scaled up to 1. Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318. The answer has the
same distribution as without drafts, but it is another answer.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from bakeoff.reference_engine.core.request import SamplingParams
from bakeoff.reference_engine.sampling.places import Place
from bakeoff.reference_engine.sampling.uniform import uniforms

Distribution = NDArray[np.float64]
"""Probabilities of all tokens, [vocab_size]."""
_OF_DRAFTS, _OF_ACCEPTANCE = 1, 2  # streams of random numbers; 0 is that of tokens


def distribution(scores: NDArray[np.float32], sampling: SamplingParams) -> Distribution:
    """The distribution of a token: temperature, then min-p, top-k and top-p as in `truncation.py`.

    Args:
        scores: [vocab_size], after penalties, biases and grammars.
        sampling: its temperature is above 0.
    """
    order = np.argsort(-scores, kind="stable")  # among equal scores, the lower id first
    with np.errstate(invalid="ignore"):  # if every token is forbidden
        weights = np.exp((scores[order].astype(np.float64) - scores.max()) / sampling.temperature)
    total = weights.sum()
    weights[weights < sampling.min_p] = 0.0
    if sampling.top_k:
        weights[sampling.top_k :] = 0.0
    if sampling.top_k or sampling.min_p:
        total = weights.sum()
    weights[weights.cumsum() - weights >= sampling.top_p * total] = 0.0
    probabilities = np.zeros(len(scores))
    probabilities[order] = weights / weights.sum()
    return probabilities


def draw(probabilities: Distribution, uniform: float) -> int:
    """The token at a point in [0, 1) of a distribution, which need not add up to 1."""
    cumulative = probabilities.cumsum()
    token = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return min(token, int(probabilities.nonzero()[0][-1]))


def draw_drafts(logits: torch.Tensor, places: Sequence[Place]) -> tuple[list[int], list[Distribution | None]]:
    """A draft for each place and its distribution; None in greedy decoding, where the draft is the likeliest token.

    Args:
        logits: of the draft model: [places, vocab_size].
        places: where the drafts are.
    """
    tokens = logits.argmax(dim=-1).tolist()
    origins: list[Distribution | None] = [None] * len(places)
    drawn = [row for row, place in enumerate(places) if not place.sampling.is_greedy]
    numbers = _uniforms([places[row] for row in drawn], _OF_DRAFTS)
    scores = logits.float().cpu().numpy()
    for row, number in zip(drawn, numbers, strict=True):
        origins[row] = origin = distribution(scores[row], places[row].sampling)
        tokens[row] = draw(origin, number)
    return tokens, origins


def accept_or_redraw(scores: torch.Tensor, place: Place, guess: int, origin: Distribution) -> int:
    """The draft, or the token that replaces it.

    Args:
        scores: of the verifying model, [vocab_size], after penalties, biases and grammars.
        place: where the draft is.
        guess: the draft.
        origin: the distribution of the draft.
    """
    goal = distribution(scores.cpu().numpy(), place.sampling)
    (number,) = _uniforms([place], _OF_ACCEPTANCE)
    if number * origin[guess] < goal[guess]:
        return guess
    residual = np.maximum(goal - origin, 0.0)
    (number,) = _uniforms([place], 0)
    return draw(residual if residual.any() else goal, number)


def _uniforms(places: Sequence[Place], stream: int) -> list[float]:
    seeds, counts = [place.sampling.seed for place in places], [place.num_sampled for place in places]
    return uniforms(seeds, counts, stream).tolist()
