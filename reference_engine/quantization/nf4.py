"""NF4 weights (QLoRA: Dettmers et al., arXiv 2305.14314), with the numbers of bitsandbytes.

A block of 64 neighbours has the scale max |w|; code = w / scale, the nearest of 16 quantiles of a normal distribution:
4.5 bits each. Double quantisation (section 3) makes them 4.127: the mean is subtracted from the scales, 256 neighbours
of the rest share a scale, max again, and each becomes the nearest of 256 numbers (`dynamic_map`).
"""

import functools

import torch

from bakeoff.reference_engine.quantization.block_scales import NestedScales, PlainScales
from bakeoff.reference_engine.quantization.look_up import LookUpMatrix, in_blocks, midpoints

BLOCK = 64
NESTED_BLOCK = 256
VALUES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""By code; the paper's appendix E."""
ZERO = VALUES.index(0.0)
"""The code of zero."""

_LEAST = 1e-38
"""Least divisor of a block; a block of zeros gets the code of zero."""


def quantised(weight: torch.Tensor, *, nested: bool = False) -> LookUpMatrix | None:
    """Quantises a weight [rows, columns]; None if `BLOCK` does not divide its columns, since blocks would span rows.

    Args:
        weight: of any floating-point dtype.
        nested: whether scales are quantised, too.
    """
    if weight.shape[1] % BLOCK:
        return None
    table = torch.tensor(VALUES, device=weight.device)
    codes, absmax = coded(weight.float().unflatten(1, (-1, BLOCK)), table)
    scales = nested_scales(absmax) if nested else PlainScales(absmax)
    return LookUpMatrix.of(codes.flatten(1), table, scales, weight.dtype)


def coded(blocks: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of float32 blocks [..., block], uint8 of that shape, and their scales, float32 [...].

    Values are ascending, from -1 to 1.
    """
    absmax = blocks.abs().amax(-1)
    shares = (blocks * absmax.clamp_min(_LEAST).reciprocal()[..., None]).clamp_(-1, 1)
    return torch.bucketize(shares, midpoints(values), out_int32=True).to(torch.uint8), absmax


def nested_scales(absmax: torch.Tensor) -> NestedScales:
    """Quantises scales, float32 [rows, blocks]."""
    offset, table = absmax.mean(), dynamic_map().to(absmax.device)
    codes, nested = coded(in_blocks((absmax - offset).flatten(), NESTED_BLOCK), table)
    own_codes = codes.flatten()[: absmax.numel()].view_as(absmax)
    return NestedScales.of(own_codes, table, nested, offset, NESTED_BLOCK)


@functools.cache
def dynamic_map() -> torch.Tensor:
    """The signed dynamic 8-bit numbers (Dettmers, arXiv 1511.04561, section 2.1), float32 [256], ascending.

    After the sign, leading zeros count powers of ten, a one ends them, and the remaining i bits choose one of 2^i equal
    parts of 0.1 to 1; the number is its middle. Zero and one are added.
    """
    magnitudes = list[torch.Tensor]()
    for bits in range(7):
        bounds = torch.linspace(0.1, 1, 2**bits + 1)
        magnitudes.append(midpoints(bounds) * 10.0 ** (bits - 6))
    positive = torch.cat(magnitudes)
    return torch.cat([-positive, torch.tensor([0.0]), positive, torch.tensor([1.0])]).sort().values
