"""Quantises the matrices of one decoder layer, given their inputs on a text.

GPTQ quantises each matrix by itself. AWQ and SmoothQuant first move scales between neighbours: a matrix's input is
divided by them, and the norm or matrix that produces this input is multiplied.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from bakeoff.reference_engine.quantization.activations import Activations
from bakeoff.reference_engine.quantization.awq import channel_scales, clipped
from bakeoff.reference_engine.quantization.formats.base import IntegerScheme, Scheme
from bakeoff.reference_engine.quantization.gptq import gptq
from bakeoff.reference_engine.quantization.integer_matrix import IntegerMatrix
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix
from bakeoff.reference_engine.quantization.smoothing import smoothing_scales

Tensors = dict[str, torch.Tensor]

INPUTS = {
    "self_attn.q_proj": "self_attn.q_proj",
    "self_attn.k_proj": "self_attn.q_proj",
    "self_attn.v_proj": "self_attn.q_proj",
    "self_attn.o_proj": "self_attn.o_proj",
    "mlp.gate_proj": "mlp.gate_proj",
    "mlp.up_proj": "mlp.gate_proj",
    "mlp.down_proj": "mlp.down_proj",
}
"""The matrices of a layer, each with the first matrix that has the same input."""

_NORMS = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}
"""Norms, and the matrices that they produce the input of."""
_NEIGHBOURS = {
    "input_layernorm": _NORMS["input_layernorm"],
    "self_attn.v_proj": ("self_attn.o_proj",),
    "post_attention_layernorm": _NORMS["post_attention_layernorm"],
    "mlp.up_proj": ("mlp.down_proj",),
}
"""Norms and matrices, and the matrices that they produce the input of, in the order of a forward pass."""


class LayerQuantiser(Protocol):
    """Quantises the matrices of `INPUTS` by their inputs on a text."""

    @property
    def needs_products(self) -> bool:
        """Whether it needs `Activations.products`."""
        ...

    @property
    def is_sequential(self) -> bool:
        """Whether inputs come from the layers quantised so far; otherwise from the plain model."""
        ...

    def quantised(self, tensors: Tensors, activations: Mapping[str, Activations]) -> Mapping[str, QuantisedMatrix]:
        """Quantises a layer.

        Args:
            tensors: of the layer, by their names in it; scaled ones are replaced.
            activations: by name of matrix, on the device of the tensors.

        Returns:
            By name of matrix.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class GptqLayer:
    """A `LayerQuantiser`: GPTQ.

    Attributes:
        scheme: scheme of the matrices; with act_order, columns with large inputs are rounded first.
    """

    scheme: IntegerScheme
    needs_products = True
    is_sequential = True

    def quantised(self, tensors: Tensors, activations: Mapping[str, Activations]) -> dict[str, IntegerMatrix]:
        matrices: dict[str, IntegerMatrix] = {}
        for name in INPUTS:
            weight, scheme = tensors[f"{name}.weight"], self.scheme
            matrices[name] = gptq(
                weight, activations[name].hessian, scheme.bits, scheme.group_of(weight.shape[1]),
                symmetric=scheme.symmetric, ordered=scheme.act_order,
            )  # fmt: skip
        return matrices


@dataclasses.dataclass(frozen=True, slots=True)
class AwqLayer:
    """A `LayerQuantiser`: AWQ.

    Attributes:
        scheme: scheme of the matrices, which have zero points.
    """

    scheme: IntegerScheme
    needs_products = True
    is_sequential = False

    def quantised(self, tensors: Tensors, activations: Mapping[str, Activations]) -> dict[str, IntegerMatrix]:
        bits = self.scheme.bits
        scaled = _scaled(tensors, activations, _NEIGHBOURS, self._scales)
        matrices: dict[str, IntegerMatrix] = {}
        for name in INPUTS:
            weight = tensors[f"{name}.weight"]
            matrices[name] = clipped(weight, scaled[name].hessian, bits, self.scheme.group_of(weight.shape[1]))
        return matrices

    def _scales(self, weights: Sequence[torch.Tensor], inputs: Activations) -> torch.Tensor:
        group = self.scheme.group_of(weights[0].shape[1])
        return channel_scales(weights, inputs.hessian, inputs.magnitudes / inputs.tokens, self.scheme.bits, group)


@dataclasses.dataclass(frozen=True, slots=True)
class SmoothedLayer:
    """A `LayerQuantiser`: SmoothQuant for inputs that norms produce, then rounding to nearest.

    Attributes:
        scheme: of the matrices.
        alpha: share of the difficulty that moves from activations to weights, 0 to 1.
    """

    scheme: Scheme
    alpha: float = 0.5
    needs_products = False
    is_sequential = False

    def quantised(self, tensors: Tensors, activations: Mapping[str, Activations]) -> dict[str, QuantisedMatrix]:
        _scaled(tensors, activations, _NORMS, self._scales)
        return {name: self.scheme.nearest(tensors[f"{name}.weight"]) for name in INPUTS}

    def _scales(self, weights: Sequence[torch.Tensor], inputs: Activations) -> torch.Tensor:
        return smoothing_scales(inputs.largest, weights, self.alpha)


def _scaled(
    tensors: Tensors,
    activations: Mapping[str, Activations],
    neighbours: Mapping[str, Sequence[str]],
    scales_of: Callable[[Sequence[torch.Tensor], Activations], torch.Tensor],
) -> dict[str, Activations]:
    """Scales neighbours in place; returns the matrices' new inputs."""
    scaled = dict(activations)
    for source, targets in neighbours.items():
        source_weight, target_weights = tensors[f"{source}.weight"], [tensors[f"{name}.weight"] for name in targets]
        if source_weight.shape[0] != target_weights[0].shape[1]:
            continue  # with grouped queries an output of v is the input of several heads
        scale = scales_of(target_weights, activations[targets[0]])
        for name, weight in zip(targets, target_weights, strict=True):
            tensors[f"{name}.weight"] = (weight * scale).to(weight.dtype)
            scaled[name] = activations[name].scaled(scale)
        for kind in ("weight", "bias"):
            tensor = tensors.get(f"{source}.{kind}")
            if tensor is not None:
                divisor = scale[:, None] if tensor.ndim == 2 else scale
                tensors[f"{source}.{kind}"] = (tensor / divisor).to(tensor.dtype)
    return scaled
