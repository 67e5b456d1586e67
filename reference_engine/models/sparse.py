"""Decoders with experts that differ in options only, which their configs name.

Mixtral (arXiv 2401.04088), Qwen2-MoE (arXiv 2407.10671), whose layers also have a network for all tokens, and Qwen3
with experts (arXiv 2505.09388).
"""

from bakeoff.reference_engine.models.config_readers import MoeConfig
from bakeoff.reference_engine.models.decoder import Decoder, pre_norm_decoder
from bakeoff.reference_engine.models.experts import feed_forward
from bakeoff.reference_engine.models.gqa import GroupedQueryAttention
from bakeoff.reference_engine.models.weights import Weights


def build(config: MoeConfig, weights: Weights, max_positions: int) -> Decoder:
    """See `registry.Family`."""
    return pre_norm_decoder(
        config,
        weights,
        max_positions,
        mixer=lambda i: GroupedQueryAttention(config, i, weights),
        mlp=lambda i: feed_forward(config, i, weights),
    )
