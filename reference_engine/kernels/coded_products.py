"""Products of few rows with a weight of 4- or 8-bit codes as Triton kernels, and such a weight as plain numbers.

Bound by reading the codes. A tile of codes is the left operand of a tensor core's product and the rows are the right
one, as in `small_products`. Codes become 16-bit numbers without a conversion where they have four bits: below the
implied one, the mantissa of 128 (bfloat16) or 1024 (float16) has room for a code (after Kim et al., arXiv 2211.10017).
A group's scale multiplies its sum, not its weights. Import this module only where `has_triton` holds, or under Triton's
interpreter.
"""

# Kernels are written as Triton's users know them, and its decorator hides their types.
# ruff: noqa: ANN001, ANN202, N803, PLR0917
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false

import functools

import torch
import triton
import triton.language as tl

from reference_engine.kernels.early_start import await_inputs, early_start
from reference_engine.kernels.small_products import add_parts

MAX_ROWS = 64
"""More rows are multiplied by the plain numbers, which costs little beside so many products."""

_TILE_OUTPUTS = 64
_MIN_ROWS = 16  # of a tile; tl.dot takes no fewer
_STEP = 128
_STAGES = 4
_WARPS = 4
_PROGRAMS = 264  # two for each of the 132 SMs of an H100 or H200
_SPLITS = 4
_PLAIN_TILE = 1024
_CAPABILITY = 9  # subtracts pairs of bfloat16 numbers
# Four bytes become two registers of two bfloat16 numbers for their low halves, and two for their high ones.
_PAIRS = """{
.reg .b32 high, implied, zero;
mov.b32 implied, 0x43004300;
mov.b32 zero, %s;
shr.b32 high, $4, 4;
prmt.b32 $0, $4, 0, 0x4140;
prmt.b32 $1, $4, 0, 0x4342;
prmt.b32 $2, high, 0, 0x4140;
prmt.b32 $3, high, 0, 0x4342;
lop3.b32 $0, $0, 0x000F000F, implied, 0xEA;
lop3.b32 $1, $1, 0x000F000F, implied, 0xEA;
lop3.b32 $2, $2, 0x000F000F, implied, 0xEA;
lop3.b32 $3, $3, 0x000F000F, implied, 0xEA;
sub.bf16x2 $0, $0, zero;
sub.bf16x2 $1, $1, zero;
sub.bf16x2 $2, $2, zero;
sub.bf16x2 $3, $3, zero;
}"""
_UNSIGNED_PAIRS = tl.constexpr(_PAIRS % "0x43004300")  # less 128
_SIGNED_PAIRS = tl.constexpr(_PAIRS % "0x43084308")  # less 136
_REGISTERS = tl.constexpr("=&r,=&r,=&r,=&r,r")


def suits_coded_products(outputs: int, inputs: int, group: int) -> bool:
    """Whether whole tiles cover a weight [outputs, inputs] whose groups have `group` columns."""
    return outputs % _TILE_OUTPUTS == 0 and inputs % 32 == 0 and (group % _STEP == 0 or _STEP % group == 0)


def multiply(
    rows: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    bits: int,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Rows · weightᵀ + bias, summed in float32.

    Args:
        rows: [1 to MAX_ROWS, in_features], each contiguous.
        codes: [out_features, bytes of a row]; 8 bits: of any dtype, 4 bits: see `IntegerMatrix`.
            `suits_coded_products` said yes to the shape.
        scales: [groups, out_features].
        offsets: [groups, out_features].
        bits: of a code.
        bias: [out_features].
        dtype: of the result; None for that of the rows.

    Returns:
        [rows, out_features].
    """
    (count, inputs), outputs, groups = rows.shape, codes.shape[0], scales.shape[0]
    group = inputs // groups
    step = next(size for size in (_STEP, 64, 32) if inputs % size == 0 and (group % size == 0 or size == group))
    tiles = outputs // _TILE_OUTPUTS
    splits = 1 if tiles >= _PROGRAMS or inputs % (_SPLITS * step) else _SPLITS
    out = torch.empty(count, outputs, dtype=dtype or rows.dtype, device=rows.device)
    parts = out if splits == 1 else torch.empty(splits, count, outputs, dtype=torch.float32, device=rows.device)
    given_bias = scales if bias is None else bias
    early = early_start(rows, count)
    _multiply[(tiles, splits)](
        parts, rows, codes, scales, scales if offsets is None else offsets, given_bias, count, rows.stride(0),
        OUTPUTS=outputs, INPUTS=inputs, GROUP=group, STEP=step, BITS=bits,
        ROWS=max(_MIN_ROWS, triton.next_power_of_2(count)), TILE_OUTPUTS=_TILE_OUTPUTS, SPLITS=splits,
        HAS_OFFSETS=offsets is not None, HAS_BIAS=bias is not None,
        IN_PAIRS=rows.dtype is torch.bfloat16 and _has_pairs(rows.device),
        num_warps=_WARPS, num_stages=_STAGES, **early,
    )  # fmt: skip
    if splits > 1:
        add_parts(out, parts, bias, early)
    return out


@functools.cache
def _has_pairs(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= _CAPABILITY


def plain(
    codes: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None, bits: int, dtype: torch.dtype
) -> torch.Tensor:
    """The weight as plain numbers [out_features, in_features]; see `multiply` for the arguments."""
    outputs, inputs = codes.shape[0], codes.shape[1] * 8 // bits
    out = torch.empty(outputs, inputs, dtype=dtype, device=codes.device)
    _plain[(outputs, triton.cdiv(inputs, _PLAIN_TILE))](
        out, codes, scales, scales if offsets is None else offsets,
        OUTPUTS=outputs, INPUTS=inputs, GROUP=inputs // scales.shape[0], BITS=bits, TILE=_PLAIN_TILE,
        HAS_OFFSETS=offsets is not None,
    )  # fmt: skip
    return out


def scaled_codes(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as E4M3 codes, and their scales: largest |x| of the row / 448.

    Args:
        rows: [rows, columns], contiguous, in any floating-point dtype.

    Returns:
        [rows, columns] and float32 [rows, 1].
    """
    count, width = rows.shape
    codes = torch.empty(count, width, dtype=torch.float8_e4m3fn, device=rows.device)
    scales = torch.empty(count, 1, dtype=torch.float32, device=rows.device)
    padded = triton.next_power_of_2(width)
    _scaled_codes[(count,)](
        codes, scales, rows, WIDTH=width, PADDED=padded, num_warps=min(16, max(1, padded // 1024)),
        **early_start(rows, count),
    )  # fmt: skip
    return codes, scales


@triton.jit
def _widened(tile, like, HAS_OFFSETS: tl.constexpr, IN_PAIRS: tl.constexpr):
    """The low and the high halves of bytes as numbers of a dtype; less 8 where zero is in the middle."""
    dtype: tl.constexpr = like.dtype
    if IN_PAIRS:
        if HAS_OFFSETS:
            return tl.inline_asm_elementwise(
                _UNSIGNED_PAIRS, _REGISTERS, [tile], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
            )
        return tl.inline_asm_elementwise(
            _SIGNED_PAIRS, _REGISTERS, [tile], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
        )
    zero: tl.constexpr = 0.0 if HAS_OFFSETS else 8.0
    low, high = tile & 15, tile >> 4
    if dtype == tl.bfloat16:
        low = (low.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True) - (128.0 + zero)
        high = (high.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True) - (128.0 + zero)
    elif dtype == tl.float16:
        low = (low.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True) - (1024.0 + zero)
        high = (high.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True) - (1024.0 + zero)
    else:
        low, high = low.to(dtype) - zero, high.to(dtype) - zero
    return low.to(dtype), high.to(dtype)


@triton.jit(do_not_specialize=["count"])
def _multiply(
    out, rows, codes, scales, offsets, bias, count, stride,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, GROUP: tl.constexpr, STEP: tl.constexpr, BITS: tl.constexpr,
    ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, SPLITS: tl.constexpr, HAS_OFFSETS: tl.constexpr,
    HAS_BIAS: tl.constexpr, IN_PAIRS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:  # what comes next is small and can wait beside this
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    output = tl.program_id(0) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    split = tl.program_id(1)
    row = tl.arange(0, ROWS)
    is_row = row < count
    byte = tl.arange(0, STEP * BITS // 8)
    column = byte if BITS == 8 else byte // 16 * 32 + byte % 16
    tiles = codes + output.to(tl.int64)[:, None] * (INPUTS * BITS // 8) + byte[None, :]
    values = rows + row[None, :] * stride + column[:, None]
    share: tl.constexpr = INPUTS // SPLITS
    total = tl.zeros((TILE_OUTPUTS, ROWS), tl.float32)
    for first in range(split * share, (split + 1) * share, STEP):
        tile = tl.load(tiles + first * BITS // 8)
        low = tl.load(values + first, mask=is_row[None, :], other=0.0)
        if BITS == 8:
            if GROUP == INPUTS and not HAS_OFFSETS:
                total = tl.dot(tile.to(low.dtype), low, total, input_precision="ieee")
            else:
                part = tl.dot(tile.to(low.dtype), low, input_precision="ieee")
                sums = tl.sum(low.to(tl.float32), axis=0)
        else:
            high = tl.load(values + first + 16, mask=is_row[None, :], other=0.0)
            low_codes, high_codes = _widened(tile, low, HAS_OFFSETS, IN_PAIRS)
            part = tl.dot(low_codes, low, input_precision="ieee")
            part = tl.dot(high_codes, high, part, input_precision="ieee")
            sums = tl.sum(low.to(tl.float32) + high.to(tl.float32), axis=0)
        if BITS == 4 or GROUP < INPUTS or HAS_OFFSETS:
            group = first // GROUP * OUTPUTS + output
            total += part * tl.load(scales + group).to(tl.float32)[:, None]
            if HAS_OFFSETS:
                total += tl.load(offsets + group)[:, None] * sums[None, :]
    if BITS == 8 and GROUP == INPUTS and not HAS_OFFSETS:
        total *= tl.load(scales + output).to(tl.float32)[:, None]
    if SPLITS == 1 and HAS_BIAS:
        total += tl.load(bias + output).to(tl.float32)[:, None]
    places = out + (split * count + row)[None, :].to(tl.int64) * OUTPUTS + output[:, None]
    tl.store(places, total.to(out.dtype.element_ty), mask=is_row[None, :])


@triton.jit
def _plain(
    out, codes, scales, offsets,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr, TILE: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_column = column < INPUTS
    if BITS == 8:
        number = tl.load(codes + output * INPUTS + column, mask=is_column, other=0).to(tl.float32)
    else:
        byte = tl.load(codes + output * (INPUTS // 2) + column // 32 * 16 + column % 16, mask=is_column, other=0)
        number = ((byte >> (column % 32 // 16 * 4)) & 15).to(tl.float32)
        if not HAS_OFFSETS:
            number -= 8.0
    group = column // GROUP * OUTPUTS + output
    number *= tl.load(scales + group, mask=is_column, other=0.0).to(tl.float32)
    if HAS_OFFSETS:
        number += tl.load(offsets + group, mask=is_column, other=0.0)
    tl.store(out + output * INPUTS + column, number.to(out.dtype.element_ty), mask=is_column)


@triton.jit
def _scaled_codes(codes, scales, rows, WIDTH: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr):
    await_inputs(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    mask = at < WIDTH
    numbers = tl.load(rows + row * WIDTH + at, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(numbers), axis=0) / 448.0, 1.1754943508222875e-38)
    # A quotient may round up past the largest code.
    shares = tl.minimum(tl.maximum(numbers / scale, -448.0), 448.0)
    tl.store(codes + row * WIDTH + at, shares.to(codes.dtype.element_ty), mask=mask)
    tl.store(scales + row, scale)
