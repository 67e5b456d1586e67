"""A mixture of experts (arXiv 1701.06538): a router sends each token to a few of many feed-forward networks.

Tokens are gathered per expert, without padding or a capacity limit, so that a token's result does not depend on the
rest of the batch.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.core.ranks import experts_share
from bakeoff.reference_engine.kernels.native import has_triton
from bakeoff.reference_engine.models.config_readers import MoeConfig
from bakeoff.reference_engine.models.mlp import FeedForward, GatedMlp
from bakeoff.reference_engine.models.names import CORRECTION, layer_prefix
from bakeoff.reference_engine.models.weights import Weights
from bakeoff.reference_engine.quantization.coded_linear import CodedLinear
from bakeoff.reference_engine.quantization.matrix import Linear

if TYPE_CHECKING:
    from bakeoff.reference_engine.kernels.code_words import Words

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
        experts: of this rank.
        own: their numbers.
        num_experts: of all ranks.
    """

    def __init__(self, experts: Sequence[GatedMlp], own: range, num_experts: int) -> None:
        self._experts, self._own, self._num_experts = experts, own, num_experts

    def __call__(self, rows: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """`order` sorts tokens by expert."""
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


class Stack(NamedTuple):
    """A matrix of each expert, for the grouped products.

    Attributes:
        weights: see `grouped_products.multiply_gathered`.
        bias: [experts, out_features]; None for none.
    """

    weights: "torch.Tensor | Words"
    bias: torch.Tensor | None


class ExpertStack:
    """All experts at once, on a GPU.

    Args:
        gate_up: gates first.
        down: the other matrices.
        own: the numbers of the experts of this rank.
        combine: see `GatedMlp`.
        batch_invariant: whether a token's bits must not depend on the others; not with codes.
    """

    def __init__(self, gate_up: Stack, down: Stack, own: range, combine: Combine, *, batch_invariant: bool) -> None:
        from bakeoff.reference_engine.kernels import grouped_products  # noqa: PLC0415 (needs Triton)

        self._kernels, self._gate_up, self._down, self._own = grouped_products, gate_up, down, own
        self._combine, self._batch_invariant = combine, batch_invariant

    def __call__(self, rows: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        kernels, is_invariant = self._kernels, self._batch_invariant
        groups = kernels.group(chosen, self._own)
        gate_up = kernels.multiply_gathered(rows, *self._gate_up, groups, batch_invariant=is_invariant)
        values = kernels.multiply_scattered(self._combine(gate_up), *self._down, groups, batch_invariant=is_invariant)
        return kernels.add_weighed(values, shares.contiguous(), chosen.contiguous(), self._own)


def _networks(config: MoeConfig, weights: Weights, prefix: str, combine: Combine | None) -> Networks:
    every = range(config.num_experts)
    own = experts_share(config.num_experts, weights.ranks) if weights.whole_experts else every
    may_stack = has_triton(weights.device) and weights.offload is None
    activation = combine or weights.kernels.silu_mul
    names = [f"{prefix}{i}.{part}.weight" for i in own for part in config.names.parts]
    if may_stack and weights.are_plain(names):
        stacks = _plain_stacks(config, weights, prefix, own)
        return ExpertStack(*stacks, own, activation, batch_invariant=weights.batch_invariant)
    experts = [
        GatedMlp(
            weights, f"{prefix}{i}.", has_bias=config.expert_bias, combine=combine, parts=config.names.parts,
            is_whole=weights.whole_experts,
        )
        for i in own
    ]  # fmt: skip
    if may_stack and not weights.batch_invariant:
        gate_up, down = (_coded_stack([expert.matrices[i] for expert in experts]) for i in (0, 1))
        if gate_up is not None and down is not None:
            return ExpertStack(gate_up, down, own, activation, batch_invariant=False)
    weights.may_capture = False
    return ExpertLoop(experts, own, config.num_experts)


def _plain_stacks(config: MoeConfig, weights: Weights, prefix: str, own: range) -> tuple[Stack, Stack]:
    *first, last = config.names.parts
    is_whole = weights.whole_experts

    def stacked(parts: Sequence[str], kind: str, dim: int | None) -> torch.Tensor:
        names = [[f"{prefix}{i}.{part}.{kind}" for part in parts] for i in own]
        return weights.stacked(names, None if is_whole else dim)

    gate_up_bias = stacked(first, "bias", 0) if config.expert_bias else None
    is_added_here = config.expert_bias and (is_whole or weights.ranks.rank == 0)
    down_bias = stacked([last], "bias", None) if is_added_here else None
    return Stack(stacked(first, "weight", 0), gate_up_bias), Stack(stacked([last], "weight", 1), down_bias)


def _coded_stack(linears: Sequence[Linear]) -> Stack | None:
    """The codes of one matrix of each expert; None where kernels have no such codes, or their inputs' order differs."""
    coded = [linear for linear in linears if isinstance(linear, CodedLinear) and linear.order is None]
    if len(coded) < len(linears) or len({(linear.weight.layout, linear.weight.words.shape) for linear in coded}) > 1:
        return None
    from bakeoff.reference_engine.kernels.code_words import Words  # noqa: PLC0415 (needs Triton)

    biases = [linear.bias for linear in coded if linear.bias is not None]
    return Stack(Words.stacked([linear.weight for linear in coded]), torch.stack(biases) if biases else None)


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
        return self._network(rows).mul_(self._gate(rows.float()).sigmoid_())


class SharedAndRouted:
    """The sum of a network for all tokens and of experts; a `FeedForward`."""

    def __init__(self, shared: FeedForward, routed: Experts) -> None:
        self._shared, self._routed = shared, routed

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
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
