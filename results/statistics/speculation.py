"""Expected gain of speculative decoding if drafts are accepted independently of each other.

Source: Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, arXiv:2211.17192.
"""

_PRECISION = 1e-9


def expected_tokens(acceptance: float, drafts: float) -> float:
    """Mean number of tokens per verification, the verifier's own included: (1 − a^(k+1)) / (1 − a), equation 1.

    Args:
        acceptance: a, probability that a draft is accepted if those before it were; 0 to 1.
        drafts: k, drafts per verification; a mean need not be whole.
    """
    if acceptance >= 1:
        return drafts + 1
    return (1 - acceptance ** (drafts + 1)) / (1 - acceptance)


def speed_up(acceptance: float, drafts: float, cost: float = 0.0) -> float:
    """Expected time without speculation over that with it: (1 − a^(k+1)) / ((1 − a)(k c + 1)), theorem 3.8.

    It assumes that a verification takes as long as a step without drafts.

    Args:
        acceptance: a, as for :func:`expected_tokens`.
        drafts: k, as there.
        cost: c, time of one draft as a fraction of a step of the verifying model.
    """
    return expected_tokens(acceptance, drafts) / (drafts * cost + 1)


def acceptance_of(tokens: float, drafts: float) -> float:
    """The a with this mean number of tokens per verification, the inverse of :func:`expected_tokens`; 0 to 1.

    Args:
        tokens: 1 to k + 1; a value outside counts as the nearer end.
        drafts: k, above 0.
    """
    low, high = 0.0, 1.0
    while high - low > _PRECISION:
        middle = (low + high) / 2
        if expected_tokens(middle, drafts) < tokens:
            low = middle
        else:
            high = middle
    return (low + high) / 2
