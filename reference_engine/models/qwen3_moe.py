"""Qwen3 with experts (arXiv 2505.09388)."""

from collections.abc import Mapping
from typing import Any

from reference_engine.models.config import common_fields, layer_windows
from reference_engine.models.decoder import Decoder, layer_prefix, pre_norm_decoder
from reference_engine.models.experts import Experts, MoeConfig
from reference_engine.models.mlp import FeedForward, GatedMlp
from reference_engine.models.qwen3 import qwen3_attention
from reference_engine.models.weights import Weights

_DEFAULTS: Mapping[str, Any] = {
    "num_key_value_heads": 4, "max_position_embeddings": 32768, "sliding_window": 4096, "decoder_sparse_step": 1,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
}  # fmt: skip


def read_config(raw: Mapping[str, Any], where: str) -> MoeConfig:
    """See `registry.Family`."""
    raw = {**_DEFAULTS, **raw}
    layers = range(int(raw["num_hidden_layers"]))
    window = raw["sliding_window"] if raw.get("use_sliding_window", False) else None
    step, dense = int(raw["decoder_sparse_step"]), raw.get("mlp_only_layers") or ()
    return MoeConfig(
        **common_fields(raw, where),
        attention_bias=bool(raw.get("attention_bias", False)),
        windows=layer_windows(raw, where, window),
        num_experts=int(raw.get("num_local_experts") or raw["num_experts"]),
        num_experts_per_tok=int(raw["num_experts_per_tok"]),
        moe_intermediate_size=int(raw["moe_intermediate_size"]),
        norm_topk_prob=bool(raw.get("norm_topk_prob", False)),
        dense_layers=frozenset(i for i in layers if i in dense or (i + 1) % step),
    )


def build(config: MoeConfig, weights: Weights, max_positions: int) -> Decoder:
    """See `registry.Family`."""

    def mlp(index: int) -> FeedForward:
        prefix = f"{layer_prefix(index)}mlp."
        return GatedMlp(weights, prefix) if index in config.dense_layers else Experts(config, weights, prefix)

    return pre_norm_decoder(
        config, weights, max_positions, mixer=lambda i: qwen3_attention(config, i, weights), mlp=mlp
    )
