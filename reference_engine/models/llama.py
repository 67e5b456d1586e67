"""Llama (arXiv 2302.13971; GQA from Llama 2, arXiv 2307.09288), and SmolLM2, which has the same architecture.

With `cla_factor` in config.json, that many consecutive layers share the keys and values of the first (cross-layer
attention, arXiv:2405.12981); the others have no k_proj and v_proj.
"""

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.models.decoder import Decoder, pre_norm_decoder
from bakeoff.reference_engine.models.gqa import GroupedQueryAttention
from bakeoff.reference_engine.models.mlp import GatedMlp
from bakeoff.reference_engine.models.names import layer_prefix
from bakeoff.reference_engine.models.weights import Weights


def build(config: ModelConfig, weights: Weights, max_positions: int) -> Decoder:
    """See `registry.Family`."""
    bias = config.attention_bias
    return pre_norm_decoder(
        config,
        weights,
        max_positions,
        mixer=lambda i: GroupedQueryAttention(config, i, weights, qkv_bias=bias, out_bias=bias),
        mlp=lambda i: GatedMlp(weights, f"{layer_prefix(i)}mlp.", has_bias=config.mlp_bias),
    )
