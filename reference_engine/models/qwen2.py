"""Qwen2 and Qwen2.5 (arXiv 2407.10671): Llama with biases on queries, keys and values, and optional windows."""

from collections.abc import Mapping
from typing import Any

from reference_engine.models.config import ModelConfig, common_fields, layer_windows
from reference_engine.models.decoder import Decoder, layer_prefix, pre_norm_decoder
from reference_engine.models.gqa import GroupedQueryAttention
from reference_engine.models.mlp import GatedMlp
from reference_engine.models.weights import Weights


def read_config(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """See `registry.Family`."""
    raw = {"max_position_embeddings": 32768, **raw}
    return ModelConfig(**common_fields(raw, where), windows=qwen_windows(raw, where))


def qwen_windows(raw: Mapping[str, Any], where: str) -> tuple[int | None, ...]:
    """Windows of this family: only if enabled, and only from layer max_window_layers on."""
    window = raw.get("sliding_window", 4096) if raw.get("use_sliding_window", False) else None
    first = int(raw.get("max_window_layers", 28))
    sliding = [window is not None and index >= first for index in range(int(raw["num_hidden_layers"]))]
    return layer_windows(raw, where, window, sliding)


def build(config: ModelConfig, weights: Weights, max_positions: int) -> Decoder:
    """See `registry.Family`."""
    return pre_norm_decoder(
        config,
        weights,
        max_positions,
        mixer=lambda i: GroupedQueryAttention(config, i, weights, qkv_bias=True),
        mlp=lambda i: GatedMlp(weights, f"{layer_prefix(i)}mlp."),
    )
