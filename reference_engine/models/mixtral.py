"""Mixtral (arXiv 2401.04088): Mistral with experts in every layer."""

from bakeoff.reference_engine.models.config_readers import MoeConfig
from bakeoff.reference_engine.models.decoder import Decoder, pre_norm_decoder
from bakeoff.reference_engine.models.experts import Experts
from bakeoff.reference_engine.models.gqa import GroupedQueryAttention
from bakeoff.reference_engine.models.names import layer_prefix
from bakeoff.reference_engine.models.weights import Weights


def build(config: MoeConfig, weights: Weights, max_positions: int) -> Decoder:
    """See `registry.Family`."""
    return pre_norm_decoder(
        config,
        weights,
        max_positions,
        mixer=lambda i: GroupedQueryAttention(config, i, weights),
        mlp=lambda i: Experts(config, weights, f"{layer_prefix(i)}block_sparse_moe.", parts=("w1", "w3", "w2")),
    )
