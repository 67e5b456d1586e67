"""Forbids what grammars do not allow next: one bit per token from each grammar, one masked fill for all rows."""

from collections.abc import Sequence

import numpy as np
import torch

from reference_engine.request import Request

_WORD = 32  # bits


def forbid_by_grammar(scores: torch.Tensor, requests: Sequence[Request]) -> None:
    """Makes impossible, in the rows of requests with a grammar, every token that it does not allow.

    Args:
        scores: [num_rows, vocab_size]; changed in place.
        requests: one per row; their grammars take in the tokens that are new.
    """
    bound = [(row, one, one.grammar) for row, one in enumerate(requests) if one.grammar is not None]
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
