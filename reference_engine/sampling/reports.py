"""Log-probabilities for the client, under the model alone: before any mask, penalty or temperature."""

from collections.abc import Sequence

import numpy as np
import torch

from reference_engine.outputs import SampledToken
from reference_engine.sampling.blocks import BlockedScores
from reference_engine.sampling.ranking import rank, top_k_floors


def reported(logits: torch.Tensor, tokens: Sequence[int], alternatives: Sequence[int]) -> list[SampledToken]:
    """Chosen tokens with their log-probabilities.

    Args:
        logits: float32 [num_rows, vocab_size] as the model made them.
        tokens: what was chosen in each row.
        alternatives: how many of the likeliest tokens each row wants beside it.

    Returns:
        One per row.
    """
    norms = logits.logsumexp(dim=-1).cpu().numpy()
    chosen = logits[torch.arange(len(tokens)), torch.tensor(tokens)].cpu().numpy() - norms
    best = _best(logits, alternatives, norms) if any(alternatives) else [()] * len(tokens)
    return list(map(SampledToken, tokens, chosen.tolist(), best))


def _best(
    logits: torch.Tensor, wanted: Sequence[int], norms: np.ndarray[tuple[int], np.dtype[np.float32]]
) -> list[tuple[tuple[int, float], ...]]:
    blocked = BlockedScores(logits)
    ks = np.minimum(np.array(wanted), blocked.vocab_size)
    floors = np.where(ks > 0, top_k_floors(blocked, ks), np.float32(np.inf))
    ranked = rank(blocked, floors)
    width = int(ks.max())
    tokens = ranked.tokens[:, :width].tolist()
    values = (ranked.scores[:, :width] - norms[:, None]).tolist()
    return [tuple(zip(ids[:k], logs[:k], strict=True)) for ids, logs, k in zip(tokens, values, ks, strict=True)]
