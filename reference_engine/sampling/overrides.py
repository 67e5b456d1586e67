"""Single tokens whose scores a request changes or forbids: logit bias, and stop tokens before `min_tokens`."""

from collections.abc import Sequence

import torch

from reference_engine.request import Request


def add_bias(scores: torch.Tensor, requests: Sequence[Request]) -> None:
    """Adds each request's logit bias to its row of float32 [num_rows, vocab_size], in place."""
    biased = [(row, one.sampling.logit_bias) for row, one in enumerate(requests) if one.sampling.logit_bias]
    if not biased:
        return
    rows = [row for row, bias in biased for _ in bias]
    tokens = [token for _, bias in biased for token in bias]
    values = [value for _, bias in biased for value in bias.values()]
    device = scores.device
    scores[torch.tensor(rows, device=device), torch.tensor(tokens, device=device)] += torch.tensor(
        values, dtype=scores.dtype, device=device
    )


def forbid_early_stops(scores: torch.Tensor, requests: Sequence[Request]) -> None:
    """Makes stop tokens impossible in the rows [num_rows, vocab_size] whose requests must go on, in place."""
    early = [
        (row, token)
        for row, request in enumerate(requests)
        if request.num_output < request.sampling.min_tokens
        for token in request.sampling.stop_token_ids
    ]
    if early:
        rows, tokens = torch.tensor(early, device=scores.device).T
        scores[rows, tokens] = float("-inf")
