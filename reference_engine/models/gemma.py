"""The text decoders of Gemma 2 (arXiv 2408.00118) and Gemma 3 (arXiv 2503.19786).

Some layers attend to a window: every second one, or all but every sixth. Gemma 2 bounds scores and logits; in Gemma 3
both kinds of layer have their own rotary frequencies, and heads have norms. Norms precede and follow each half of a
layer; checkpoints store their weights minus 1.
"""

import math
from collections.abc import Sequence

import torch

from bakeoff.reference_engine.attention.base import AttentionStep
from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.kernels.scoring import Scoring
from bakeoff.reference_engine.models.config_readers import GemmaConfig
from bakeoff.reference_engine.models.decoder import Decoder, Rotations, rotary_table, table_of
from bakeoff.reference_engine.models.gqa import GroupedQueryAttention
from bakeoff.reference_engine.models.mlp import GatedMlp, gelu_tanh_mul
from bakeoff.reference_engine.models.names import layer_prefix
from bakeoff.reference_engine.models.sharding import layers_of_stage
from bakeoff.reference_engine.models.source import WeightSource
from bakeoff.reference_engine.models.weights import Weights
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix


class SandwichLayer:
    """x += norm(attention(norm(x))); x += norm(mlp(norm(x))); a `Layer`."""

    def __init__(self, config: GemmaConfig, index: int, weights: Weights) -> None:
        prefix = layer_prefix(index)
        self._norm, self._eps, self._sum = weights.kernels.add_rms_norm, config.rms_norm_eps, weights.ranks.sum
        self._before_attention = weights.norm(f"{prefix}input_layernorm")
        self._after_attention = weights.norm(f"{prefix}post_attention_layernorm")
        self._before_mlp = weights.norm(f"{prefix}pre_feedforward_layernorm")
        self._after_mlp = weights.norm(f"{prefix}post_feedforward_layernorm")
        is_local = config.local_rope_theta is not None and config.windows[index] is not None
        scoring = Scoring(config.query_pre_attn_scalar**-0.5, config.attn_logit_softcapping)
        self._attention = GroupedQueryAttention(config, index, weights, scoring=scoring, rotation=int(is_local))
        self._mlp = GatedMlp(weights, f"{prefix}mlp.", combine=gelu_tanh_mul)

    def __call__(
        self, residual: torch.Tensor, added: torch.Tensor | None, rotations: Rotations, attention: AttentionStep
    ) -> torch.Tensor:
        norm, eps = self._norm, self._eps
        attended = self._attention(norm(residual, added, self._before_attention, eps), rotations, attention)
        attended = norm(self._sum(attended), None, self._after_attention, eps)
        fed = self._sum(self._mlp(norm(residual, attended, self._before_mlp, eps)))
        return norm(fed, None, self._after_mlp, eps)


class TextWeights:
    """The text decoder of a model that also takes images; a `WeightSource`.

    Args:
        config: of the text decoder.
        source: the weights as stored. If they are a text decoder's alone, names are the same.
    """

    def __init__(self, config: ModelConfig, source: WeightSource) -> None:  # noqa: ARG002 (see Family)
        self._source, self._stored = source, frozenset(source.names())

    def names(self) -> Sequence[str]:
        """Names as stored."""
        return self._source.names()

    def get(self, name: str, dtype: torch.dtype | None = None, device: torch.device | None = None) -> torch.Tensor:
        return self._source.get(self._stored_name(name), dtype, device)

    def get_quantised(self, name: str) -> QuantisedMatrix | None:
        return self._source.get_quantised(self._stored_name(name))

    def _stored_name(self, name: str) -> str:
        # The first as Transformers 4 wrote it and as it is on the hub, the second as Transformers 5 does.
        names = (f"language_model.{name}", f"model.language_model.{name.removeprefix('model.')}")
        return next((stored for stored in names if stored in self._stored), name)


def build(config: GemmaConfig, weights: Weights, max_positions: int) -> Decoder:
    rotaries = [rotary_table(config, weights, max_positions)]
    if config.local_rope_theta is not None:
        rotaries.append(table_of(config, config.local_rope_theta, config.local_rope_scaling, weights, max_positions))
    return Decoder(
        config,
        weights,
        [SandwichLayer(config, i, weights) for i in layers_of_stage(config, weights.ranks.stage)],
        rotaries,
        embedding_scale=math.sqrt(config.hidden_size),
        logit_cap=config.final_logit_softcapping,
    )
