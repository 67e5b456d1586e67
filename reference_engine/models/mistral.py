"""Mistral (arXiv 2310.06825): Llama with sliding-window attention in every layer."""

from collections.abc import Mapping
from typing import Any

from reference_engine.models.config import ModelConfig, common_fields, layer_windows
from reference_engine.models.decoder import Decoder, layer_prefix, pre_norm_decoder
from reference_engine.models.gqa import GroupedQueryAttention
from reference_engine.models.mlp import GatedMlp
from reference_engine.models.weights import Weights

_DEFAULTS = {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096}


def read_config(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """See `registry.Family`."""
    raw = {**_DEFAULTS, **raw}
    return ModelConfig(**common_fields(raw, where), windows=layer_windows(raw, where, raw["sliding_window"]))


def build(config: ModelConfig, weights: Weights, max_positions: int) -> Decoder:
    """See `registry.Family`."""
    return pre_norm_decoder(
        config,
        weights,
        max_positions,
        mixer=lambda i: GroupedQueryAttention(config, i, weights),
        mlp=lambda i: GatedMlp(weights, f"{layer_prefix(i)}mlp."),
    )
