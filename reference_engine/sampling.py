"""From logits to tokens: greedy in one call for the whole batch, everything else row by row.

A request draws exactly one uniform number per token from its own generator and inverts the cumulative distribution.
No row's result depends on what the other rows ask for, so the same seed gives the same tokens in any company.
"""

from collections.abc import Sequence

import torch

from reference_engine.request import Request, SampledToken

_NUCLEUS_GUESS = 1024  # tokens; top-p rarely needs more, and taking 1024 is far cheaper than sorting a vocabulary


def sample(logits: torch.Tensor, requests: Sequence[Request]) -> list[SampledToken]:
    """Chooses the next token of each request.

    Args:
        logits: [num_requests, vocab_size] in any float dtype; changed in place where min_tokens forbids a stop token.
        requests: one per row; their generators advance.

    Returns:
        One token per row, with its log-probability where the request asked for it.
    """
    logprobs = _wanted_logprobs(logits, requests)
    _forbid_early_stops(logits, requests)
    chosen = _most_likely_token(logits)
    for row, request in enumerate(requests):
        if not request.sampling.is_greedy:
            chosen[row] = _draw(logits[row].float(), request)
    return [SampledToken(token, _lookup(logprobs.get(row), token)) for row, token in enumerate(chosen)]


def _most_likely_token(logits: torch.Tensor) -> list[int]:
    """Per row of [num_requests, vocab_size] the id of the largest logit, the first of equals."""
    if logits.device.type == "cpu":
        # NumPy's argmax is vectorised (17 µs for 8 rows of 49152 here); torch's takes 660 µs on bf16.
        return logits.float().numpy().argmax(axis=-1).tolist()
    return logits.argmax(dim=-1).tolist()


def _wanted_logprobs(logits: torch.Tensor, requests: Sequence[Request]) -> dict[int, torch.Tensor]:
    """Log-probabilities [vocab_size] of the rows that asked, under the model alone: before any mask or temperature."""
    rows = [row for row, request in enumerate(requests) if request.sampling.logprobs]
    return {row: logits[row].float().log_softmax(dim=-1) for row in rows}


def _lookup(logprobs: torch.Tensor | None, token: int) -> float | None:
    return None if logprobs is None else float(logprobs[token])


def _forbid_early_stops(logits: torch.Tensor, requests: Sequence[Request]) -> None:
    for row, request in enumerate(requests):
        params = request.sampling
        if params.stop_token_ids and request.num_output < params.min_tokens:
            logits[row, list(params.stop_token_ids)] = float("-inf")


def _draw(logits: torch.Tensor, request: Request) -> int:
    """One token from float32 logits [vocab_size]."""
    params = request.sampling
    scaled = logits / params.temperature
    if params.top_p >= 1.0 and not params.top_k:
        return _invert(torch.softmax(scaled, dim=-1), request)
    probabilities, tokens = _most_likely(scaled, params.top_k, params.top_p)
    return int(tokens[_invert(probabilities, request)])


def _most_likely(scaled: torch.Tensor, top_k: int, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and ids, most likely first, of the tokens that top-k and then top-p (nucleus) keep.

    Top-k: arXiv 1805.04833. Nucleus: arXiv 1904.09751; the token that crosses the threshold is kept.
    """
    size = scaled.shape[-1]
    width = min(top_k or _NUCLEUS_GUESS, size)
    values, tokens = scaled.topk(width)
    total = torch.logsumexp(values if top_k else scaled, dim=-1)
    probabilities = (values - total).exp()
    if not top_k and width < size and float(probabilities.sum()) < top_p:
        values, tokens = scaled.sort(descending=True)
        probabilities = (values - total).exp()
    before = probabilities.cumsum(dim=-1) - probabilities
    keep = max(1, int((before < top_p).sum()))
    return probabilities[:keep], tokens[:keep]


def _invert(probabilities: torch.Tensor, request: Request) -> int:
    """Index of the first cumulative probability above one uniform draw; probabilities need not add up to 1."""
    if request.random_state is None:
        request.random_state = torch.Generator().manual_seed(request.sampling.seed)
    uniform = torch.rand((), generator=request.random_state, dtype=torch.float64).item()
    # float64: over a vocabulary of 10^5 tokens a float32 sum is off by more than an unlikely token's probability.
    cumulative = probabilities.double().cumsum(dim=-1)
    index = torch.searchsorted(cumulative, cumulative[-1] * uniform, right=True)
    return min(int(index), probabilities.shape[-1] - 1)
