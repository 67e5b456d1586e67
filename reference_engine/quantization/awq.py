"""AWQ (Lin et al., arXiv 2306.00978): important inputs get larger weights, which lose less when they are rounded.

Matrices with the same input x are multiplied by s in each column, and the source of x is divided by s: the model stays
the same. s = (mean |x|)^alpha, scaled so that √(max · min) is 1; alpha is the one of 0, 1/20, …, 19/20 with the least
error of the outputs after rounding. Then a group's largest weights are cut off where that lowers the error.

Errors are tr(ΔW H ΔWᵀ) with H = XᵀX, the squared error of the matrices' outputs. (The paper compares outputs of whole
attention and MLP blocks.)
"""

from collections.abc import Sequence

import torch

from bakeoff.reference_engine.quantization.integer_matrix import IntegerMatrix
from bakeoff.reference_engine.quantization.rounding import Bits, decoded, from_codes, nearest, scales_of

_EXPONENTS = 20
_SHRINKS = 10
_SMALLEST = 0.5
"""Least share of a group's largest weight that clipping keeps."""
_SLAB_ROWS = 256
"""Rows whose clipping is compared at a time: few compared with a matrix."""


def channel_scales(
    weights: Sequence[torch.Tensor], hessian: torch.Tensor, magnitudes: torch.Tensor, bits: Bits, group: int
) -> torch.Tensor:
    """The scale s of each input, float32 [columns], for matrices [rows, columns] that share their input.

    Args:
        weights: of any floating-point dtype.
        hessian: XᵀX, float32 [columns, columns].
        magnitudes: mean |x| of each input, float32 [columns].
        bits: of a code.
        group: columns that share a scale; divides the columns.
    """
    plain = [weight.float() for weight in weights]
    best, least = torch.ones_like(magnitudes), float("inf")
    for step in range(_EXPONENTS):
        scale = magnitudes.clamp_min(1e-4) ** (step / _EXPONENTS)
        scale = scale / (scale.max() * scale.min()).sqrt()
        error = sum(
            _output_error(_round_trip(weight * scale, bits, group) / scale - weight, hessian) for weight in plain
        )
        if error < least:
            best, least = scale, error
    return best


def clipped(weight: torch.Tensor, hessian: torch.Tensor, bits: Bits, group: int) -> IntegerMatrix:
    """Rounds a weight [rows, columns] with a zero point, each group cut off where that lowers the error of the output.

    Args:
        weight: of any floating-point dtype; the scales get the same.
        hessian: XᵀX, float32 [columns, columns]; inputs of different groups are assumed to be uncorrelated.
        bits: of a code.
        group: columns that share a scale; divides the columns.
    """
    groups = weight.float().unflatten(1, (-1, group))
    count = groups.shape[1]
    blocks = torch.stack([hessian[i * group : (i + 1) * group, i * group : (i + 1) * group] for i in range(count)])
    limits = torch.cat([_limits(slab, blocks, bits, weight.dtype) for slab in groups.split(_SLAB_ROWS)])
    groups = groups.clamp(-limits[..., None], limits[..., None])
    scales, zeros = scales_of(groups, bits, weight.dtype, symmetric=False)
    return from_codes(nearest(groups, scales, zeros, bits).flatten(1), scales, zeros, bits)


def _limits(groups: torch.Tensor, blocks: torch.Tensor, bits: Bits, dtype: torch.dtype) -> torch.Tensor:
    """The largest magnitude to keep in each group, [rows, groups]."""
    largest = groups.abs().amax(-1)
    best, least = largest, torch.full_like(largest, float("inf"))
    for step in range(_SHRINKS):
        limit = largest * (1 - (1 - _SMALLEST) * step / _SHRINKS)
        cut = groups.clamp(-limit[..., None], limit[..., None])
        scales, zeros = scales_of(cut, bits, dtype, symmetric=False)
        change = decoded(nearest(cut, scales, zeros, bits), scales, zeros, bits) - groups
        error = (torch.einsum("rgi,gij->rgj", change, blocks) * change).sum(-1)
        best, least = torch.where(error < least, limit, best), torch.minimum(error, least)
    return best


def _round_trip(weight: torch.Tensor, bits: Bits, group: int) -> torch.Tensor:
    groups = weight.unflatten(1, (-1, group))
    scales, zeros = scales_of(groups, bits, weight.dtype, symmetric=False)
    return decoded(nearest(groups, scales, zeros, bits), scales, zeros, bits).flatten(1)


def _output_error(change: torch.Tensor, hessian: torch.Tensor) -> float:
    """tr(ΔW H ΔWᵀ)."""
    return float(((change @ hessian) * change).sum())
