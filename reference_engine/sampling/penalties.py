"""Repetition, presence and frequency penalties, for all rows of a batch in one gather and one scatter.

Repetition (CTRL, arXiv 1909.05858) divides positive and multiplies negative scores of every token in prompt and output.
Presence (once) and frequency (per occurrence) are subtracted for tokens in the output. Transformers and vLLM do the
same, in this order.
"""

from collections.abc import Sequence

import numpy as np
import torch

from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.sampling.history import TokenHistory


def penalise(scores: torch.Tensor, requests: Sequence[Request], histories: dict[str, TokenHistory]) -> None:
    """Applies each request's penalties to its row.

    Args:
        scores: float32 [num_rows, vocab_size], contiguous; changed in place.
        requests: one per row.
        histories: by request id; updated for the requests with penalties.
    """
    rows = [row for row, request in enumerate(requests) if request.sampling.has_penalties]
    if not rows:
        return
    penalised = [_history(requests[row], histories) for row in rows]
    lengths = [len(history.tokens) for history in penalised]
    starts = np.repeat(np.array(rows, np.int64) * scores.shape[1], lengths)
    settings = [
        (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        for sampling in (requests[row].sampling for row in rows)
    ]
    repetition, presence, frequency = np.repeat(np.array(settings, np.float32), lengths, axis=0).T
    counts = np.concatenate([history.counts for history in penalised])
    fixed = frequency * counts + presence * (counts > 0)

    flat, device = scores.view(-1), scores.device
    places = torch.from_numpy(starts + np.concatenate([history.tokens for history in penalised])).to(device)
    factor = torch.from_numpy(repetition.copy()).to(device)
    values = flat[places]
    flat[places] = torch.where(values > 0, values / factor, values * factor) - torch.from_numpy(fixed).to(device)


def _history(request: Request, histories: dict[str, TokenHistory]) -> TokenHistory:
    """The history of a request, up to date."""
    history = histories.get(request.request_id)
    if history is None:
        counts_prompt = request.sampling.repetition_penalty != 1.0
        history = TokenHistory(request.token_ids[: request.prompt_len] if counts_prompt else ())
        histories[request.request_id] = history
    history.follow(request.token_ids, request.prompt_len)
    return history
