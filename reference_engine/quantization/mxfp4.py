"""MXFP4 weights (OCP Microscaling Formats 1.0; Rouhani et al., arXiv 2310.10537): 4.25 bits each.

A block of 32 neighbours shares a power of two, scale = 2^(floor(log2(max |w|)) - 2), stored as its exponent (E8M0);
code = w / scale, the nearest of ±0, 0.5, 1, 1.5, 2, 3, 4, 6 (E2M1), ties to even. Above 6 it saturates, with an error
of at most a quarter of the largest weight.
"""

import torch

from bakeoff.reference_engine.errors import CheckpointError
from bakeoff.reference_engine.quantization.block_scales import PlainScales
from bakeoff.reference_engine.quantization.look_up import LookUpMatrix, midpoints

BLOCK = 32
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""By the lower three bits of a code; the fourth is the sign."""
TABLE = torch.tensor([*MAGNITUDES, *(-magnitude for magnitude in MAGNITUDES)])
"""By the code, float32 [16]."""

_LARGEST_EXPONENT = 2
"""Largest exponent of an E2M1 number: 4 = 2^2."""
BIAS = 127
"""Bias of E8M0 exponents."""


def quantised(weight: torch.Tensor) -> LookUpMatrix | None:
    """Quantises a weight [rows, columns] of any floating-point dtype; None if `BLOCK` does not divide the columns."""
    if weight.shape[1] % BLOCK:
        return None
    blocks = weight.float().unflatten(1, (-1, BLOCK))
    _, exponents = torch.frexp(blocks.abs().amax(-1))  # max = m · 2^exponent, 0.5 <= m < 1
    biased = (exponents - 1 - _LARGEST_EXPONENT + BIAS).clamp_(0, 2 * BIAS)
    scales = biased.to(torch.uint8).view(torch.float8_e8m0fnu)
    codes = _nearest(blocks / scales.float()[..., None]).flatten(1)
    return LookUpMatrix.of(codes, TABLE.to(weight.device, copy=True), PlainScales(scales), weight.dtype)


def from_blocks(blocks: torch.Tensor, scales: torch.Tensor) -> LookUpMatrix:
    """A matrix as gpt-oss' checkpoints store it.

    Args:
        blocks: uint8 [rows, blocks of a row, 16]; the lower half of a byte is the earlier code.
        scales: uint8 [rows, blocks of a row], biased exponents.

    Raises:
        CheckpointError: their shapes or dtypes do not fit together.
    """
    if blocks.shape != (*scales.shape, BLOCK // 2) or {blocks.dtype, scales.dtype} != {torch.uint8}:
        raise CheckpointError(
            f"MXFP4 blocks {tuple(blocks.shape)} of {blocks.dtype} do not fit to scales {tuple(scales.shape)} of "
            f"{scales.dtype}; fetch the checkpoint again"
        )
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(1)
    return LookUpMatrix.of(codes, TABLE.clone(), PlainScales(scales.clone().view(torch.float8_e8m0fnu)), torch.float32)


def _nearest(numbers: torch.Tensor) -> torch.Tensor:
    """Codes, uint8."""
    bounds = midpoints(torch.tensor(MAGNITUDES, device=numbers.device))
    # A number on a bound gets the lower code; to give it to an even code above, that bound is lowered by one bit.
    bounds[1::2] = torch.nextafter(bounds[1::2], torch.zeros((), device=bounds.device))
    codes = torch.bucketize(numbers.abs(), bounds, out_int32=True)
    return (codes + 8 * numbers.signbit()).to(torch.uint8)
