"""Qwen3 (arXiv 2505.09388): Qwen2 with norms of each head's query and key instead of biases."""

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.models.decoder import Decoder, pre_norm_decoder
from bakeoff.reference_engine.models.gqa import GroupedQueryAttention
from bakeoff.reference_engine.models.mlp import GatedMlp
from bakeoff.reference_engine.models.names import layer_prefix
from bakeoff.reference_engine.models.weights import Weights


def qwen3_attention(config: ModelConfig, index: int, weights: Weights) -> GroupedQueryAttention:
    """A layer's attention, the same with and without experts."""
    bias = config.attention_bias
    return GroupedQueryAttention(config, index, weights, qkv_bias=bias, out_bias=bias, qk_norm=True)


def build(config: ModelConfig, weights: Weights, max_positions: int) -> Decoder:
    """See `registry.Family`."""
    return pre_norm_decoder(
        config,
        weights,
        max_positions,
        mixer=lambda i: qwen3_attention(config, i, weights),
        mlp=lambda i: GatedMlp(weights, f"{layer_prefix(i)}mlp."),
    )
