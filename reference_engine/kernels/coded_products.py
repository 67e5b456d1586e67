"""Products with a weight of 4- or 8-bit codes as Triton kernels, and such a weight as plain numbers.

For few rows the time goes into reading and unpacking the codes: a tile of codes is the left operand of a tensor core's
product and the rows are the right one, as in `small_products`. More rows are cut into tiles, and the codes are unpacked
again for each. `code_words` describes how codes are laid out and converted to numbers. Import this module only where
`has_triton` is true, or under Triton's interpreter.
"""

# Kernels are written as Triton's users know them, and its decorator hides their types.
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0917
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false

from typing import Any

import torch
import triton
import triton.language as tl

from bakeoff.reference_engine.kernels.code_words import Words, codes_of, has_pairs, less_zero, words_of_block
from bakeoff.reference_engine.kernels.early_start import early_start
from bakeoff.reference_engine.kernels.operands import require_packed, require_rows
from bakeoff.reference_engine.kernels.small_products import add_parts, splits_of

MAX_ROWS = {4: 256, 8: 256}
"""By bits of a code. Beyond that, converting to plain numbers each time and multiplying with cuBLAS is faster."""

_TILE_OUTPUTS, _WARPS_OF_TILE = 64, 4  # where larger tiles do not fit
SHAPES = {16: (64, 2, 4), 32: (64, 4, 3), 64: (64, 4, 3), 128: (128, 8, 2)}
"""By the largest number of rows of a tile: its outputs, warps and stages of the pipeline. Two warps multiply without
waiting for each other."""
_MIN_ROWS = 16  # of a tile; tl.dot takes no fewer
MAX_ROWS_SCALED_AFTER = 16
"""Tiles with more rows have more sums than numbers to scale."""
_FEW_ROWS = 64
_HALF_BYTES = 2  # of numbers that tensor cores multiply without rounding
_PROGRAMS = 92  # keep most of the 132 SMs of an H100 or H200 busy
_SPLITS_OF_MANY = (1, 2, 4)
_PLAIN_OUTPUTS = 32


def suits_coded_products(outputs: int, group: int) -> bool:
    """Whether a weight with so many outputs, whose groups have `group` columns, consists of whole tiles."""
    return outputs % _TILE_OUTPUTS == 0 and words_of_block(group) is not None


def max_rows(weight: Words, dtype: torch.dtype) -> int:
    """Rows of a dtype up to which `multiply` is faster than a product with `plain` numbers."""
    return MAX_ROWS[weight.bits] if dtype.itemsize == _HALF_BYTES else _FEW_ROWS


def multiply(
    rows: torch.Tensor, weight: Words, bias: torch.Tensor | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Rows · weightᵀ + bias, summed in float32; codes minus their zeros are rounded to the dtype of the rows.

    Args:
        rows: [at least one, in_features], each contiguous.
        weight: `suits_coded_products` is true of it.
        bias: [out_features].
        dtype: of the result; None for that of the rows.

    Returns:
        [rows, out_features].
    """
    require_rows(None, rows)
    require_packed(None, bias)
    count, outputs = rows.shape[0], weight.words.shape[0]
    blocks = weight.words.shape[1] // weight.block_words
    row_tile, tile_outputs, warps, stages = tile_of(weight, outputs, count, rows.dtype)
    row_tiles, tiles = triton.cdiv(count, row_tile), outputs // tile_outputs
    splits = min(splits_of(tiles) if count <= _FEW_ROWS else _splits_of_many(row_tiles * tiles), blocks)
    out = torch.empty(count, outputs, dtype=dtype or rows.dtype, device=rows.device)
    parts = out if splits == 1 else torch.empty(splits, count, outputs, dtype=torch.float32, device=rows.device)
    early = early_start(rows, count)
    _multiply[(row_tiles, tiles, splits)](
        parts, rows, *pointers_of(weight), weight.scales if bias is None else bias, count, rows.stride(0),
        ROWS=row_tile, TILE=tile_outputs, SPLITS=splits, HAS_BIAS=bias is not None,
        num_warps=warps, num_stages=stages, **form_of(weight, rows.dtype, row_tile), **early,
    )  # fmt: skip
    if splits > 1:
        add_parts(out, parts, bias, early)
    return out


def tile_of(weight: Words, weight_outputs: int, count: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Rows, outputs, warps and stages of a tile of so many rows, or a part of them, and outputs of one weight."""
    # Shared memory has no room for larger tiles of float32, nor beside entries that are loaded from a table.
    is_wide = dtype.itemsize != _HALF_BYTES or (weight.table is not None and not _in_pairs(weight, dtype))
    rows = min(max(_MIN_ROWS, 1 << (count - 1).bit_length()), _FEW_ROWS if is_wide else max(SHAPES))
    outputs, warps, stages = SHAPES[rows]
    if weight_outputs % outputs:
        return rows, _TILE_OUTPUTS, _WARPS_OF_TILE, stages
    return rows, outputs, warps, stages


def _splits_of_many(programs: int) -> int:
    """Number of parts that the columns are split into, to keep most SMs busy; sums of many rows are not worth more."""
    return next((splits for splits in _SPLITS_OF_MANY if splits * programs >= _PROGRAMS), _SPLITS_OF_MANY[-1])


def form_of(weight: Words, dtype: torch.dtype, row_tile: int) -> dict[str, Any]:
    """Constants of `coded_tile` for a weight, the dtype of the rows and the rows of a tile."""
    in_pairs = _in_pairs(weight, dtype)
    return {
        "OUTPUTS": weight.words.shape[0], "INPUTS": weight.columns, "WORDS": weight.block_words,
        "BLOCKS": weight.words.shape[1] // weight.block_words,
        "GROUP": weight.group, "BITS": weight.bits, "SCALES": _scales_of_block(weight),
        "HAS_TABLE": weight.table is not None, "LOOK_UP": weight.look_up, "ZEROS": _kind_of_zeros(weight),
        "IN_PAIRS": in_pairs, "IMPLIED": _implied(weight, in_pairs=in_pairs),
        "AFTER": _scales_after(weight, dtype, row_tile),
    }  # fmt: skip


def pointers_of(weight: Words) -> tuple[torch.Tensor, ...]:
    """Words, scales, zeros and table; the scales stand in for what is absent."""
    parts = weight.zeros, weight.table
    require_packed(None, weight.words, weight.scales, *parts)
    return weight.words, weight.scales, *(weight.scales if part is None else part for part in parts)


def _in_pairs(weight: Words, dtype: torch.dtype) -> bool:
    return dtype is torch.bfloat16 and has_pairs(weight.words.device) and (weight.table is None or bool(weight.look_up))


def _scales_after(weight: Words, dtype: torch.dtype, row_tile: int) -> bool:
    """Whether scales are applied to the sums of their groups, in float32, rather than to each number."""
    # Numbers that are not scaled yet may be too large for float16.
    is_unsafe = weight.zeros is not None and dtype is torch.float16
    return row_tile <= MAX_ROWS_SCALED_AFTER and weight.table is None and _scales_of_block(weight) > 0 and not is_unsafe


def _kind_of_zeros(weight: Words) -> int:
    """How zero points are kept, for `less_zero`."""
    return 0 if weight.zeros is None else 1 if weight.has_whole_zeros else 2


def _implied(weight: Words, *, in_pairs: bool) -> float:
    """How much larger than the code the numbers from `codes_of` are, including the code of zero if it is the middle."""
    if weight.bits == 8 or weight.table is not None:
        return 0.0
    return (128.0 if in_pairs else 0.0) + (8.0 if weight.zeros is None else 0.0)


def _scales_of_block(weight: Words) -> int:
    """Parts of a block that have a scale each; 0 where all columns of an output share one, and zero is the middle."""
    if weight.group == weight.columns and weight.zeros is None:
        return 0
    slices = 32 // weight.bits
    block = weight.block_words * slices
    if weight.group % block == 0:
        return 1
    return slices if block % weight.group else block // weight.group


def plain(weight: Words, dtype: torch.dtype) -> torch.Tensor:
    """The weight as plain numbers [out_features, in_features]; `suits_coded_products` must be true of it."""
    outputs, inputs, count = weight.words.shape[0], weight.columns, weight.block_words
    out = torch.empty(outputs, inputs, dtype=dtype, device=weight.words.device)
    blocks, in_pairs = weight.words.shape[1] // count, _in_pairs(weight, dtype)
    _plain[(outputs // _PLAIN_OUTPUTS, blocks)](
        out, *pointers_of(weight),
        OUTPUTS=outputs, INPUTS=inputs, BLOCKS=blocks, GROUP=weight.group, BITS=weight.bits,
        SCALES=max(1, _scales_of_block(weight)), TILE=_PLAIN_OUTPUTS, WORDS=count,
        HAS_TABLE=weight.table is not None, LOOK_UP=weight.look_up, ZEROS=_kind_of_zeros(weight), IN_PAIRS=in_pairs,
        IMPLIED=_implied(weight, in_pairs=in_pairs), num_warps=4,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["count"])
def _multiply(
    out, rows, words, scales, zeros, table, bias, count, stride,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BLOCKS: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
    SCALES: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, WORDS: tl.constexpr, SPLITS: tl.constexpr,
    HAS_TABLE: tl.constexpr, LOOK_UP: tl.constexpr, ZEROS: tl.constexpr, HAS_BIAS: tl.constexpr,
    IN_PAIRS: tl.constexpr, IMPLIED: tl.constexpr, AFTER: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:  # what comes next is small and can wait beside this
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * TILE + tl.arange(0, TILE)
    split = tl.program_id(2)
    is_row = row < count
    share: tl.constexpr = (BLOCKS + SPLITS - 1) // SPLITS
    total = coded_tile(
        words, scales, zeros, table, output, rows + row.to(tl.int64) * stride, is_row, split * share,
        tl.minimum((split + 1) * share, BLOCKS),
        OUTPUTS, INPUTS, BLOCKS, GROUP, BITS, SCALES, WORDS, HAS_TABLE, LOOK_UP, ZEROS, IN_PAIRS, IMPLIED, AFTER,
    )  # fmt: skip
    if SPLITS == 1 and HAS_BIAS:
        total += tl.load(bias + output).to(tl.float32)[:, None]
    places = out + (split * count + row).to(tl.int64)[None, :] * OUTPUTS + output[:, None]
    tl.store(places, total.to(out.dtype.element_ty), mask=is_row[None, :])


@triton.jit
def coded_tile(
    words, scales, zeros, table, output, rows, is_row, begin, end,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BLOCKS: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
    SCALES: tl.constexpr, WORDS: tl.constexpr, HAS_TABLE: tl.constexpr, LOOK_UP: tl.constexpr, ZEROS: tl.constexpr,
    IN_PAIRS: tl.constexpr, IMPLIED: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """Sums over the inputs of some blocks, float32 [outputs, rows].

    `output` [outputs] are rows of the weight, which has OUTPUTS of them; `rows` [rows] point to the first input of each
    row, and where `is_row` [rows] is false, the inputs count as 0. The other arguments are those of `Words`.
    """
    word = tl.arange(0, WORDS)
    slices: tl.constexpr = 32 // BITS
    block: tl.constexpr = WORDS * slices
    parts: tl.constexpr = SCALES if SCALES > 0 else 1
    tiles = words + output.to(tl.int64)[:, None] * (BLOCKS * WORDS) + word[None, :]
    values = rows[:, None] + word[None, :]
    dtype: tl.constexpr = rows.dtype.element_ty
    # Only what an operand needs is loaded ahead of its use: therefore a part of each scale, which is zero, is added.
    subtracts: tl.constexpr = 1 if AFTER and ZEROS == 0 else ZEROS
    total = tl.zeros((output.shape[0], rows.shape[0]), tl.float32)
    for index in range(begin, end):
        codes = codes_of(tl.load(tiles + index * WORDS), table, BITS, HAS_TABLE, LOOK_UP, IN_PAIRS)
        for part in tl.static_range(parts):
            group = (index * block + part * (block // parts)) // GROUP * OUTPUTS + output
            scale = tl.load(scales + group) if SCALES > 0 else 1.0
            zero = tl.load(zeros + group) if ZEROS > 0 else 0.0
            if AFTER:
                zero += scale * 0.0
            partial = tl.zeros((output.shape[0], rows.shape[0]), tl.float32)
            for number in tl.static_range(part * slices // parts, (part + 1) * slices // parts):
                first = index * block + number * WORDS
                is_value = is_row[:, None]
                if INPUTS % block != 0:
                    is_value = is_value & (first + word < INPUTS)[None, :]
                value = tl.trans(tl.load(values + first, mask=is_value, other=0.0))
                weight = less_zero(codes[number], zero, subtracts, IMPLIED)
                if SCALES == 0:
                    total = tl.dot(weight.to(dtype), value, total, input_precision="ieee")
                elif AFTER:
                    partial = tl.dot(weight.to(dtype), value, partial, input_precision="ieee")
                else:
                    scaled = (weight * scale.to(weight.dtype)[:, None]).to(dtype)
                    total = tl.dot(scaled, value, total, input_precision="ieee")
            if AFTER:
                total += partial * scale[:, None]
    if SCALES == 0:
        total *= tl.load(scales + output)[:, None]
    return total


@triton.jit
def _plain(
    out, words, scales, zeros, table,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BLOCKS: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
    SCALES: tl.constexpr, TILE: tl.constexpr, WORDS: tl.constexpr, HAS_TABLE: tl.constexpr, LOOK_UP: tl.constexpr,
    ZEROS: tl.constexpr, IN_PAIRS: tl.constexpr, IMPLIED: tl.constexpr,
):  # fmt: skip
    output, word = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, WORDS)
    index = tl.program_id(1)
    slices: tl.constexpr = 32 // BITS
    block: tl.constexpr = WORDS * slices
    tile = tl.load(words + output.to(tl.int64)[:, None] * (BLOCKS * WORDS) + index * WORDS + word[None, :])
    codes = codes_of(tile, table, BITS, HAS_TABLE, LOOK_UP, IN_PAIRS)
    places = out + output.to(tl.int64)[:, None] * INPUTS + word[None, :]
    for part in tl.static_range(SCALES):
        group = (index * block + part * (block // SCALES)) // GROUP * OUTPUTS + output
        scale = tl.load(scales + group)
        zero = tl.load(zeros + group) if ZEROS > 0 else 0.0
        for number in tl.static_range(part * slices // SCALES, (part + 1) * slices // SCALES):
            first = index * block + number * WORDS
            weight = less_zero(codes[number].to(tl.float32), zero, ZEROS, IMPLIED) * scale[:, None]
            tl.store(places + first, weight.to(out.dtype.element_ty), mask=(first + word < INPUTS)[None, :])
