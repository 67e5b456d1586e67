"""Qwen2 and Qwen2.5 (arXiv 2407.10671): Llama with biases on queries, keys and values, and optional windows."""

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.models.decoder import Decoder, pre_norm_decoder
from bakeoff.reference_engine.models.gqa import GroupedQueryAttention
from bakeoff.reference_engine.models.mlp import GatedMlp
from bakeoff.reference_engine.models.names import layer_prefix
from bakeoff.reference_engine.models.weights import Weights


def build(config: ModelConfig, weights: Weights, max_positions: int) -> Decoder:
    """See `registry.Family`."""
    return pre_norm_decoder(
        config,
        weights,
        max_positions,
        mixer=lambda i: GroupedQueryAttention(config, i, weights, qkv_bias=True),
        mlp=lambda i: GatedMlp(weights, f"{layer_prefix(i)}mlp."),
    )
