"""Decoders with grouped-query attention that differ in options only, which their configs name.

- Llama (arXiv 2302.13971; GQA from Llama 2, arXiv 2307.09288), and SmolLM2, which has the same architecture. With
  `cla_factor` in config.json, that many consecutive layers share the keys and values of the first (cross-layer
  attention, arXiv 2405.12981); the others have no k_proj and v_proj.
- Mistral (arXiv 2310.06825): windows in every layer. Mixtral (arXiv 2401.04088): experts.
- Phi-3 (arXiv 2404.14219), whose checkpoints fuse matrices (:mod:`bakeoff.reference_engine.models.phi3`), and
  Phi-4-mini (arXiv 2503.01743), which rotates three quarters of each head.
- Qwen2 and Qwen2.5 (arXiv 2407.10671): biases on queries, keys and values, and optional windows. Qwen2-MoE: experts,
  and beside them a network for all tokens.
- Qwen3 (arXiv 2505.09388), with and without experts: norms of each head's query and key instead of biases.
- SmolLM3: every fourth layer has no positions.
"""

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.models.decoder import Decoder, pre_norm_decoder
from bakeoff.reference_engine.models.experts import feed_forward
from bakeoff.reference_engine.models.gqa import GroupedQueryAttention
from bakeoff.reference_engine.models.weights import Weights


def build(config: ModelConfig, weights: Weights, max_positions: int) -> Decoder:
    return pre_norm_decoder(
        config,
        weights,
        max_positions,
        mixer=lambda i: GroupedQueryAttention(config, i, weights),
        mlp=lambda i: feed_forward(config, i, weights),
    )
