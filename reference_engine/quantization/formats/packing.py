"""Whole numbers of 4 or 8 bits packed in words of 32, the first number in the lowest bits, as in all these formats."""

import torch
from torch.nn.functional import pad

from bakeoff.reference_engine.quantization.rounding import Bits

WORD = 32
"""Bits of a word, which checkpoints store as int32."""
_AWQ_SHAPE = (2, 4)


def packed(codes: torch.Tensor, bits: Bits) -> torch.Tensor:
    """Codes, uint8 [..., count], as int32 [..., words]; unused bits of the last word are zero."""
    codes = pad(codes, (0, -codes.shape[-1] % (WORD // bits)))
    octets = codes if bits == 8 else codes[..., ::2] | (codes[..., 1::2] << 4)
    return _dense(octets).view(torch.int32)


def unpacked(words: torch.Tensor, bits: Bits) -> torch.Tensor:
    """Inverse of `packed`: uint8 [..., words * 32 / bits], unused bits of the last word included."""
    octets = _dense(words).view(torch.uint8)
    return octets if bits == 8 else torch.stack((octets & 15, octets >> 4), dim=-1).flatten(-2)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with contiguous rows; `contiguous` would keep odd strides of a single column."""
    return tensor.clone(memory_format=torch.contiguous_format)


def interleaved(codes: torch.Tensor) -> torch.Tensor:
    """Groups of 8 neighbours [..., count] in AWQ's order 0, 2, 4, 6, 1, 3, 5, 7, which saves its kernels shifts."""
    return codes.unflatten(-1, (-1, *_AWQ_SHAPE[::-1])).transpose(-1, -2).flatten(-3)


def in_sequence(codes: torch.Tensor) -> torch.Tensor:
    """Inverse of `interleaved`."""
    return codes.unflatten(-1, (-1, *_AWQ_SHAPE)).transpose(-1, -2).flatten(-3)
