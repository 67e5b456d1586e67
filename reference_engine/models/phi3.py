"""Phi-3 (arXiv 2404.14219): Llama whose checkpoints fuse queries, keys and values, and the gate and up matrices."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from reference_engine.loading.source import WeightSource
from reference_engine.models.config import ModelConfig, check_options, common_fields, layer_windows
from reference_engine.models.decoder import Decoder, layer_prefix, pre_norm_decoder
from reference_engine.models.gqa import GroupedQueryAttention
from reference_engine.models.mlp import GatedMlp
from reference_engine.models.weights import Weights
from reference_engine.quantization.matrix import QuantisedMatrix

_DEFAULTS: Mapping[str, Any] = {
    "max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
}  # fmt: skip


def read_config(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """See `registry.Family`."""
    raw = {**_DEFAULTS, **raw}
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    kind = "longrope" if kind in ("su", "yarn") else kind  # earlier names in this family
    check_options({"rope scaling": kind}, where, **{"rope scaling": ("default", "longrope")})
    check_options(raw, where, attention_bias=(False,))
    return ModelConfig(
        **common_fields({**raw, "rope_parameters": {**rope, "rope_type": kind}}, where),
        windows=layer_windows(raw, where, raw.get("sliding_window")),
    )


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
