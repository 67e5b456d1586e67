"""Weights in the blocks of GGUF files: the formats, and their meaning in stock torch on any device.

A block holds 32 or 256 neighbouring weights of one row as small whole numbers, with scales in float16; the layouts are
ggml's (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h). This module is the reference that tests compare
`blocks.h` with, and the fallback where nothing is compiled. Both give the same bits.
"""

import dataclasses
from collections.abc import Callable

import torch

_LARGE = 256  # weights in one block of the K formats


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """Contents of blocks: number · scale + offset.

    Attributes:
        numbers: whole numbers, uint8 or int8 [count, elements].
        scales: float32 [count, groups]; neighbours share one.
        offsets: float32 [count, groups]; None for none.
    """

    numbers: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class BlockFormat:
    """One of ggml's formats.

    Attributes:
        name: as ggml spells it.
        number: identifies the format in files.
        elements: weights in one block.
        bytes: of one block.
        bits: 4 or 8, enough to hold its numbers.
        group: neighbours that share a scale.
        has_offsets: whether there are offsets.
        parts: takes blocks apart, [count, bytes].
    """

    name: str
    number: int
    elements: int
    bytes: int
    bits: int
    group: int
    has_offsets: bool
    parts: Callable[[torch.Tensor], Parts]

    def unpack(self, blocks: torch.Tensor) -> torch.Tensor:
        """Blocks [count, bytes] -> float32 [count, elements]."""
        parts = self.parts(blocks)
        grouped = parts.numbers.float().unflatten(1, (-1, self.group)) * parts.scales[..., None]
        return (grouped if parts.offsets is None else grouped + parts.offsets[..., None]).flatten(1)


def _half(blocks: torch.Tensor, first: int) -> torch.Tensor:
    """The float16 that begins at byte `first` of each block, as float32 [count, 1]."""
    return blocks[:, first : first + 2].contiguous().view(torch.float16).float()


def _shifted(packed: torch.Tensor, step: int) -> torch.Tensor:
    """Numbers of `step` bits out of bytes [..., n]: the lowest of all bytes, then the next: [..., 8 // step, n]."""
    shifts = torch.arange(0, 8, step, dtype=torch.uint8, device=packed.device)
    return (packed[..., None, :] >> shifts[:, None]) & ((1 << step) - 1)


def _fifth(mask: torch.Tensor) -> torch.Tensor:
    """Bits of bytes [count, 4], the lowest of each byte first, as 0 or 16: [count, 32]."""
    return _shifted(mask, 1).transpose(-1, -2).reshape(-1, 32) << 4


def _q8_0(blocks: torch.Tensor) -> Parts:
    return Parts(blocks[:, 2:].view(torch.int8), _half(blocks, 0))


def _legacy(blocks: torch.Tensor, *, has_minimum: bool, has_fifth: bool) -> Parts:
    header = 4 if has_minimum else 2
    numbers = _shifted(blocks[:, -16:], 4).flatten(1)
    if has_fifth:
        numbers = numbers | _fifth(blocks[:, header : header + 4])
    if has_minimum:
        return Parts(numbers, _half(blocks, 0), _half(blocks, 2))
    return Parts(numbers.view(torch.int8) - (16 if has_fifth else 8), _half(blocks, 0))


def _q4_0(blocks: torch.Tensor) -> Parts:
    return _legacy(blocks, has_minimum=False, has_fifth=False)


def _q4_1(blocks: torch.Tensor) -> Parts:
    return _legacy(blocks, has_minimum=True, has_fifth=False)


def _q5_0(blocks: torch.Tensor) -> Parts:
    return _legacy(blocks, has_minimum=False, has_fifth=True)


def _q5_1(blocks: torch.Tensor) -> Parts:
    return _legacy(blocks, has_minimum=True, has_fifth=True)


def _k45(blocks: torch.Tensor, low: torch.Tensor, high: torch.Tensor | None) -> Parts:
    """Q4_K, and Q5_K with a fifth bit [count, 8, 32]: eight parts, each with a scale and a minimum of 6 bits."""
    scales, minima, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scale = torch.cat((scales & 63, (rest & 15) | ((scales >> 2) & 48)), dim=1)
    minimum = torch.cat((minima & 63, (rest >> 4) | ((minima >> 2) & 48)), dim=1)
    step, least = scale.float() * _half(blocks, 0), minimum.float() * _half(blocks, 2)
    numbers = _shifted(low.unflatten(1, (4, 32)), 4).flatten(1, 2)
    if high is not None:
        numbers = numbers | (high << 4)
    return Parts(numbers.flatten(1), step, -least)


def _q4_k(blocks: torch.Tensor) -> Parts:
    return _k45(blocks, blocks[:, 16:], None)


def _q5_k(blocks: torch.Tensor) -> Parts:
    return _k45(blocks, blocks[:, 48:], _shifted(blocks[:, 16:48], 1))


def _q6_k(blocks: torch.Tensor) -> Parts:
    low = _shifted(blocks[:, :128].unflatten(1, (2, 64)), 4).reshape(-1, 8, 32)
    high = _shifted(blocks[:, 128:192].unflatten(1, (2, 32)), 2).reshape(-1, 8, 32)
    numbers = (low | (high << 4)).flatten(1).view(torch.int8) - 32
    return Parts(numbers, blocks[:, 192:208].view(torch.int8).float() * _half(blocks, 208))


def _q2_k(blocks: torch.Tensor) -> Parts:
    pairs, numbers = blocks[:, :16], _shifted(blocks[:, 16:80].unflatten(1, (2, 32)), 2).reshape(-1, 16, 16)
    scale, least = (pairs & 15).float() * _half(blocks, 80), (pairs >> 4).float() * _half(blocks, 82)
    return Parts(numbers.flatten(1), scale, -least)


def _q3_k(blocks: torch.Tensor) -> Parts:
    low = _shifted(blocks[:, 32:96].unflatten(1, (2, 32)), 2).reshape(-1, 16, 16)
    numbers = low | (_shifted(blocks[:, :32], 1).reshape(-1, 16, 16) << 2)
    scale = _shifted(blocks[:, 96:104], 4).flatten(1) | (_shifted(blocks[:, 104:108], 2).flatten(1) << 4)
    return Parts(numbers.flatten(1).view(torch.int8) - 4, (scale.float() - 32) * _half(blocks, 108))


FORMATS = {
    block_format.name: block_format
    for block_format in (
        BlockFormat("Q4_0", 2, 32, 18, 4, 32, False, _q4_0),
        BlockFormat("Q4_1", 3, 32, 20, 4, 32, True, _q4_1),
        BlockFormat("Q5_0", 6, 32, 22, 8, 32, False, _q5_0),
        BlockFormat("Q5_1", 7, 32, 24, 8, 32, True, _q5_1),
        BlockFormat("Q8_0", 8, 32, 34, 8, 32, False, _q8_0),
        BlockFormat("Q2_K", 10, _LARGE, 84, 4, 16, True, _q2_k),
        BlockFormat("Q3_K", 11, _LARGE, 110, 4, 16, False, _q3_k),
        BlockFormat("Q4_K", 12, _LARGE, 144, 4, 32, True, _q4_k),
        BlockFormat("Q5_K", 13, _LARGE, 176, 8, 32, True, _q5_k),
        BlockFormat("Q6_K", 14, _LARGE, 210, 8, 16, False, _q6_k),
    )
}
"""All supported formats by name."""
