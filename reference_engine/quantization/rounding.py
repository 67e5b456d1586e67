"""Round-to-nearest: each group's scale comes from its largest weights, and each weight becomes the nearest code.

- *absmax*: scale = max |w| / limit; code = round(w / scale), zero is a code in the middle. 8 bits: limit 127
  (Dettmers et al., arXiv 2208.07339, section 2.1). 4 bits: limit 7.5, codes -8 to 7, as GPTQ and compressed-tensors.
- *zero-point*: scale = (max - min) / (2^bits - 1); code = round(w / scale) + zero (Jacob et al., arXiv 1712.05877). The
  range includes zero, which stays exact.

Groups are float32 [rows, groups, columns of a group]; scales and the codes of zero are [rows, groups].
"""

from typing import Literal

import torch

from bakeoff.reference_engine.quantization.integer_matrix import IntegerMatrix, pack

Bits = Literal[4, 8]

_LIMITS = {8: 127.0, 4: 7.5}


def absmax(weight: torch.Tensor, bits: Bits, group: int) -> IntegerMatrix:
    """Quantises a weight [rows, columns] symmetrically.

    Args:
        weight: of any floating-point dtype; the scales get the same.
        bits: of a code.
        group: columns that share a scale; divides the columns.
    """
    return _rounded(weight, bits, group, symmetric=True)


def zero_point(weight: torch.Tensor, bits: Bits, group: int) -> IntegerMatrix:
    """Quantises a weight [rows, columns] with a zero point for each group; see `absmax` for the arguments."""
    return _rounded(weight, bits, group, symmetric=False)


def _rounded(weight: torch.Tensor, bits: Bits, group: int, *, symmetric: bool) -> IntegerMatrix:
    groups = weight.float().unflatten(1, (-1, group))
    scales, zeros = scales_of(groups, bits, weight.dtype, symmetric=symmetric)
    return from_codes(nearest(groups, scales, zeros, bits).flatten(1), scales, zeros, bits)


def scales_of(
    groups: torch.Tensor, bits: Bits, dtype: torch.dtype, *, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The scales of groups in a dtype, and the code of zero in each, float32; None for the middle code."""
    if symmetric:
        return _positive(groups.abs().amax(-1) / _LIMITS[bits], dtype), None
    lowest, highest = groups.amin(-1).clamp_max(0), groups.amax(-1).clamp_min(0)
    scales = _positive((highest - lowest) / (2**bits - 1), dtype)
    return scales, (-lowest / scales.float()).round().clamp(0, 2**bits - 1)


def _positive(scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Scales in a dtype, above zero even for a group of zeros."""
    return scales.clamp_min(torch.finfo(dtype).tiny).to(dtype)


def nearest(groups: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: Bits) -> torch.Tensor:
    """The nearest codes, whole numbers 0 to 2^bits - 1 in float32."""
    middle = 2 ** (bits - 1)
    zero = middle if zeros is None else zeros[..., None]
    return ((groups / scales.float()[..., None]).round() + zero).clamp(0, 2 * middle - 1)


def decoded(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: Bits) -> torch.Tensor:
    """The weights that codes from `nearest` stand for."""
    zero = 2 ** (bits - 1) if zeros is None else zeros[..., None]
    return (codes - zero) * scales.float()[..., None]


def from_codes(
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    bits: Bits,
    order: torch.Tensor | None = None,
) -> IntegerMatrix:
    """A matrix of codes 0 to 2^bits - 1 [rows, columns]; see `IntegerMatrix` for `order`."""
    if bits == 8:
        stored = (codes.to(torch.uint8) - 128).view(torch.int8)  # modulo 256
        offsets = None if zeros is None else (128 - zeros.float()) * scales.float()
    else:
        stored = pack(codes.to(torch.uint8))
        offsets = None if zeros is None else -zeros.float() * scales.float()
    return IntegerMatrix(stored, scales, offsets, bits, order)
