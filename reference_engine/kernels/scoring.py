"""How the weights of attention follow from the products of queries and keys, beside causality and windows."""

from typing import NamedTuple

import torch


class Scoring(NamedTuple):
    """The options of a layer.

    Attributes:
        scale: factor on the products; None for 1/√key_dim.
        soft_cap: c in c · tanh(score / c), a bound of scores (Gemma 2, arXiv 2408.00118, section 2); None for none.
        sinks: float32 [num_heads], for each head the learned score of a token without a value, which takes its share
            of the softmax (gpt-oss, arXiv 2508.10925); None for none.
    """

    scale: float | None = None
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether stock operators compute it."""
        return self.soft_cap is None and self.sinks is None

    def factor(self, key_dim: int) -> float:
        """The factor on products of queries and keys of `key_dim` elements."""
        return key_dim**-0.5 if self.scale is None else self.scale

    def weights(self, scores: torch.Tensor, mask: torch.Tensor, group_dim: int) -> torch.Tensor:
        """Weights of values.

        Args:
            scores: float32, products of queries and keys times `factor`; the last dimension is the keys'. Changed in
                place.
            mask: broadcasts to them; -inf where a key is invisible, else 0.
            group_dim: dimension of the heads that share keys; the one before it is that of the keys' heads.

        Returns:
            As `scores`; those of a row sum to 1, or to less with sinks.
        """
        if self.soft_cap is not None:
            scores = capped(scores, self.soft_cap)
        scores = scores + mask
        if self.sinks is None:
            return scores.softmax(dim=-1)
        shape = [1] * scores.dim()
        shape[group_dim - 1 : group_dim + 1] = scores.shape[group_dim - 1 : group_dim + 1]
        sinks = self.sinks.view(shape).expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sinks), dim=-1).softmax(dim=-1)[..., :-1]


PLAIN = Scoring()
"""The softmax of the products divided by √key_dim (arXiv 1706.03762, eq. 1)."""


def capped(scores: torch.Tensor, cap: float) -> torch.Tensor:
    """Cap · tanh(scores / cap), in place."""
    return scores.div_(cap).tanh_().mul_(cap)
