"""DeepSeek-V2 (arXiv 2405.04434) and V3 (arXiv 2412.19437): multi-head latent attention, and shared experts.

The cache holds one short vector per token for all heads: a latent, from which each head's key and value could be
projected, followed by the rotated part of the key. These projections are absorbed (section 2.1.2): the one to keys is
applied to the query, the one to values to the output of attention.
"""

import torch

from bakeoff.reference_engine.attention.base import AttentionStep
from bakeoff.reference_engine.kernels.cpu import Kernels
from bakeoff.reference_engine.kernels.scoring import Scoring
from bakeoff.reference_engine.models.config_readers import DeepseekConfig
from bakeoff.reference_engine.models.decoder import Decoder, Rotations, pre_norm_decoder
from bakeoff.reference_engine.models.experts import feed_forward
from bakeoff.reference_engine.models.linear import Linear, make_linear
from bakeoff.reference_engine.models.names import layer_prefix
from bakeoff.reference_engine.models.rope import halves_from_pairs
from bakeoff.reference_engine.models.sharding import place_in_stage
from bakeoff.reference_engine.models.weights import Weights

_LATENT_EPS = 1e-6  # of the norms of latents, independent of rms_norm_eps


class LatentAttention:
    """One layer's attention; a `Mixer`. Every rank computes and caches the latents, which all heads share."""

    def __init__(self, config: DeepseekConfig, index: int, weights: Weights) -> None:
        prefix = f"{layer_prefix(index)}self_attn."
        self._place = place_in_stage(config, index, weights.ranks.stage)
        self._config, self._kernels = config, weights.kernels
        self._scoring = Scoring(config.attention_scale)
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
        config, rows = self._config, normed.shape[0]
        heads, split = config.num_attention_heads, [config.kv_lora_rank, config.head_dim]
        query = self._query(normed).view(rows, heads, -1)
        plain, query_turned = query.split([config.qk_nope_head_dim, config.head_dim], dim=-1)
        latent, key_turned = self._latent(normed)[:, None].split(split, dim=-1)
        turned = self._kernels.apply_rope(torch.cat((query_turned, key_turned), dim=1), *rotations.own[0])
        latent = self._kernels.add_rms_norm(latent[:, 0].contiguous(), None, self._latent_norm, _LATENT_EPS)
        absorbed = torch.bmm(plain.transpose(0, 1), self._to_latent).transpose(0, 1)
        attended = attention.attend(
            self._place,
            torch.cat((absorbed, turned[:, :heads]), dim=-1),
            torch.cat((latent[:, None], turned[:, heads:]), dim=-1),
            None,
            self._scoring,
        )
        values = torch.bmm(attended.view(rows, heads, -1).transpose(0, 1), self._from_latent)
        return self._out(values.transpose(0, 1).flatten(1))


def _query_projection(config: DeepseekConfig, prefix: str, weights: Weights) -> Linear:
    """Projection of rows to the queries of this rank's heads, through a latent if the model has one."""
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
        return self._up(self._kernels.add_rms_norm(self._down(rows), None, self._norm, _LATENT_EPS))


def _turned_last(rows: torch.Tensor, config: DeepseekConfig) -> torch.Tensor:
    """Weights [..., dim, in_features] with the rotated outputs, the last `head_dim`, in half-split layout."""
    if not config.rope_interleave:
        return rows
    plain, turned = rows.split([rows.shape[-2] - config.head_dim, config.head_dim], dim=-2)
    return torch.cat((plain, halves_from_pairs(turned)), dim=-2)


def build(config: DeepseekConfig, weights: Weights, max_positions: int) -> Decoder:
    return pre_norm_decoder(
        config,
        weights,
        max_positions,
        mixer=lambda i: LatentAttention(config, i, weights),
        mlp=lambda i: feed_forward(config, i, weights),
    )
