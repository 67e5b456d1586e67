"""DeepSeek-V2 (arXiv:2405.04434): multi-head latent attention, and shared beside routed experts.

The cache holds one short vector per token for all heads: a latent, from which each head's key and value could be
projected, followed by the rotated part of the key. These projections are absorbed (section 2.1.2): the one to keys is
applied to the query, the one to values to the output of attention.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from reference_engine.attention.base import AttentionStep
from reference_engine.kernels.cpu import Kernels
from reference_engine.models.config import CachedVectors, check_options, common_fields, yarn_length
from reference_engine.models.decoder import Decoder, Rotations, layer_prefix, pre_norm_decoder
from reference_engine.models.experts import Experts, MoeConfig
from reference_engine.models.linear import Linear, make_linear
from reference_engine.models.mlp import FeedForward, GatedMlp
from reference_engine.models.rope import halves_from_pairs
from reference_engine.models.weights import Weights

_LATENT_EPS = 1e-6  # of the norms of latents, independent of rms_norm_eps
_DEFAULTS: Mapping[str, Any] = {
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407, "first_k_dense_replace": 0,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekV2Config(MoeConfig):
    """Config of DeepSeek-V2; `head_dim` is the size of the rotated part of queries and keys.

    Attributes:
        kv_lora_rank: elements of the latent of keys and values.
        q_lora_rank: elements of the latent of queries; None without one.
        qk_nope_head_dim: elements of a head's query and key that are not rotated.
        v_head_dim: elements of a head's value.
        n_shared_experts: width of the shared network, in experts.
        attention_scale: factor on attention scores.
    """

    kv_lora_rank: int
    q_lora_rank: int | None
    qk_nope_head_dim: int
    v_head_dim: int
    n_shared_experts: int
    attention_scale: float

    @property
    def cached_vectors(self) -> CachedVectors:
        """One vector per token: the latent, which is the value too, and the rotated part of the key."""
        return CachedVectors(1, self.kv_lora_rank + self.head_dim, self.kv_lora_rank, value_in_key=True)


def read_config(raw: Mapping[str, Any], where: str) -> DeepseekV2Config:
    """See `registry.Family`."""
    raw = {**_DEFAULTS, **raw}
    check_options(
        raw,
        where,
        topk_method=("greedy", "group_limited_greedy"),
        scoring_func=("softmax",),
        norm_topk_prob=(False, None),
        moe_layer_freq=(1,),
        mlp_bias=(False,),
    )
    grouped = raw.get("topk_method") == "group_limited_greedy"
    plain, turned = int(raw["qk_nope_head_dim"]), int(raw["qk_rope_head_dim"])
    return DeepseekV2Config(
        **common_fields({**raw, "head_dim": turned}, where),
        attention_bias=bool(raw.get("attention_bias", False)),
        num_experts=int(raw["n_routed_experts"]),
        num_experts_per_tok=int(raw["num_experts_per_tok"]),
        moe_intermediate_size=int(raw["moe_intermediate_size"]),
        norm_topk_prob=False,
        dense_layers=frozenset(range(int(raw["first_k_dense_replace"]))),
        routed_scaling_factor=float(raw.get("routed_scaling_factor", 1.0)),
        n_group=int(raw["n_group"]) if grouped else 1,
        topk_group=int(raw["topk_group"]) if grouped else 1,
        kv_lora_rank=int(raw["kv_lora_rank"]),
        q_lora_rank=None if raw["q_lora_rank"] is None else int(raw["q_lora_rank"]),
        qk_nope_head_dim=plain,
        v_head_dim=int(raw["v_head_dim"]),
        n_shared_experts=int(raw["n_shared_experts"]),
        attention_scale=(plain + turned) ** -0.5 * _yarn_scale(raw),
    )


def _yarn_scale(raw: Mapping[str, Any]) -> float:
    """YaRN's factor on attention scores if it scales all dimensions."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return yarn_length(float(rope["factor"]), rope["mscale_all_dim"]) ** 2 if rope.get("mscale_all_dim") else 1.0


class LatentAttention:
    """One layer's attention; a `Mixer`. Every rank computes and caches the latents, which all heads share."""

    def __init__(self, config: DeepseekV2Config, index: int, weights: Weights) -> None:
        prefix = f"{layer_prefix(index)}self_attn."
        self._index, self._config, self._kernels = index, config, weights.kernels
        self._query = _query_projection(config, prefix, weights)
        down = f"{prefix}kv_a_proj_with_mqa"
        bias = _turned_last(weights.tensor(f"{down}.bias")[:, None], config)[:, 0] if config.attention_bias else None
        self._latent = make_linear(_turned_last(weights.tensor(f"{down}.weight"), config), bias)
        self._latent_norm = weights.norm(f"{prefix}kv_a_layernorm")
        up = weights.outputs(f"{prefix}kv_b_proj.weight").unflatten(0, (config.num_attention_heads, -1))
        self._to_latent = up[:, : config.qk_nope_head_dim].contiguous()  # [heads, nope, latent]
        self._from_latent = up[:, config.qk_nope_head_dim :].transpose(1, 2).contiguous()  # [heads, latent, value]
        self._out = weights.rows(prefix, "o_proj", has_bias=config.attention_bias)

    def __call__(self, normed: torch.Tensor, rotations: Rotations, attention: AttentionStep) -> torch.Tensor:
        """See `Mixer`."""
        config, rows = self._config, normed.shape[0]
        heads, split = config.num_attention_heads, [config.kv_lora_rank, config.head_dim]
        query = self._query(normed).view(rows, heads, -1)
        plain, query_turned = query.split([config.qk_nope_head_dim, config.head_dim], dim=-1)
        latent, key_turned = self._latent(normed)[:, None].split(split, dim=-1)
        turned = self._kernels.apply_rope(torch.cat((query_turned, key_turned), dim=1), *rotations[0])
        latent = self._kernels.add_rms_norm(latent[:, 0].contiguous(), None, self._latent_norm, _LATENT_EPS)
        absorbed = torch.bmm(plain.transpose(0, 1), self._to_latent).transpose(0, 1)
        attended = attention.attend(
            self._index,
            torch.cat((absorbed, turned[:, :heads]), dim=-1),
            torch.cat((latent[:, None], turned[:, heads:]), dim=-1),
            None,
            config.attention_scale,
        )
        values = torch.bmm(attended.view(rows, heads, -1).transpose(0, 1), self._from_latent)
        return self._out(values.transpose(0, 1).flatten(1))


def _query_projection(config: DeepseekV2Config, prefix: str, weights: Weights) -> Linear:
    """From rows to the queries of this rank's heads, through a latent if the model has one."""
    name = "q_proj" if config.q_lora_rank is None else "q_b_proj"
    heads = weights.outputs(f"{prefix}{name}.weight").unflatten(0, (config.num_attention_heads, -1))
    up = make_linear(_turned_last(heads, config).flatten(0, 1))
    if config.q_lora_rank is None:
        return up
    down = weights.linear(prefix, ("q_a_proj",), has_bias=config.attention_bias)
    return _LatentQuery(down, weights.norm(f"{prefix}q_a_layernorm"), up, weights.kernels)


class _LatentQuery:
    """Two products with a norm between them; a `Linear`."""

    def __init__(self, down: Linear, norm: torch.Tensor, up: Linear, kernels: Kernels) -> None:
        self._down, self._norm, self._up, self._kernels = down, norm, up, kernels

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return self._up(self._kernels.add_rms_norm(self._down(rows), None, self._norm, _LATENT_EPS))


def _turned_last(rows: torch.Tensor, config: DeepseekV2Config) -> torch.Tensor:
    """Weights [..., dim, in_features] with the rotated outputs, the last `head_dim`, in half-split layout."""
    plain, turned = rows.split([rows.shape[-2] - config.head_dim, config.head_dim], dim=-2)
    return torch.cat((plain, halves_from_pairs(turned)), dim=-2)


class SharedAndRouted:
    """Shared and routed experts of a layer; a `FeedForward`."""

    def __init__(self, config: DeepseekV2Config, weights: Weights, prefix: str) -> None:
        self._routed = Experts(config, weights, prefix)
        self._shared = GatedMlp(weights, f"{prefix}shared_experts.")

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """See `FeedForward`."""
        return self._routed(rows).add_(self._shared(rows))


def build(config: DeepseekV2Config, weights: Weights, max_positions: int) -> Decoder:
    """See `registry.Family`."""

    def mlp(index: int) -> FeedForward:
        prefix = f"{layer_prefix(index)}mlp."
        if index in config.dense_layers:
            return GatedMlp(weights, prefix)
        return SharedAndRouted(config, weights, prefix)

    return pre_norm_decoder(
        config, weights, max_positions, mixer=lambda i: LatentAttention(config, i, weights), mlp=mlp
    )
