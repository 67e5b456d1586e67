"""Round-to-nearest: each group's scale comes from its largest weights, and each weight becomes the nearest code.

- *absmax*: scale = max |w| / limit; code = round(w / scale), zero is a code in the middle. 8 bits: limit 127
  (Dettmers et al., arXiv 2208.07339, section 2.1). 4 bits: limit 7.5, codes -8 to 7, as GPTQ and compressed-tensors.
- *zero-point*: scale = (max - min) / (2^bits - 1); code = round(w / scale) + zero (Jacob et al., arXiv 1712.05877). The
  range includes zero, which stays exact.
"""

from typing import Literal

import torch

from reference_engine.quantization.integer_matrix import IntegerMatrix, pack

_LIMITS = {8: 127.0, 4: 7.5}


def absmax(weight: torch.Tensor, bits: Literal[4, 8], group: int) -> IntegerMatrix:
    """Quantises a weight [rows, columns] symmetrically.

    Args:
        weight: of any floating-point dtype, which its scales get.
        bits: of a code.
        group: columns that share a scale; divides the columns.
    """
    groups = weight.float().unflatten(1, (-1, group))
    scales = _positive(groups.abs().amax(-1) / _LIMITS[bits], weight.dtype)
    return encoded(groups, scales, None, bits)


def zero_point(weight: torch.Tensor, bits: Literal[4, 8], group: int) -> IntegerMatrix:
    """Quantises a weight [rows, columns] with a zero of its own in each group; see `absmax` for the arguments."""
    groups = weight.float().unflatten(1, (-1, group))
    lowest, highest = groups.amin(-1).clamp_max(0), groups.amax(-1).clamp_min(0)
    scales = _positive((highest - lowest) / (2**bits - 1), weight.dtype)
    zeros = (-lowest / scales.float()).round().clamp(0, 2**bits - 1)
    return encoded(groups, scales, zeros, bits)


def _positive(scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Scales in a dtype; above zero for a group of zeros, too."""
    return scales.clamp_min(torch.finfo(dtype).tiny).to(dtype)


def encoded(
    groups: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: Literal[4, 8]
) -> IntegerMatrix:
    """The nearest codes for given scales.

    Args:
        groups: float32 [rows, groups, columns of a group].
        scales: [rows, groups], positive.
        zeros: the code of zero, of 0 to 2^bits - 1, [rows, groups]; None for the middle.
        bits: of a code.
    """
    middle = 2 ** (bits - 1)
    zero = groups.new_tensor(middle) if zeros is None else zeros.float()[..., None]
    codes = ((groups / scales.float()[..., None]).round() + zero).clamp(0, 2 * middle - 1)
    return from_codes(codes.flatten(1), scales, zeros, bits)


def from_codes(
    codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: Literal[4, 8]
) -> IntegerMatrix:
    """A matrix of codes 0 to 2^bits - 1 [rows, columns]; see `encoded` for the other arguments."""
    if bits == 8:
        stored = (codes.int() - 128).to(torch.int8)
        offsets = None if zeros is None else (128 - zeros.float()) * scales.float()
    else:
        stored = pack(codes.to(torch.uint8))
        offsets = None if zeros is None else -zeros.float() * scales.float()
    return IntegerMatrix(stored, scales, offsets, bits)
