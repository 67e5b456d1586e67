"""Quantises the matrices of one decoder layer, given what they get as inputs on a text.

GPTQ takes each matrix for itself. AWQ moves scales between neighbours first: what a matrix's input is divided by,
the norm or matrix that makes this input takes over.
"""

import dataclasses
from collections.abc import Mapping

import torch

from reference_engine.quantization.activations import Activations
from reference_engine.quantization.awq import channel_scales, clipped
from reference_engine.quantization.gptq import gptq
from reference_engine.quantization.integer_matrix import IntegerMatrix
from reference_engine.quantization.names import CalibratedName
from reference_engine.quantization.rounding import Bits, absmax, zero_point

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
"""The matrices of a layer, and of those with the same input the first."""

_NEIGHBOURS = (
    ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    ("self_attn.v_proj", ("self_attn.o_proj",)),
    ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
    ("mlp.up_proj", ("mlp.down_proj",)),
)
"""What makes an input, and the matrices that get it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """How codes are chosen.

    Attributes:
        bits: of a code.
        group: columns that share a scale; None for a scale for each row.
        symmetric: whether there is no zero point; AWQ always has one.
        act_order: whether GPTQ rounds columns with large inputs first.
    """

    bits: Bits = 4
    group: int | None = 128
    symmetric: bool = True
    act_order: bool = False

    def group_of(self, weight: torch.Tensor) -> int:
        """Columns of this weight that share a scale."""
        return self.group or weight.shape[1]

    def nearest(self, weight: torch.Tensor) -> IntegerMatrix:
        """Rounds a weight [rows, columns] to nearest."""
        return (absmax if self.symmetric else zero_point)(weight, self.bits, self.group_of(weight))


def quantised_layer(
    method: CalibratedName, tensors: Tensors, activations: Mapping[str, Activations], rounding: Rounding
) -> dict[str, IntegerMatrix]:
    """Quantises the matrices of `INPUTS`.

    Args:
        method: by name.
        tensors: of the layer, by their names in it; AWQ replaces those that it scales.
        activations: by name of matrix, on the device of the tensors.
        rounding: how.

    Returns:
        By name of matrix.
    """
    if method == "awq":
        activations = _scaled(tensors, activations, rounding)
    matrices: dict[str, IntegerMatrix] = {}
    for name in INPUTS:
        weight, hessian = tensors[f"{name}.weight"], activations[name].hessian
        group = rounding.group_of(weight)
        if method == "awq":
            matrices[name] = clipped(weight, hessian, rounding.bits, group)
        else:
            matrices[name] = gptq(
                weight, hessian, rounding.bits, group, symmetric=rounding.symmetric, ordered=rounding.act_order
            )
    return matrices


def _scaled(tensors: Tensors, activations: Mapping[str, Activations], rounding: Rounding) -> dict[str, Activations]:
    """Scales neighbours in place; returns what the matrices then get as inputs."""
    scaled = dict(activations)
    for source, targets in _NEIGHBOURS:
        made, taken = tensors[f"{source}.weight"], [tensors[f"{name}.weight"] for name in targets]
        if made.shape[0] != taken[0].shape[1]:
            continue  # with grouped queries an output of v is the input of several heads
        of_input = activations[targets[0]]
        scale = channel_scales(
            taken, of_input.hessian, of_input.magnitudes / of_input.tokens, rounding.bits, rounding.group_of(taken[0])
        )
        for name, weight in zip(targets, taken, strict=True):
            tensors[f"{name}.weight"] = (weight * scale).to(weight.dtype)
            scaled[name] = activations[name].scaled(scale)
        for kind in ("weight", "bias"):
            tensor = tensors.get(f"{source}.{kind}")
            if tensor is not None:
                divisor = scale[:, None] if tensor.ndim == 2 else scale
                tensors[f"{source}.{kind}"] = (tensor / divisor).to(tensor.dtype)
    return scaled
