"""A mixture of experts (arXiv 1701.06538): a router sends each token to a few of many feed-forward networks.

Tokens are gathered per expert, without padding or a capacity limit, so that a token's result does not depend on the
rest of the batch.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.core.ranks import experts_share
from bakeoff.reference_engine.kernels.native import has_triton
from bakeoff.reference_engine.models.config_readers import MoeConfig
from bakeoff.reference_engine.models.mlp import FeedForward, GatedMlp
from bakeoff.reference_engine.models.names import CORRECTION, layer_prefix
from bakeoff.reference_engine.models.weights import Weights

Combine = Callable[[torch.Tensor], torch.Tensor]
"""Between an expert's products, see `GatedMlp`."""

_BEST_OF_GROUP = {"softmax": 1, "sigmoid": 2}
"""Experts whose shares, added up, decide between groups of experts."""
_SMALLEST_SUM = 1e-20  # of shares that are divided by their sum; as in DeepSeek's released code


class Networks(Protocol):
    """The experts of one layer that this rank computes."""

    def __call__(self, rows: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """The sum of each token's experts times their shares.

        Args:
            rows: [num_tokens, hidden_size].
            shares: float32 [num_tokens, chosen].
            chosen: int64 [num_tokens, chosen], numbers of experts.

        Returns:
            [num_tokens, hidden_size], in the dtype of the rows.
        """
        ...


class ExpertLoop:
    """One expert after another, each with the kernels that suit its matrices; waits for the device once.

    Args:
        config: shapes and constants.
        weights: of the model.
        prefix: of the names of the experts' matrices.
        own: the experts of this rank.
        combine: see `GatedMlp`.
    """

    def __init__(self, config: MoeConfig, weights: Weights, prefix: str, own: range, combine: Combine | None) -> None:
        weights.may_capture = False
        self._num_experts, self._own = config.num_experts, own
        self._experts = [
            GatedMlp(
                weights, f"{prefix}{i}.", has_bias=config.expert_bias, combine=combine, parts=config.names.parts,
                is_whole=weights.whole_experts,
            )
            for i in own
        ]  # fmt: skip

    def __call__(self, rows: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """See `Networks`; `order` sorts tokens by expert."""
        order = chosen.flatten().argsort(stable=True)
        tokens, shares = order // chosen.shape[1], shares.flatten()[order, None]
        counts = chosen.flatten().bincount(minlength=self._num_experts).tolist()
        total = torch.zeros(rows.shape, dtype=torch.float32, device=rows.device)
        first = 0
        for number, count in enumerate(counts):
            if count and number in self._own:
                expert, chosen_tokens = self._experts[number - self._own.start], tokens[first : first + count]
                total.index_add_(0, chosen_tokens, expert(rows[chosen_tokens]) * shares[first : first + count])
            first += count
        return total.to(rows.dtype)


class ExpertStack:
    """All experts at once, for plain matrices on a GPU; arguments as of `ExpertLoop`."""

    def __init__(self, config: MoeConfig, weights: Weights, prefix: str, own: range, combine: Combine | None) -> None:
        from bakeoff.reference_engine.kernels import grouped_products  # noqa: PLC0415 (needs Triton)

        *first, last = config.names.parts
        is_whole = weights.whole_experts
        self._kernels, self._own, self._batch_invariant = grouped_products, own, weights.batch_invariant
        self._combine = combine or weights.kernels.silu_mul

        def stacked(parts: Sequence[str], kind: str, dim: int | None) -> torch.Tensor:
            names = [[f"{prefix}{i}.{part}.{kind}" for part in parts] for i in own]
            return weights.stacked(names, None if is_whole else dim)

        self._gate_up, self._down = stacked(first, "weight", 0), stacked([last], "weight", 1)
        self._gate_up_bias = stacked(first, "bias", 0) if config.expert_bias else None
        is_added_here = config.expert_bias and (is_whole or weights.ranks.rank == 0)
        self._down_bias = stacked([last], "bias", None) if is_added_here else None

    def __call__(self, rows: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """See `Networks`."""
        kernels, is_invariant = self._kernels, self._batch_invariant
        groups = kernels.group(chosen, self._own)
        gate_up = kernels.multiply_gathered(
            rows, self._gate_up, self._gate_up_bias, groups, batch_invariant=is_invariant
        )
        values = kernels.multiply_scattered(
            self._combine(gate_up), self._down, self._down_bias, groups, batch_invariant=is_invariant
        )
        return kernels.add_weighed(values, shares.contiguous(), chosen.contiguous(), self._own)


def _networks(config: MoeConfig, weights: Weights, prefix: str, combine: Combine | None) -> Networks:
    every = range(config.num_experts)
    own = experts_share(config.num_experts, weights.ranks) if weights.whole_experts else every
    names = [f"{prefix}{i}.{part}.weight" for i in own for part in config.names.parts]
    is_stack = has_triton(weights.device) and weights.offload is None and weights.are_plain(names)
    return (ExpertStack if is_stack else ExpertLoop)(config, weights, prefix, own, combine)


class Experts:
    """A router and the experts of one layer, or those of this rank; a `FeedForward`.

    Args:
        config: shapes and constants.
        weights: of the model.
        prefix: of the names of their matrices.
        combine: see `GatedMlp`.
    """

    def __init__(self, config: MoeConfig, weights: Weights, prefix: str, *, combine: Combine | None = None) -> None:
        self._config = config
        # In float32: rounding would choose between experts with nearly equal scores, differently in each batch.
        self._router = weights.router(f"{prefix}{config.names.router}", has_bias=config.router_bias)
        self._correction: torch.Tensor | None = None
        if config.scoring_func == "sigmoid":
            self._correction = weights.tensor(f"{prefix}{config.names.router}.{CORRECTION}", torch.float32)
        self._networks = _networks(config, weights, f"{prefix}experts.", combine)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """See `FeedForward`."""
        return self._networks(rows, *self._route(rows))

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
    combine: Combine | None = None,
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
