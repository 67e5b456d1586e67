"""Grouped-query attention (arXiv 2305.13245) with rotary positions and the options of the families."""

import torch
from torch.nn.functional import rms_norm

from bakeoff.reference_engine.attention.base import AttentionStep
from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.kernels.scoring import PLAIN, Scoring
from bakeoff.reference_engine.models.decoder import Rotations
from bakeoff.reference_engine.models.linear import norm_for
from bakeoff.reference_engine.models.names import layer_prefix
from bakeoff.reference_engine.models.sharding import place_in_stage
from bakeoff.reference_engine.models.weights import Weights


class GroupedQueryAttention:
    """One layer's attention; a `Mixer`.

    Args:
        config: shapes and constants, with the heads of this rank.
        index: of the layer.
        weights: of the model.
        scoring: from products of queries and keys to weights.
        rotation: index of the rotary table.

    Attributes:
        norm: makes what it is called with, see `norm_for`.
    """

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        weights: Weights,
        *,
        scoring: Scoring = PLAIN,
        rotation: int = 0,
    ) -> None:
        prefix = f"{layer_prefix(index)}self_attn."
        self._shares = config.shared_layer(index) is not None
        self._place, self._scoring = place_in_stage(config, index, weights.ranks.stage), scoring
        self._rotation = None if index in config.unrotated_layers else rotation
        self._apply_rope = weights.kernels.apply_rope
        self._queries, self._keys = config.num_attention_heads, 0 if self._shares else config.num_key_value_heads
        self._head_dim, self._eps = config.head_dim, config.rms_norm_eps
        parts = ("q_proj",) if self._shares else ("q_proj", "k_proj", "v_proj")
        widths = [heads * self._head_dim for heads in (self._queries, self._keys, self._keys)]
        has_bias = config.attention_bias
        self._qkv = weights.columns(prefix, parts, has_bias=has_bias or config.qkv_bias, widths=widths)
        self.norm = norm_for(self._qkv, weights.kernels)
        self._out = weights.rows(prefix, "o_proj", has_bias=has_bias)
        self._norm: torch.Tensor | None = None
        if config.qk_norm:
            norms = [weights.norm(f"{prefix}q_norm")] * self._queries + [weights.norm(f"{prefix}k_norm")] * self._keys
            self._norm = torch.stack(norms)

    def __call__(self, normed: torch.Tensor, rotations: Rotations, attention: AttentionStep) -> torch.Tensor:
        queries, turned = self._queries, self._queries + self._keys
        heads = self._qkv(normed).view(normed.shape[0], -1, self._head_dim)
        # Queries and keys are rotated together: rotating q+k heads takes as many calls as rotating q heads.
        rotated = heads[:, :turned]
        if self._norm is not None:
            wide = rotated.to(self._norm.dtype)
            rotated = rms_norm(wide, (self._head_dim,), None, self._eps).mul_(self._norm).to(heads.dtype)
        towards_sinks: torch.Tensor | None = None
        if self._rotation is not None:
            if rotations.towards_sinks:
                plain = rotated[:, :queries].clone(memory_format=torch.contiguous_format)
                towards_sinks = self._apply_rope(plain, *rotations.towards_sinks[self._rotation])
            rotated = self._apply_rope(rotated, *rotations.own[self._rotation])
        key, value = (None, None) if self._shares else (rotated[:, queries:], heads[:, turned:])
        query = rotated[:, :queries]
        return self._out(attention.attend(self._place, query, key, value, self._scoring, towards_sinks=towards_sinks))
