"""A mixture of experts (arXiv 1701.06538): a router sends each token to a few of many feed-forward networks.

Tokens are gathered per expert, without padding or a capacity limit, so that a token's result does not depend on the
rest of the batch.
"""

import dataclasses

import torch

from reference_engine.errors import CheckpointError
from reference_engine.models.config import ModelConfig
from reference_engine.models.mlp import LLAMA_PARTS, GatedMlp
from reference_engine.models.weights import Weights


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig(ModelConfig):
    """Config of a decoder with experts.

    Attributes:
        num_experts: experts per layer.
        num_experts_per_tok: experts per token.
        moe_intermediate_size: intermediate size of an expert.
        norm_topk_prob: whether the chosen experts' probabilities are normalised to sum to 1.
        dense_layers: indices of layers without experts.
        routed_scaling_factor: factor on the experts' sum.
        n_group: groups of consecutive experts.
        topk_group: groups to choose from: those with the best expert.
    """

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    dense_layers: frozenset[int] = frozenset()
    routed_scaling_factor: float = 1.0
    n_group: int = 1
    topk_group: int = 1

    def __post_init__(self) -> None:
        ModelConfig.__post_init__(self)
        choice = self.num_experts // self.n_group * self.topk_group
        if self.num_experts % self.n_group or not 1 <= self.num_experts_per_tok <= choice:
            raise CheckpointError(
                f"{self.num_experts_per_tok} experts per token cannot be chosen from {self.topk_group} of "
                f"{self.n_group} groups of {self.num_experts} experts: the checkpoint's config is damaged, fetch it "
                f"again"
            )


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
                mine = tokens[first : first + count]
                total.index_add_(0, mine, expert(rows[mine]) * shares[first : first + count])
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
