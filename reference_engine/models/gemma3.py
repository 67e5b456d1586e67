"""Gemma 3's text decoder (arXiv 2503.19786): most layers attend to a window, every sixth (by default) to all.

Both kinds of layer have their own rotary frequencies. Norms precede and follow each half of a layer; checkpoints store
their weights minus 1.
"""

import math

import torch

from bakeoff.reference_engine.attention.base import AttentionStep
from bakeoff.reference_engine.models.config_readers import Gemma3Config
from bakeoff.reference_engine.models.decoder import Decoder, Rotations, rotary_table, table_of
from bakeoff.reference_engine.models.gqa import GroupedQueryAttention
from bakeoff.reference_engine.models.mlp import GatedMlp, gelu_tanh_mul
from bakeoff.reference_engine.models.names import layer_prefix
from bakeoff.reference_engine.models.weights import Weights


class SandwichLayer:
    """x += norm(attention(norm(x))); x += norm(mlp(norm(x))); a `Layer`."""

    def __init__(self, config: Gemma3Config, index: int, weights: Weights) -> None:
        prefix = layer_prefix(index)
        self._norm, self._eps, self._sum = weights.kernels.add_rms_norm, config.rms_norm_eps, weights.ranks.sum
        self._before_attention = weights.norm(f"{prefix}input_layernorm")
        self._after_attention = weights.norm(f"{prefix}post_attention_layernorm")
        self._before_mlp = weights.norm(f"{prefix}pre_feedforward_layernorm")
        self._after_mlp = weights.norm(f"{prefix}post_feedforward_layernorm")
        self._attention = GroupedQueryAttention(
            config,
            index,
            weights,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
            qk_norm=True,
            scale=config.query_pre_attn_scalar**-0.5,
            rotation=0 if config.windows[index] is None else 1,
        )
        self._mlp = GatedMlp(weights, f"{prefix}mlp.", combine=gelu_tanh_mul)

    def __call__(
        self, residual: torch.Tensor, added: torch.Tensor | None, rotations: Rotations, attention: AttentionStep
    ) -> torch.Tensor:
        """See `Layer`."""
        norm, eps = self._norm, self._eps
        attended = self._attention(norm(residual, added, self._before_attention, eps), rotations, attention)
        attended = norm(self._sum(attended), None, self._after_attention, eps)
        fed = self._sum(self._mlp(norm(residual, attended, self._before_mlp, eps)))
        return norm(fed, None, self._after_mlp, eps)


def build(config: Gemma3Config, weights: Weights, max_positions: int) -> Decoder:
    """See `registry.Family`."""
    local = table_of(config.head_dim, config.local_rope_theta, config.local_rope_scaling, weights, max_positions)
    layers = [SandwichLayer(config, i, weights) for i in range(config.num_hidden_layers)]
    rotaries = [rotary_table(config, weights, max_positions), local]
    return Decoder(config, weights, layers, rotaries, embedding_scale=math.sqrt(config.hidden_size))
