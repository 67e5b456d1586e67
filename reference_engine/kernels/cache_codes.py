"""Codes of a quantised KV cache in Triton kernels: encodes rows as `kv_cache.quantised` does, and decodes them.

e4m3 bytes are taken apart with integer operations, which every GPU and Triton's interpreter have. Import this module
only where `has_triton` holds, or under Triton's interpreter.
"""

# Kernels are written as Triton's users know them, and its decorator hides their types.
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0917
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl

from bakeoff.reference_engine.kernels.early_start import await_inputs, early_start
from bakeoff.reference_engine.kernels.operands import require_packed, require_rows

_PLAIN, _INT8, _E4M3 = 0, 1, 2
_ENCODINGS = {torch.int8: _INT8, torch.uint8: _E4M3}


def encoding_of(codes: torch.Tensor) -> int:
    """The `ENCODING` of kernels that read such a cache; 0 where elements are kept as they are."""
    return _ENCODINGS.get(codes.dtype, _PLAIN)


def store_codes(
    cache: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Quantises new tokens and writes them into the cache.

    Args:
        cache: codes of keys and of values, int8 or uint8 [num_blocks, block_size, kv_heads, dim]; their scales,
            bfloat16 [num_blocks, block_size, kv_heads, 1].
        key: [tokens, kv_heads, dim]; the heads of a token contiguous, tokens may be parts of longer rows.
        value: the same.
        slots: int32 [tokens], block · block_size + place in the block.
    """
    require_packed(None, *cache)
    require_rows(None, key, value)
    require_packed(torch.int32, slots)
    heads, dim = key.shape[1:]
    _store_codes[(slots.shape[0],)](
        *cache, key, value, slots, key.stride(0), value.stride(0),
        HEADS=heads, PADDED_HEADS=triton.next_power_of_2(heads), DIM=dim, PADDED_DIM=triton.next_power_of_2(dim),
        ENCODING=encoding_of(cache[0]), **early_start(key, slots.shape[0]),
    )  # fmt: skip


@triton.jit
def decoded(codes, ENCODING: tl.constexpr, dtype: tl.constexpr):
    """Codes as numbers, which times `code_scales` are keys or values; other elements unchanged."""
    numbers = codes
    if ENCODING == 1:
        numbers = codes.to(dtype)
    if ENCODING == 2:
        # Moves sign, exponent and mantissa to their places in a float16, whose exponent bias is 8 higher.
        wide = codes.to(tl.uint16)
        numbers = (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True).to(dtype)
    return numbers


@triton.jit
def code_scales(scales, vectors, mask, ENCODING: tl.constexpr):
    """Factors for the numbers from `decoded`, of the vectors with these indices; 0 where the mask is false."""
    # In pairs: loads of two bytes cannot be asynchronous.
    pairs = tl.load(scales.to(tl.pointer_type(tl.int32), bitcast=True) + vectors // 2, mask=mask, other=0)
    factors = tl.where(vectors % 2 == 0, pairs << 16, pairs & -65536).to(tl.float32, bitcast=True)
    return factors * 256.0 if ENCODING == 2 else factors


@triton.jit
def _store_codes(
    keys, values, key_scales, value_scales, key, value, slots, key_stride, value_stride,
    HEADS: tl.constexpr, PADDED_HEADS: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    ENCODING: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    await_inputs(EARLY)
    token = tl.program_id(0).to(tl.int64)
    vector = tl.load(slots + token).to(tl.int64) * HEADS
    _store_row(keys, key_scales, key + token * key_stride, vector, HEADS, PADDED_HEADS, DIM, PADDED_DIM, ENCODING)
    _store_row(
        values, value_scales, value + token * value_stride, vector, HEADS, PADDED_HEADS, DIM, PADDED_DIM, ENCODING
    )


@triton.jit
def _store_row(
    codes, scales, row, vector,
    HEADS: tl.constexpr, PADDED_HEADS: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    ENCODING: tl.constexpr,
):  # fmt: skip
    """Quantises the heads of a token; each line rounds as `kv_cache.quantised` does."""
    head, dims = tl.arange(0, PADDED_HEADS), tl.arange(0, PADDED_DIM)
    is_head = head < HEADS
    mask = is_head[:, None] & (dims < DIM)[None, :]
    places = head[:, None] * DIM + dims[None, :]
    numbers = tl.load(row + places, mask=mask, other=0.0).to(tl.float32)

    largest: tl.constexpr = 127.0 if ENCODING == 1 else 448.0
    top = tl.max(tl.abs(numbers), axis=1)
    exact = tl.div_rn(top, tl.full((PADDED_HEADS,), largest, tl.float32)).to(tl.int32, bitcast=True)
    scale = (((exact + 0xFFFF) >> 16) << 16).to(tl.float32, bitcast=True)  # up to the next bfloat16
    divisor = tl.broadcast_to(tl.maximum(scale, 1.1754943508222875e-38)[:, None], (PADDED_HEADS, PADDED_DIM))
    scaled = tl.minimum(tl.maximum(tl.div_rn(numbers, divisor), -largest), largest)
    if ENCODING == 1:
        encoded = _nearest(scaled).to(tl.int8)
    else:
        bits = scaled.to(tl.int32, bitcast=True)
        size = bits & 0x7FFFFFFF
        normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)  # three bits of mantissa, bias 7 for 127
        small = _nearest(tl.abs(scaled) * 512.0).to(tl.int32)  # steps of 2^-9 below 2^-6
        encoded = (tl.where(tl.abs(scaled) < 0.015625, small, normal) | ((bits >> 24) & 0x80)).to(tl.uint8)
    tl.store(codes + vector * DIM + places, encoded, mask=mask)
    tl.store(scales + vector + head, scale.to(tl.bfloat16), mask=is_head)


@triton.jit
def _nearest(numbers):
    """Rounds numbers below 2^22 to the nearest integer, half to even: there float32 has steps of 1."""
    return numbers + 12582912.0 - 12582912.0
