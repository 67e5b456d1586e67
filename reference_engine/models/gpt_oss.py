"""gpt-oss (arXiv 2508.10925): experts, windows in every second layer, and a learned sink for each head.

Checkpoints stack the matrices of a layer's experts; the published ones have them in MXFP4.
"""

import re
from collections.abc import Sequence

import torch

from bakeoff.reference_engine.core.model_config import ModelConfig
from bakeoff.reference_engine.kernels.scoring import Scoring
from bakeoff.reference_engine.models.config_readers import GptOssConfig
from bakeoff.reference_engine.models.decoder import Decoder, pre_norm_decoder
from bakeoff.reference_engine.models.experts import feed_forward
from bakeoff.reference_engine.models.gqa import GroupedQueryAttention
from bakeoff.reference_engine.models.names import layer_prefix
from bakeoff.reference_engine.models.source import WeightSource
from bakeoff.reference_engine.models.weights import Weights
from bakeoff.reference_engine.quantization import mxfp4
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix

_EXPERT_TENSOR = re.compile(r"(.+\.mlp\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.(weight|bias)")
_STACKS = {
    "gate_proj": ("gate_up_proj", slice(0, None, 2)),
    "up_proj": ("gate_up_proj", slice(1, None, 2)),
    "down_proj": ("down_proj", slice(None)),
}
"""For each matrix of an expert the stack that holds it, and its outputs there."""


class SplitExperts:
    """The stacked matrices under names of their own; a `WeightSource`.

    The stacks are `gate_up_proj` [experts, hidden_size, 2 · intermediate_size], in which gates and ups alternate, and
    `down_proj` [experts, intermediate_size, hidden_size], or instead of each its `_blocks` and `_scales`, see
    `mxfp4.from_blocks`; and the biases of each.

    Args:
        config: of the whole model.
        source: the weights as stored. If experts are not stacked there, names are the same.
    """

    def __init__(self, config: ModelConfig, source: WeightSource) -> None:  # noqa: ARG002 (see Family)
        self._source, self._stored = source, frozenset(source.names())

    def names(self) -> Sequence[str]:
        """Names as stored."""
        return self._source.names()

    def get(self, name: str, dtype: torch.dtype | None = None, device: torch.device | None = None) -> torch.Tensor:
        matrix = self.get_quantised(name)
        if matrix is not None:
            return matrix.dequantised()
        expert = _EXPERT_TENSOR.fullmatch(name)
        if expert is None or name in self._stored:
            return self._source.get(name, dtype, device)
        prefix, number, part, kind = expert.groups()
        stack, outputs = _STACKS[part]
        if kind == "bias":
            return self._source.get(f"{prefix}.{stack}_bias")[int(number)][outputs]
        return self._source.get(f"{prefix}.{stack}")[int(number)].t()[outputs]

    def get_quantised(self, name: str) -> QuantisedMatrix | None:
        expert = _EXPERT_TENSOR.fullmatch(name)
        if expert is None or name in self._stored:
            return self._source.get_quantised(name)
        prefix, number, part, kind = expert.groups()
        stack, outputs = _STACKS[part]
        if kind == "bias" or f"{prefix}.{stack}_blocks" not in self._stored:
            return None
        blocks, scales = (self._source.get(f"{prefix}.{stack}_{half}")[int(number)] for half in ("blocks", "scales"))
        return mxfp4.from_blocks(blocks[outputs], scales[outputs])


def build(config: GptOssConfig, weights: Weights, max_positions: int) -> Decoder:
    def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        gate, limit = gate.clamp(max=config.swiglu_limit), config.swiglu_limit
        return (gate * config.swiglu_alpha).sigmoid_().mul_(gate).mul_(up.clamp(-limit, limit).add_(1.0))

    def mixer(index: int) -> GroupedQueryAttention:
        sinks = weights.outputs(f"{layer_prefix(index)}self_attn.sinks").float()
        return GroupedQueryAttention(config, index, weights, scoring=Scoring(sinks=sinks))

    return pre_norm_decoder(
        config, weights, max_positions, mixer=mixer, mlp=lambda i: feed_forward(config, i, weights, combine=swiglu)
    )
