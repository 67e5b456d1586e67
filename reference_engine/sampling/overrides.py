"""Changes to single tokens' scores: logit bias, stop tokens before `min_tokens`, and grammars.

Grammars give one bit per token, and one masked fill applies those of all rows.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from bakeoff.reference_engine.core.request import Request
from bakeoff.reference_engine.sampling.grammar import GrammarState

_WORD = 32  # bits


def add_bias(scores: torch.Tensor, requests: Sequence[Request]) -> None:
    """Adds each request's logit bias to its row of float32 [num_rows, vocab_size], in place."""
    biased = [(row, request.sampling.logit_bias) for row, request in enumerate(requests) if request.sampling.logit_bias]
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
    """Makes stop tokens impossible in the rows [num_rows, vocab_size] whose requests must continue, in place."""
    early = [
        (row, token)
        for row, request in enumerate(requests)
        if request.num_output < request.sampling.min_tokens
        for token in request.sampling.stop_token_ids
    ]
    if early:
        rows, tokens = torch.tensor(early, device=scores.device).T
        scores[rows, tokens] = float("-inf")


def forbid_by_grammar(scores: torch.Tensor, requests: Sequence[Request], grammars: Mapping[str, GrammarState]) -> None:
    """Sets the scores of tokens that a request's grammar does not allow to minus infinity.

    Args:
        scores: [num_rows, vocab_size]; changed in place.
        requests: one per row.
        grammars: by request id; they consume the new tokens.
    """
    if not grammars:
        return
    bound = [
        (row, request, grammars[request.request_id])
        for row, request in enumerate(requests)
        if request.request_id in grammars
    ]
    if not bound:
        return
    size = scores.shape[1]
    words = np.zeros((len(bound), -(-size // _WORD)), np.int32)
    for mask, (_, request, grammar) in zip(words, bound, strict=True):
        grammar.follow(request.token_ids, request.prompt_len)
        grammar.fill(mask)
    bits = np.unpackbits(~words.view(np.uint8), axis=-1, count=size, bitorder="little")
    forbidden = torch.from_numpy(bits.view(np.bool_)).to(scores.device)
    if len(bound) == len(requests):
        scores.masked_fill_(forbidden, float("-inf"))
        return
    rows = torch.tensor([row for row, _, _ in bound], device=scores.device)
    scores[rows] = scores[rows].masked_fill_(forbidden, float("-inf"))
