"""Phi-3 (arXiv 2404.14219): Llama whose checkpoints fuse queries, keys and values, and the gate and up matrices."""

from collections.abc import Sequence

import torch

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.models.decoder import Decoder, pre_norm_decoder
from bakeoff.reference_engine.models.gqa import GroupedQueryAttention
from bakeoff.reference_engine.models.mlp import GatedMlp
from bakeoff.reference_engine.models.names import layer_prefix
from bakeoff.reference_engine.models.source import WeightSource
from bakeoff.reference_engine.models.weights import Weights
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix


class SplitWeights:
    """Fused matrices under the names of their parts; a `WeightSource`.

    Args:
        config: of the whole model.
        source: the weights as stored.
    """

    def __init__(self, config: ModelConfig, source: WeightSource) -> None:
        self._source = source
        queries, keys = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
        self._parts = {
            "q_proj": ("qkv_proj", 0, queries),
            "k_proj": ("qkv_proj", queries, keys),
            "v_proj": ("qkv_proj", queries + keys, keys),
            "gate_proj": ("gate_up_proj", 0, config.intermediate_size),
            "up_proj": ("gate_up_proj", config.intermediate_size, config.intermediate_size),
        }

    def names(self) -> Sequence[str]:
        """Names as stored."""
        return self._source.names()

    def get(self, name: str, dtype: torch.dtype | None = None, device: torch.device | None = None) -> torch.Tensor:
        """See `WeightSource.get`."""
        prefix, _, part = name.removesuffix(".weight").rpartition(".")
        if part not in self._parts:
            return self._source.get(name, dtype, device)
        fused, first, rows = self._parts[part]
        return self._source.get(f"{prefix}.{fused}.weight", dtype, device)[first : first + rows]

    def get_quantised(self, name: str) -> QuantisedMatrix | None:
        """See `WeightSource.get_quantised`."""
        prefix, _, part = name.removesuffix(".weight").rpartition(".")
        if part not in self._parts:
            return self._source.get_quantised(name)
        fused, first, rows = self._parts[part]
        whole = self._source.get_quantised(f"{prefix}.{fused}.weight")
        return None if whole is None else whole.rows(slice(first, first + rows))


def build(config: ModelConfig, weights: Weights, max_positions: int) -> Decoder:
    """See `registry.Family`."""
    return pre_norm_decoder(
        config,
        weights,
        max_positions,
        mixer=lambda i: GroupedQueryAttention(config, i, weights),
        mlp=lambda i: GatedMlp(weights, f"{layer_prefix(i)}mlp."),
    )
