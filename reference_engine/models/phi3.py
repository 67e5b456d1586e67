"""Checkpoints of Phi-3 and Phi-4-mini, which fuse queries, keys and values, and the gate and up matrices."""

from collections.abc import Sequence

import torch

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.models.rope import partly_rotated
from bakeoff.reference_engine.models.source import WeightSource
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix


class SplitWeights:
    """Fused matrices under the names of their parts; a `WeightSource`.

    Where only a part of each head is rotated, the rows of queries and keys are in the order of `partly_rotated`.

    Args:
        config: of the whole model.
        source: the weights as stored.
    """

    def __init__(self, config: ModelConfig, source: WeightSource) -> None:
        self._source = source
        queries, keys = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
        width = config.intermediate_size
        self._parts: dict[str, tuple[str, slice | torch.Tensor]] = {
            "q_proj": ("qkv_proj", slice(0, queries)),
            "k_proj": ("qkv_proj", slice(queries, queries + keys)),
            "v_proj": ("qkv_proj", slice(queries + keys, queries + 2 * keys)),
            "gate_proj": ("gate_up_proj", slice(0, width)),
            "up_proj": ("gate_up_proj", slice(width, 2 * width)),
        }
        if config.rotary_dim < config.head_dim:
            order = partly_rotated(config.head_dim, config.rotary_dim)
            for part, first, rows in (("q_proj", 0, queries), ("k_proj", queries, keys)):
                heads = torch.arange(first, first + rows, config.head_dim)
                self._parts[part] = ("qkv_proj", (heads[:, None] + order).flatten())

    def names(self) -> Sequence[str]:
        """Names as stored."""
        return self._source.names()

    def get(self, name: str, dtype: torch.dtype | None = None, device: torch.device | None = None) -> torch.Tensor:
        prefix, _, part = name.removesuffix(".weight").rpartition(".")
        if part not in self._parts:
            return self._source.get(name, dtype, device)
        fused, rows = self._parts[part]
        return self._source.get(f"{prefix}.{fused}.weight", dtype, device)[rows]

    def get_quantised(self, name: str) -> QuantisedMatrix | None:
        prefix, _, part = name.removesuffix(".weight").rpartition(".")
        if part not in self._parts:
            return self._source.get_quantised(name)
        fused, rows = self._parts[part]
        whole = self._source.get_quantised(f"{prefix}.{fused}.weight")
        return None if whole is None else whole.rows(rows)
