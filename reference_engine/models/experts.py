"""A mixture of experts (arXiv 1701.06538): a router sends each token to a few of many feed-forward networks.

Tokens are gathered per expert, without padding or a capacity limit, so that a token's result does not depend on the
rest of the batch.
"""

import torch

from bakeoff.reference_engine.models.config_readers import MoeConfig
from bakeoff.reference_engine.models.mlp import GatedMlp
from bakeoff.reference_engine.models.names import LLAMA_PARTS
from bakeoff.reference_engine.models.weights import Weights


class Experts:
    """The experts of one layer; a `FeedForward`.

    Args:
        config: shapes and constants.
        weights: of the model.
        prefix: of the names of their matrices.
        parts: names of an expert's gate, up and down matrices.
    """

    def __init__(
        self, config: MoeConfig, weights: Weights, prefix: str, *, parts: tuple[str, str, str] = LLAMA_PARTS
    ) -> None:
        self._config = config
        # In float32: rounding would choose between experts with nearly equal scores, differently in each batch.
        self._router = weights.router(f"{prefix}gate.weight")
        self._experts = [GatedMlp(weights, f"{prefix}experts.{i}.", parts=parts) for i in range(config.num_experts)]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """See `FeedForward`; `order` sorts tokens by expert."""
        shares, chosen = self._route(rows)
        order = chosen.flatten().argsort(stable=True)
        tokens, shares = order // chosen.shape[1], shares.flatten()[order, None]
        counts = chosen.flatten().bincount(minlength=len(self._experts)).tolist()
        total = torch.zeros(rows.shape, dtype=torch.float32, device=rows.device)
        first = 0
        for expert, count in zip(self._experts, counts, strict=True):
            if count:
                chosen_tokens = tokens[first : first + count]
                total.index_add_(0, chosen_tokens, expert(rows[chosen_tokens]) * shares[first : first + count])
            first += count
        return total.to(rows.dtype)

    def _route(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows [num_tokens, hidden_size] -> weights (float32) and indices of experts, both [num_tokens, chosen]."""
        config = self._config
        rates = self._router(rows.float()).softmax(dim=-1)
        if config.topk_group < config.n_group:
            groups = rates.unflatten(1, (config.n_group, -1))
            best = groups.amax(dim=-1).topk(config.topk_group, dim=-1).indices
            dropped = torch.ones(groups.shape[:2], dtype=torch.bool, device=rows.device).scatter_(1, best, False)
            rates = groups.masked_fill(dropped[:, :, None], 0.0).flatten(1)
        shares, chosen = rates.topk(config.num_experts_per_tok, dim=-1)
        if config.norm_topk_prob:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        return shares * config.routed_scaling_factor, chosen
