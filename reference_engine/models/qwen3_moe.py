"""Qwen3 with experts (arXiv 2505.09388)."""

from bakeoff.reference_engine.models.config_readers import MoeConfig
from bakeoff.reference_engine.models.decoder import Decoder, pre_norm_decoder
from bakeoff.reference_engine.models.experts import Experts
from bakeoff.reference_engine.models.mlp import FeedForward, GatedMlp
from bakeoff.reference_engine.models.names import layer_prefix
from bakeoff.reference_engine.models.qwen3 import qwen3_attention
from bakeoff.reference_engine.models.weights import Weights


def build(config: MoeConfig, weights: Weights, max_positions: int) -> Decoder:
    """See `registry.Family`."""

    def mlp(index: int) -> FeedForward:
        prefix = f"{layer_prefix(index)}mlp."
        return GatedMlp(weights, prefix) if index in config.dense_layers else Experts(config, weights, prefix)

    return pre_norm_decoder(
        config, weights, max_positions, mixer=lambda i: qwen3_attention(config, i, weights), mlp=mlp
    )
