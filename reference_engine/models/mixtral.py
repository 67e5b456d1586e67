"""Mixtral (arXiv 2401.04088): Mistral with experts in every layer."""

from collections.abc import Mapping
from typing import Any

from reference_engine.models.config import common_fields, layer_windows
from reference_engine.models.decoder import Decoder, layer_prefix, pre_norm_decoder
from reference_engine.models.experts import Experts, MoeConfig
from reference_engine.models.gqa import GroupedQueryAttention
from reference_engine.models.weights import Weights

_DEFAULTS: Mapping[str, Any] = {
    "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
    "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip


def read_config(raw: Mapping[str, Any], where: str) -> MoeConfig:
    """See `registry.Family`."""
    raw = {**_DEFAULTS, **raw}
    return MoeConfig(
        **common_fields(raw, where),
        windows=layer_windows(raw, where, raw.get("sliding_window")),
        num_experts=int(raw["num_local_experts"]),
        num_experts_per_tok=int(raw["num_experts_per_tok"]),
        moe_intermediate_size=int(raw["intermediate_size"]),
        norm_topk_prob=True,
    )


def build(config: MoeConfig, weights: Weights, max_positions: int) -> Decoder:
    """See `registry.Family`."""
    return pre_norm_decoder(
        config,
        weights,
        max_positions,
        mixer=lambda i: GroupedQueryAttention(config, i, weights),
        mlp=lambda i: Experts(config, weights, f"{layer_prefix(i)}block_sparse_moe.", parts=("w1", "w3", "w2")),
    )
