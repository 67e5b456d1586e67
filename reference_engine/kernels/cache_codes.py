"""Codes of a quantised KV cache in Triton kernels: encodes rows as `kv_cache.quantised` does, and decodes them.

Codes become bfloat16 numbers in pairs, without a conversion. For int8 see `code_words`. The bits of an e4m3 code are
those of a bfloat16 number that is smaller by a factor of 2^120, subnormal ones among them, once they are moved to its
places: bfloat16 has four more bits of exponent and of mantissa. `code_scales` and `rescaled` each bring back half of
that factor: times a large scale, all of it would leave float32's range. Import this module only where `has_triton`
holds, or under Triton's interpreter.
"""

# Kernels are written as Triton's users know them, and its decorator hides their types.
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0917, RET505
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl

from bakeoff.reference_engine.kernels.code_words import numbers_of_bytes
from bakeoff.reference_engine.kernels.early_start import await_inputs, early_start
from bakeoff.reference_engine.kernels.operands import require_packed, require_rows

_PLAIN, _INT8, _E4M3 = 0, 1, 2
_HALF_FACTOR = tl.constexpr(2.0**60)
_ENCODINGS = {torch.int8: _INT8, torch.uint8: _E4M3}


def _instructions(*lines: str) -> tl.constexpr:
    return tl.constexpr("{\n.reg .b32 pair, sign;\n" + "\n".join(lines) + "\n}")


def _from_e4m3(out: str, pair: str) -> list[str]:
    """As `numbers_of_bytes`, for codes in the higher bytes; the numbers are times 2^-120."""
    return [
        f"and.b32 sign, {pair}, 0x80008000;",
        f"shr.b32 pair, {pair}, 4;",
        f"lop3.b32 {out}, pair, 0x07F007F0, sign, 0xEA;",
    ]


# Four bytes to two pairs, and the lower and the higher bytes of a pair of 16 bits.
_INT8_BYTES = _instructions(
    "prmt.b32 pair, $2, 0, 0x4140;", *numbers_of_bytes("$0", "pair"),
    "prmt.b32 pair, $2, 0, 0x4342;", *numbers_of_bytes("$1", "pair"),
)  # fmt: skip
_E4M3_BYTES = _instructions(
    "prmt.b32 pair, $2, 0, 0x1404;", *_from_e4m3("$0", "pair"),
    "prmt.b32 pair, $2, 0, 0x3424;", *_from_e4m3("$1", "pair"),
)  # fmt: skip
_INT8_LOW = _instructions(*numbers_of_bytes("$0", "$1"))
_INT8_HIGH = _instructions("shr.b32 pair, $1, 8;", *numbers_of_bytes("$0", "pair"))
_E4M3_LOW = _instructions("shl.b32 pair, $1, 8;", *_from_e4m3("$0", "pair"))
_E4M3_HIGH = _instructions(*_from_e4m3("$0", "$1"))


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
def decoded(codes, ENCODING: tl.constexpr, dtype: tl.constexpr, IN_PAIRS: tl.constexpr):
    """Codes as numbers, which times `code_scales` and `rescaled` are keys or values; other elements unchanged.

    Args:
        codes: one in each byte.
        ENCODING: from `encoding_of`.
        dtype: of the numbers.
        IN_PAIRS: whether the device computes with pairs of bfloat16 numbers, see `code_words.has_pairs`.
    """
    if ENCODING == 0:
        return codes
    elif IN_PAIRS and dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            _INT8_BYTES if ENCODING == 1 else _E4M3_BYTES, "=&r,=&r,r", [codes], dtype=tl.bfloat16, is_pure=True, pack=4
        )
    else:
        return _number(codes.to(tl.uint8, bitcast=True).to(tl.uint16), ENCODING, dtype)


@triton.jit
def decoded_halves(pairs, ENCODING: tl.constexpr, dtype: tl.constexpr, IN_PAIRS: tl.constexpr):
    """The same for two codes in each element: the numbers of the lower and of the higher bytes.

    Tensor cores take the values of several tokens together, which shared memory hands out by 16 bits, not by bytes.
    """
    if IN_PAIRS and dtype == tl.bfloat16:
        low: tl.constexpr = _INT8_LOW if ENCODING == 1 else _E4M3_LOW
        high: tl.constexpr = _INT8_HIGH if ENCODING == 1 else _E4M3_HIGH
        return (
            tl.inline_asm_elementwise(low, "=&r,r", [pairs], dtype=tl.bfloat16, is_pure=True, pack=2),
            tl.inline_asm_elementwise(high, "=&r,r", [pairs], dtype=tl.bfloat16, is_pure=True, pack=2),
        )
    else:
        return _number(pairs & 0xFF, ENCODING, dtype), _number(pairs >> 8, ENCODING, dtype)


@triton.jit
def _number(codes, ENCODING: tl.constexpr, dtype: tl.constexpr):
    """Codes in the lower bytes of 16 bits."""
    if ENCODING == 1:
        return ((codes.to(tl.int16) ^ 128) - 128).to(tl.float32).to(dtype)
    elif dtype == tl.bfloat16:
        return (((codes & 0x80) << 8) | ((codes & 0x7F) << 4)).to(tl.bfloat16, bitcast=True)
    else:  # the exponent of float16 has a bias that is higher by 8
        return (((codes & 0x80) << 8) | ((codes & 0x7F) << 7)).to(tl.float16, bitcast=True).to(dtype)


@triton.jit
def rescaled(numbers, ENCODING: tl.constexpr, dtype: tl.constexpr):
    """Queries in front of keys from `decoded`, or sums of such values; `dtype` is that of the keys and values."""
    if ENCODING == 2 and dtype == tl.bfloat16:
        return (numbers.to(tl.float32) * _HALF_FACTOR).to(numbers.dtype)
    else:
        return numbers


@triton.jit
def code_scales(scales, vectors, mask, ENCODING: tl.constexpr, dtype: tl.constexpr):
    """Factors for numbers of this type from `decoded`, of the vectors with these indices; 0 where the mask is false."""
    # In pairs: loads of two bytes cannot be asynchronous.
    pairs = tl.load(scales.to(tl.pointer_type(tl.int32), bitcast=True) + vectors // 2, mask=mask, other=0)
    factors = tl.where(vectors % 2 == 0, pairs << 16, pairs & -65536).to(tl.float32, bitcast=True)
    if ENCODING == 2:
        factors *= _HALF_FACTOR if dtype == tl.bfloat16 else 256.0
    return factors


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
