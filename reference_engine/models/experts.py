"""A mixture of experts (arXiv 1701.06538): a router sends each token to a few of many feed-forward networks.

Tokens are gathered per expert, without padding or a capacity limit, so that a token's result does not depend on the
rest of the batch.
"""

from collections.abc import Callable

import torch

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.core.ranks import experts_share
from bakeoff.reference_engine.models.config_readers import MoeConfig
from bakeoff.reference_engine.models.mlp import FeedForward, GatedMlp
from bakeoff.reference_engine.models.names import CORRECTION, layer_prefix
from bakeoff.reference_engine.models.weights import Weights

_BEST_OF_GROUP = {"softmax": 1, "sigmoid": 2}
"""Experts whose shares, added up, decide between groups of experts."""
_SMALLEST_SUM = 1e-20  # of shares that are divided by their sum; as in DeepSeek's released code


class Experts:
    """The experts of one layer, or those of this rank; a `FeedForward`.

    Args:
        config: shapes and constants.
        weights: of the model.
        prefix: of the names of their matrices.
        combine: see `GatedMlp`.
    """

    def __init__(
        self,
        config: MoeConfig,
        weights: Weights,
        prefix: str,
        *,
        combine: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self._config = config
        _, router, parts, _ = config.names
        # In float32: rounding would choose between experts with nearly equal scores, differently in each batch.
        self._router = weights.router(f"{prefix}{router}", has_bias=config.router_bias)
        self._correction: torch.Tensor | None = None
        if config.scoring_func == "sigmoid":
            self._correction = weights.tensor(f"{prefix}{router}.{CORRECTION}", torch.float32)
        is_whole = weights.whole_experts
        self._own = experts_share(config.num_experts, weights.ranks) if is_whole else range(config.num_experts)
        self._experts = [
            GatedMlp(
                weights, f"{prefix}experts.{i}.", has_bias=config.expert_bias, combine=combine, parts=parts,
                is_whole=is_whole,
            )
            for i in self._own
        ]  # fmt: skip

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """See `FeedForward`; `order` sorts tokens by expert."""
        shares, chosen = self._route(rows)
        order = chosen.flatten().argsort(stable=True)
        tokens, shares = order // chosen.shape[1], shares.flatten()[order, None]
        counts = chosen.flatten().bincount(minlength=self._config.num_experts).tolist()
        total = torch.zeros(rows.shape, dtype=torch.float32, device=rows.device)
        first = 0
        for number, count in enumerate(counts):
            if count and number in self._own:
                expert, chosen_tokens = self._experts[number - self._own.start], tokens[first : first + count]
                total.index_add_(0, chosen_tokens, expert(rows[chosen_tokens]) * shares[first : first + count])
            first += count
        return total.to(rows.dtype)

    def _route(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows [num_tokens, hidden_size] -> weights (float32) and indices of experts, both [num_tokens, chosen]."""
        config, scores = self._config, self._router(rows.float())
        rates = scores.sigmoid() if config.scoring_func == "sigmoid" else scores.softmax(dim=-1)
        ranks = rates if self._correction is None else rates + self._correction
        if config.topk_group < config.n_group:
            groups = ranks.unflatten(1, (config.n_group, -1))
            considered = min(_BEST_OF_GROUP[config.scoring_func], groups.shape[2])
            strength = groups.topk(considered, dim=-1).values.sum(dim=-1)
            best = strength.topk(config.topk_group, dim=-1).indices
            dropped = torch.ones(groups.shape[:2], dtype=torch.bool, device=rows.device).scatter_(1, best, False)
            ranks = groups.masked_fill(dropped[:, :, None], -torch.inf).flatten(1)
        chosen = ranks.topk(config.num_experts_per_tok, dim=-1).indices
        shares = rates.gather(1, chosen)
        if config.norm_topk_prob:
            shares = shares / (shares.sum(dim=-1, keepdim=True) + _SMALLEST_SUM)
        return shares * config.routed_scaling_factor, chosen


class Weighed:
    """A network times a number between 0 and 1 for each token; a `FeedForward`.

    Args:
        network: the network.
        weights: of the model.
        name: of the network; with `_gate` that of the numbers' matrix.
    """

    def __init__(self, network: FeedForward, weights: Weights, name: str) -> None:
        self._network, self._gate = network, weights.router(f"{name}_gate")

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """See `FeedForward`."""
        return self._network(rows).mul_(self._gate(rows.float()).sigmoid_())


class SharedAndRouted:
    """The sum of a network for all tokens and of experts; a `FeedForward`."""

    def __init__(self, shared: FeedForward, routed: Experts) -> None:
        self._shared, self._routed = shared, routed

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """See `FeedForward`."""
        return self._routed(rows).add_(self._shared(rows))


def feed_forward(
    config: ModelConfig,
    index: int,
    weights: Weights,
    *,
    combine: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> FeedForward:
    """The feed-forward half of a layer, with experts or without.

    Args:
        config: shapes and constants.
        index: of the layer.
        weights: of the model.
        combine: see `GatedMlp`.
    """
    if not isinstance(config, MoeConfig) or index in config.dense_layers:
        return GatedMlp(weights, f"{layer_prefix(index)}mlp.", has_bias=config.mlp_bias, combine=combine)
    prefix = f"{layer_prefix(index)}{config.names.block}"
    experts = Experts(config, weights, prefix, combine=combine)
    if not config.shared_width:
        return experts
    shared = f"{prefix}{config.names.shared}"
    network = GatedMlp(weights, f"{shared}.")
    return SharedAndRouted(Weighed(network, weights, shared) if config.shared_gate else network, experts)
