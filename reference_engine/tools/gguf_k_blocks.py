"""Rounds weights to GGUF's blocks of 256 with scales that are quantised themselves: Q4_K and Q6_K.

The layouts are those of ggml (https://github.com/ggml-org/ggml), read by `gguf.quants`, which does not write them. How
a block is rounded is free. Here each sub-block gets the scale, and in Q4_K the offset, that least squares give for its
codes; codes and scale are found in turns from several ranges, of which the best result stays. Errors of large weights
count more, as in llama.cpp.
"""

import gguf
import torch

BLOCK = 256
_RANGES = (1.0, 0.94, 0.88, 0.82)  # of a sub-block's own; a smaller one rounds its outliers worse and the others better
_TURNS = 3
_ROWS = 1 << 14  # blocks at a time
_TINY = 1e-30  # keeps zeros from being divided by


def quantise(weight: torch.Tensor, kind: gguf.GGMLQuantizationType) -> torch.Tensor:
    """Blocks of a matrix.

    Args:
        weight: float32 [rows, columns], whose columns are a multiple of `BLOCK`.
        kind: Q4_K or Q6_K.

    Returns:
        uint8 [rows, bytes of a row].
    """
    rounded = {gguf.GGMLQuantizationType.Q4_K: _q4_k, gguf.GGMLQuantizationType.Q6_K: _q6_k}[kind]
    blocks = weight.reshape(-1, BLOCK)
    parts = [rounded(blocks[first : first + _ROWS]) for first in range(0, len(blocks), _ROWS)]
    return torch.cat(parts).view(len(weight), -1)


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    """Eight sub-blocks of 32: w = d · scale · code - dmin · offset, codes of 4 bits, scales and offsets of 6."""
    parts = blocks.reshape(len(blocks), 8, 32)
    scales, offsets = _fitted(parts)
    step, scale_codes = _quantised_scales(scales)
    offset_step, offset_codes = _quantised_scales(offsets)
    codes = _codes(parts, step * scale_codes, offset_step * offset_codes).to(torch.uint8)
    halves = codes.reshape(len(blocks), 4, 2, 32)
    packed = (halves[:, :, 0] | (halves[:, :, 1] << 4)).reshape(len(blocks), 128)
    fine, offset_fine = scale_codes.to(torch.uint8), offset_codes.to(torch.uint8)
    six_bits = torch.cat(
        [
            fine[:, :4] | (fine[:, 4:] >> 4 << 6),
            offset_fine[:, :4] | (offset_fine[:, 4:] >> 4 << 6),
            (fine[:, 4:] & 15) | ((offset_fine[:, 4:] & 15) << 4),
        ],
        dim=1,
    )
    return torch.cat([_half(step), _half(offset_step), six_bits, packed], dim=1)


def _quantised_scales(scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The step of a block's scales as it is stored, [blocks, 1], and the scales' codes of 6 bits."""
    step = (scales.amax(dim=1, keepdim=True) / 63).half().float()
    return step, (scales / step.clamp(min=_TINY)).round().clamp(0, 63)


def _fitted(parts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and offsets, both at least 0, of sub-blocks [blocks, sub-blocks, 32]: w ≈ scale · code - offset."""
    importance = parts.square().mean(dim=-1, keepdim=True).sqrt() + parts.abs()
    low = parts.amin(dim=-1).clamp(max=0)
    width = parts.amax(dim=-1).clamp(min=0) - low
    best_scale, best_offset = width / 15, -low
    best = _error(parts, importance, best_scale, best_offset)
    for share in _RANGES:
        scale, offset = width * share / 15, -low * share
        for _ in range(_TURNS):
            codes = _codes(parts, scale, offset)
            scale, offset = _least_squares(parts, importance, codes)
            error = _error(parts, importance, scale, offset)
            better = error < best
            best = torch.where(better, error, best)
            best_scale, best_offset = torch.where(better, scale, best_scale), torch.where(better, offset, best_offset)
    return best_scale, best_offset


def _codes(parts: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    return ((parts + offset[..., None]) / scale.clamp(min=_TINY)[..., None]).round().clamp(0, 15)


def _error(parts: torch.Tensor, importance: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    decoded = scale[..., None] * _codes(parts, scale, offset) - offset[..., None]
    return (importance * (decoded - parts) ** 2).sum(dim=-1)


def _least_squares(
    parts: torch.Tensor, importance: torch.Tensor, codes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale and the offset with the smallest error for given codes; neither may be negative."""
    total, first = importance.sum(dim=-1), (importance * codes).sum(dim=-1)
    second, values = (importance * codes**2).sum(dim=-1), (importance * parts).sum(dim=-1)
    mixed = (importance * codes * parts).sum(dim=-1)
    spread = total * second - first**2
    scale = (total * mixed - first * values) / spread.clamp(min=_TINY)
    offset = (first * mixed - second * values) / spread.clamp(min=_TINY)
    alone = mixed / second.clamp(min=_TINY)  # the best scale without an offset
    is_alone = (offset < 0) | (spread <= 0)
    return torch.where(is_alone, alone, scale).clamp(min=0), offset.masked_fill(is_alone, 0)


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    """Sixteen sub-blocks of 16: w = d · scale · (code - 32), codes of 6 bits, scales of 8 with a sign."""
    parts = blocks.reshape(len(blocks), 16, 16)
    scales = _fitted_symmetric(parts)
    step = (scales.abs().amax(dim=1, keepdim=True) / 127).half().float()
    scale_codes = (scales / step.clamp(min=_TINY)).round().clamp(-127, 127)
    codes = _symmetric_codes(parts, step * scale_codes).int() + 32
    quarters = codes.to(torch.uint8).reshape(len(blocks), 2, 4, 32)
    low = (quarters[:, :, :2] & 15) | ((quarters[:, :, 2:] & 15) << 4)
    high = quarters >> 4
    packed = high[:, :, 0] | (high[:, :, 1] << 2) | (high[:, :, 2] << 4) | (high[:, :, 3] << 6)
    return torch.cat(
        [
            low.reshape(len(blocks), 128),
            packed.reshape(len(blocks), 64),
            scale_codes.to(torch.int8).view(torch.uint8),
            _half(step),
        ],
        dim=1,
    )


def _fitted_symmetric(parts: torch.Tensor) -> torch.Tensor:
    """Scales of sub-blocks [blocks, sub-blocks, 16] with codes from -32 to 31: their sign lets the largest be -32."""
    importance = parts**2
    largest = parts.gather(-1, parts.abs().argmax(dim=-1, keepdim=True))[..., 0]
    best_scale = -largest / 32
    best = _symmetric_error(parts, importance, best_scale)
    for share in _RANGES:
        scale = -largest * share / 32
        for _ in range(_TURNS):
            codes = _symmetric_codes(parts, scale)
            second = (importance * codes**2).sum(dim=-1)
            scale = (importance * codes * parts).sum(dim=-1) / second.clamp(min=_TINY)
            error = _symmetric_error(parts, importance, scale)
            better = error < best
            best, best_scale = torch.where(better, error, best), torch.where(better, scale, best_scale)
    return best_scale


def _symmetric_codes(parts: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    safe = scale.masked_fill(scale.abs() < _TINY, _TINY)
    return (parts / safe[..., None]).round().clamp(-32, 31)


def _symmetric_error(parts: torch.Tensor, importance: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    decoded = scale[..., None] * _symmetric_codes(parts, scale)
    return (importance * (decoded - parts) ** 2).sum(dim=-1)


def _half(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.half().view(torch.uint8)
