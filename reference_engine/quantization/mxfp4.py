"""MXFP4 weights (OCP Microscaling Formats 1.0; Rouhani et al., arXiv 2310.10537): 4.25 bits each.

A block of 32 neighbours shares a power of two, scale = 2^(floor(log2(max |w|)) - 2), stored as its exponent (E8M0);
code = w / scale, the nearest of ±0, 0.5, 1, 1.5, 2, 3, 4, 6 (E2M1), ties to even. Above 6 it saturates, with an error
of at most a quarter of the largest weight.
"""

import torch

from bakeoff.reference_engine.quantization.block_scales import PlainScales
from bakeoff.reference_engine.quantization.look_up import LookUpMatrix, midpoints

BLOCK = 32
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""By the lower three bits of a code; the fourth is the sign."""

_LARGEST_EXPONENT = 2
"""Largest exponent of an E2M1 number: 4 = 2^2."""
_BIAS = 127
"""Bias of E8M0 exponents."""


def quantised(weight: torch.Tensor) -> LookUpMatrix | None:
    """Quantises a weight [rows, columns] of any floating-point dtype; None if `BLOCK` does not divide the columns."""
    if weight.shape[1] % BLOCK:
        return None
    blocks = weight.float().unflatten(1, (-1, BLOCK))
    _, exponents = torch.frexp(blocks.abs().amax(-1))  # max = m · 2^exponent, 0.5 <= m < 1
    biased = (exponents - 1 - _LARGEST_EXPONENT + _BIAS).clamp_(0, 2 * _BIAS)
    scales = biased.to(torch.uint8).view(torch.float8_e8m0fnu)
    codes = _nearest(blocks / scales.float()[..., None]).flatten(1)
    magnitudes = torch.tensor(MAGNITUDES, device=weight.device)
    return LookUpMatrix.of(codes, torch.cat([magnitudes, -magnitudes]), PlainScales(scales), weight.dtype)


def _nearest(numbers: torch.Tensor) -> torch.Tensor:
    """Codes, uint8."""
    bounds = midpoints(torch.tensor(MAGNITUDES, device=numbers.device))
    # A number on a bound gets the lower code; to give it to an even code above, that bound is lowered by one bit.
    bounds[1::2] = torch.nextafter(bounds[1::2], torch.zeros((), device=bounds.device))
    codes = torch.bucketize(numbers.abs(), bounds, out_int32=True)
    return (codes + 8 * numbers.signbit()).to(torch.uint8)
