"""Log-probabilities for the client, from the model alone: before any mask, penalty or temperature."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from bakeoff.reference_engine.core.outputs import SampledToken
from bakeoff.reference_engine.sampling.blocks import BlockedScores
from bakeoff.reference_engine.sampling.ranking import rank, top_k_floors


def reported(
    logits: torch.Tensor, tokens: Sequence[Sequence[int]], alternatives: Sequence[int]
) -> list[list[SampledToken]]:
    """Chosen tokens with their log-probabilities.

    Args:
        logits: float32 [num_rows, vocab_size], as computed by the model.
        tokens: chosen in each row: one, or the candidates of a beam.
        alternatives: number of likeliest tokens that each row needs besides each chosen one.

    Returns:
        For each row, one entry per token.
    """
    norms = logits.logsumexp(dim=-1).cpu().numpy()
    best = best_of_rows(logits, alternatives, norms) if any(alternatives) else [()] * len(tokens)
    rows = [row for row, chosen in enumerate(tokens) for _ in chosen]
    flat = [token for chosen in tokens for token in chosen]
    values = iter((logits[torch.tensor(rows), torch.tensor(flat)].cpu().numpy() - norms[rows]).tolist())
    return [
        [SampledToken(token, next(values), beside) for token in chosen]
        for chosen, beside in zip(tokens, best, strict=True)
    ]


def best_of_rows(
    scores: torch.Tensor, counts: Sequence[int], norms: NDArray[np.float32]
) -> list[tuple[tuple[int, float], ...]]:
    """The best tokens of each row with their log-probabilities, best first.

    Args:
        scores: float32 [num_rows, vocab_size]; minus infinity for forbidden tokens, which are left out.
        counts: number of tokens of each row.
        norms: [num_rows]; subtracted from the scores, it gives log-probabilities.
    """
    blocked = BlockedScores(scores)
    ks = np.minimum(np.array(counts), blocked.vocab_size)
    floors = np.where(ks > 0, top_k_floors(blocked, ks), np.float32(np.inf))
    ranked = rank(blocked, floors)
    width = int(ks.max())
    tokens = ranked.tokens[:, :width].tolist()
    values = (ranked.scores[:, :width] - norms[:, None]).tolist()
    ks = np.minimum(ks, ranked.counts)
    return [
        tuple(zip(ids[:k], log_probs[:k], strict=True)) for ids, log_probs, k in zip(tokens, values, ks, strict=True)
    ]
