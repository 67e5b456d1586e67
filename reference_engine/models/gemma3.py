"""Gemma 3's text decoder (arXiv 2503.19786): most layers attend to a window, every sixth (by default) to all.

Both kinds of layer have their own rotary frequencies. Norms precede and follow each half of a layer; checkpoints store
their weights minus 1.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

from reference_engine.attention.base import AttentionStep
from reference_engine.models.config import (
    ModelConfig,
    RopeScaling,
    check_options,
    common_fields,
    layer_windows,
    rope_scaling,
)
from reference_engine.models.decoder import Decoder, Rotations, layer_prefix, rotary_table, table_of
from reference_engine.models.gqa import GroupedQueryAttention
from reference_engine.models.mlp import GatedMlp, gelu_tanh_mul
from reference_engine.models.weights import Weights

_DEFAULTS: Mapping[str, Any] = {
    "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072, "tie_word_embeddings": True,
    "sliding_window": 4096, "sliding_window_pattern": 6, "query_pre_attn_scalar": 256,
}  # fmt: skip
_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3Config(ModelConfig):
    """Config of Gemma 3; `rope_theta` and `rope_scaling` are those of layers with full attention."""

    query_pre_attn_scalar: float
    local_rope_theta: float
    local_rope_scaling: RopeScaling | None


def read_config(raw: Mapping[str, Any], where: str) -> Gemma3Config:
    """See `registry.Family`."""
    raw = {**_DEFAULTS, **raw}
    check_options(
        raw,
        where,
        hidden_activation=("gelu_pytorch_tanh",),
        attn_logit_softcapping=(None,),
        final_logit_softcapping=(None,),
        use_bidirectional_attention=(False, None),
    )
    full, local = _ropes(raw)
    pattern = int(raw["sliding_window_pattern"])
    sliding = [(index + 1) % pattern != 0 for index in range(int(raw["num_hidden_layers"]))]
    common = common_fields({**raw, "rope_parameters": full, "hidden_act": "silu"}, where)
    return Gemma3Config(
        **common,
        attention_bias=bool(raw.get("attention_bias", False)),
        windows=layer_windows(raw, where, raw["sliding_window"], sliding),
        norm_offset=1.0,
        query_pre_attn_scalar=float(raw["query_pre_attn_scalar"]),
        local_rope_theta=float(local["rope_theta"]),
        local_rope_scaling=rope_scaling(local, raw, where),
    )


def _ropes(raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Rope parameters of full and of sliding layers: nested in new configs, flat in old ones."""
    nested = raw.get("rope_parameters") or {}
    theta, local_theta = raw.get("rope_theta", 1e6), raw.get("rope_local_base_freq", 1e4)
    full = {"rope_theta": theta, **(raw.get("rope_scaling") or {}), **(nested.get(_FULL) or {})}
    return full, {"rope_theta": local_theta, **(nested.get(_SLIDING) or {})}


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
