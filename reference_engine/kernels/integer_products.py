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

import torch
import triton
import triton.language as tl

from reference_engine.kernels.early_start import early_start
from reference_engine.kernels.small_products import add_parts, splits_of

MAX_ROWS = 64
"""More rows are multiplied by the plain numbers, which costs little beside so many products."""

_TILE_OUTPUTS = 64
_MIN_ROWS = 16  # of a tile; tl.dot takes no fewer
_STEP = 128
_STAGES = 4
_PLAIN_TILE = 1024


def suits_integer_products(outputs: int, inputs: int, group: int) -> bool:
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
        codes: see `IntegerMatrix`, as are scales, offsets and bits; `suits_integer_products` said yes to it.
        scales: [out_features, groups].
        offsets: [out_features, groups].
        bits: of a code.
        bias: [out_features].
        dtype: of the result; None for that of the rows.

    Returns:
        [rows, out_features].
    """
    (count, inputs), outputs = rows.shape, codes.shape[0]
    group = inputs // scales.shape[1]
    step = next(size for size in (_STEP, 64, 32) if inputs % size == 0 and (group % size == 0 or size == group))
    tiles = outputs // _TILE_OUTPUTS
    splits = splits_of(tiles)
    if inputs % (splits * step):
        splits = 1
    out = torch.empty(count, outputs, dtype=dtype or rows.dtype, device=rows.device)
    parts = out if splits == 1 else torch.empty(splits, count, outputs, dtype=torch.float32, device=rows.device)
    given_bias = scales if bias is None else bias
    early = early_start(rows, count)
    _multiply[(tiles, splits)](
        parts, rows, codes, scales, scales if offsets is None else offsets, given_bias, count, rows.stride(0),
        OUTPUTS=outputs, INPUTS=inputs, GROUP=group, STEP=step, BITS=bits,
        ROWS=max(_MIN_ROWS, triton.next_power_of_2(count)), TILE_OUTPUTS=_TILE_OUTPUTS, SPLITS=splits,
        HAS_OFFSETS=offsets is not None, HAS_BIAS=bias is not None, num_warps=4, num_stages=_STAGES, **early,
    )  # fmt: skip
    if splits > 1:
        add_parts(out, parts, bias, early)
    return out


def plain(
    codes: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None, bits: int, dtype: torch.dtype
) -> torch.Tensor:
    """The weight as plain numbers [out_features, in_features]; see `multiply` for the arguments."""
    outputs, inputs = codes.shape[0], codes.shape[1] * 8 // bits
    out = torch.empty(outputs, inputs, dtype=dtype, device=codes.device)
    _plain[(outputs, triton.cdiv(inputs, _PLAIN_TILE))](
        out, codes, scales, scales if offsets is None else offsets,
        INPUTS=inputs, GROUP=inputs // scales.shape[1], BITS=bits, TILE=_PLAIN_TILE, HAS_OFFSETS=offsets is not None,
    )  # fmt: skip
    return out


@triton.jit
def _widened(nibbles, like, HAS_OFFSETS: tl.constexpr):
    """Codes of four bits as numbers of a dtype; less 8 where zero is in the middle."""
    dtype: tl.constexpr = like.dtype
    if dtype == tl.bfloat16:
        number = (nibbles.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True) - 128.0
    elif dtype == tl.float16:
        number = (nibbles.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True) - 1024.0
    else:
        number = nibbles.to(dtype)
    return (number if HAS_OFFSETS else number - 8.0).to(dtype)


@triton.jit(do_not_specialize=["count"])
def _multiply(
    out, rows, codes, scales, offsets, bias, count, stride,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, GROUP: tl.constexpr, STEP: tl.constexpr, BITS: tl.constexpr,
    ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, SPLITS: tl.constexpr, HAS_OFFSETS: tl.constexpr,
    HAS_BIAS: tl.constexpr, EARLY: tl.constexpr,
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
            part = tl.dot(tile.to(low.dtype), low, input_precision="ieee")
            sums = tl.sum(low.to(tl.float32), axis=0)
        else:
            high = tl.load(values + first + 16, mask=is_row[None, :], other=0.0)
            part = tl.dot(_widened(tile & 15, low, HAS_OFFSETS), low, input_precision="ieee")
            part = tl.dot(_widened(tile >> 4, low, HAS_OFFSETS), high, part, input_precision="ieee")
            sums = tl.sum(low.to(tl.float32) + high.to(tl.float32), axis=0)
        group = output * (INPUTS // GROUP) + first // GROUP
        total += part * tl.load(scales + group).to(tl.float32)[:, None]
        if HAS_OFFSETS:
            total += tl.load(offsets + group)[:, None] * sums[None, :]
    if SPLITS == 1 and HAS_BIAS:
        total += tl.load(bias + output).to(tl.float32)[:, None]
    places = out + (split * count + row)[None, :].to(tl.int64) * OUTPUTS + output[:, None]
    tl.store(places, total.to(out.dtype.element_ty), mask=is_row[None, :])


@triton.jit
def _plain(
    out, codes, scales, offsets,
    INPUTS: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr, TILE: tl.constexpr, HAS_OFFSETS: tl.constexpr,
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
    group = output * (INPUTS // GROUP) + column // GROUP
    number *= tl.load(scales + group, mask=is_column, other=0.0).to(tl.float32)
    if HAS_OFFSETS:
        number += tl.load(offsets + group, mask=is_column, other=0.0)
    tl.store(out + output * INPUTS + column, number.to(out.dtype.element_ty), mask=is_column)
