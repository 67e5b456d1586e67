"""Products of few rows with a weight of 4- or 8-bit codes as Triton kernels, and such a weight as plain numbers.

Bound by reading the codes. A tile of codes is the left operand of a tensor core's product and the rows are the right
one, as in `small_products`. Codes lie in 32-bit words. Slice i of word w holds column 32 i + w of its block, so that
slice i of a block's 32 words multiplies 32 neighbouring columns of the rows.

Codes become 16-bit numbers without a conversion: the mantissa of 128 in bfloat16 has room for 7 bits (after Kim et al.,
arXiv 2211.10017). Import this module only where `has_triton` holds, or under Triton's interpreter.
"""

# Kernels are written as Triton's users know them, and its decorator hides their types.
# ruff: noqa: ANN001, ANN202, C901, N803, PLR0917, RET505
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false

import dataclasses
import functools
from typing import Self

import torch
import triton
import triton.language as tl
from torch.nn.functional import pad

from reference_engine.kernels.early_start import await_inputs, early_start
from reference_engine.kernels.small_products import add_parts, splits_of

MAX_ROWS = 64
"""More rows are multiplied by the plain numbers."""

_WORDS = 32
"""Of a block; as many neighbouring columns share a slice and, since it divides every group, a scale."""
_TILE_OUTPUTS = 64
_SHAPES = {16: (2, 4), 32: (4, 3), 64: (4, 3)}
"""For up to so many rows: warps and stages of the pipeline. Two warps multiply without waiting for each other."""
_MIN_ROWS = 16  # of a tile; tl.dot takes no fewer
_PLAIN_TILE = 1024
_CAPABILITY = 9  # has arithmetic on pairs of bfloat16 numbers


def suits_coded_products(outputs: int, group: int) -> bool:
    """Whether whole tiles cover a weight of so many outputs whose groups have `group` columns."""
    return outputs % _TILE_OUTPUTS == 0 and group % _WORDS == 0


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Words:
    """Codes as the kernels read them.

    Attributes:
        words: int32 [out_features, words of a row]; the last block is filled up.
        scales: float32 [groups, out_features], so that neighbours of a tile are neighbours.
        zeros: float32 [groups, out_features], the code of zero, a whole number; None where it is the middle.
        bits: of a code.
        group: columns that share a scale.
        columns: in_features.
    """

    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bits: int
    group: int
    columns: int

    @classmethod
    def of(cls, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: int) -> Self:
        """Arranges the codes of a weight.

        Args:
            codes: one in each byte, [out_features, in_features]; 8 bits: int8, 4 bits: uint8 0 to 15.
            scales: [out_features, groups].
            zeros: [out_features, groups]; None for none.
            bits: of a code.
        """
        columns, slices = codes.shape[1], 32 // bits
        group, block = columns // scales.shape[1], _WORDS * slices
        missing = -columns % block
        sliced = pad(codes, (0, missing)).unflatten(1, (-1, slices, _WORDS)).int() & ((1 << bits) - 1)
        shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=codes.device)[:, None]
        words = (sliced << shifts).sum(2, dtype=torch.int32).flatten(1)
        groups = -(-(columns + missing) // group)

        def by_group(part: torch.Tensor) -> torch.Tensor:
            return pad(part.float().t(), (0, 0, 0, groups - part.shape[1])).contiguous()

        return cls(words, by_group(scales), None if zeros is None else by_group(zeros), bits, group, columns)


def words_bytes(shape: tuple[int, int], group: int, bits: int, numbers: int) -> int:
    """Bytes of `Words`.

    Args:
        shape: of the weight.
        group: columns that share a scale.
        bits: of a code.
        numbers: 1 for scales, 2 for scales and zeros.
    """
    outputs, columns = shape
    filled = columns + -columns % (_WORDS * 32 // bits)
    return outputs * (filled * bits // 8 + -(-filled // group) * numbers * 4)


def multiply(
    rows: torch.Tensor, weight: Words, bias: torch.Tensor | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Rows · weightᵀ + bias, summed in float32; the weight's numbers are rounded to the dtype of the rows.

    Args:
        rows: [1 to MAX_ROWS, in_features], each contiguous.
        weight: `suits_coded_products` said yes to it.
        bias: [out_features].
        dtype: of the result; None for that of the rows.

    Returns:
        [rows, out_features].
    """
    count, outputs = rows.shape[0], weight.words.shape[0]
    blocks = weight.words.shape[1] // _WORDS
    row_tile = max(_MIN_ROWS, triton.next_power_of_2(count))
    warps, stages = next(shape for limit, shape in _SHAPES.items() if row_tile <= limit)
    tiles = outputs // _TILE_OUTPUTS
    splits = min(splits_of(tiles), blocks)
    out = torch.empty(count, outputs, dtype=dtype or rows.dtype, device=rows.device)
    parts = out if splits == 1 else torch.empty(splits, count, outputs, dtype=torch.float32, device=rows.device)
    early = early_start(rows, count)
    zeros = weight.zeros
    _multiply[(tiles, splits)](
        parts, rows, weight.words, weight.scales, weight.scales if zeros is None else zeros,
        weight.scales if bias is None else bias, count, rows.stride(0),
        OUTPUTS=outputs, INPUTS=weight.columns, BLOCKS=blocks, GROUP=weight.group, BITS=weight.bits,
        SCALES=_scales_of_block(weight), ROWS=row_tile, TILE=_TILE_OUTPUTS, WORDS=_WORDS, SPLITS=splits,
        HAS_ZEROS=zeros is not None, HAS_BIAS=bias is not None,
        IN_PAIRS=rows.dtype is torch.bfloat16 and _has_pairs(rows.device),
        num_warps=warps, num_stages=stages, **early,
    )  # fmt: skip
    if splits > 1:
        add_parts(out, parts, bias, early)
    return out


def _scales_of_block(weight: Words) -> int:
    """Parts of a block with a scale each; 0 where all columns of an output share one, and zero is the middle."""
    if weight.group == weight.columns and weight.zeros is None:
        return 0
    slices = 32 // weight.bits
    block = _WORDS * slices
    if weight.group % block == 0:
        return 1
    return slices if block % weight.group else block // weight.group


@functools.cache
def _has_pairs(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= _CAPABILITY


def plain(weight: Words, dtype: torch.dtype) -> torch.Tensor:
    """The weight as plain numbers [out_features, in_features]."""
    outputs, inputs = weight.words.shape[0], weight.columns
    out = torch.empty(outputs, inputs, dtype=dtype, device=weight.words.device)
    zeros = weight.zeros
    _plain[(outputs, triton.cdiv(inputs, _PLAIN_TILE))](
        out, weight.words, weight.scales, weight.scales if zeros is None else zeros,
        OUTPUTS=outputs, INPUTS=inputs, ROW_WORDS=weight.words.shape[1], GROUP=weight.group, BITS=weight.bits,
        WORDS=_WORDS, TILE=_PLAIN_TILE, HAS_ZEROS=zeros is not None,
    )  # fmt: skip
    return out


def scaled_codes(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as E4M3 codes, and their scales: largest |x| of the row / 448.

    Args:
        rows: [rows, columns], each contiguous, in any floating-point dtype.

    Returns:
        [rows, columns] and float32 [rows, 1].
    """
    count, width = rows.shape
    codes = torch.empty(count, width, dtype=torch.float8_e4m3fn, device=rows.device)
    scales = torch.empty(count, 1, dtype=torch.float32, device=rows.device)
    padded = triton.next_power_of_2(width)
    _scaled_codes[(count,)](
        codes, scales, rows, rows.stride(0), WIDTH=width, PADDED=padded, num_warps=min(16, max(1, padded // 1024)),
        **early_start(rows, count),
    )  # fmt: skip
    return codes, scales


def _pairs(bits: int) -> tl.constexpr:
    """Instructions that turn two words, neighbours in the operand, into a pair of bfloat16 numbers for each slice.

    Codes of 4 bits become 128 more than they are.
    """
    slices = 32 // bits
    lines = [
        ".reg .b32 low, high, pair, implied, sign;", "mov.b32 implied, 0x43004300;",
        f"prmt.b32 low, ${slices}, ${slices + 1}, 0x5410;", f"prmt.b32 high, ${slices}, ${slices + 1}, 0x7632;",
    ]  # fmt: skip
    for number in range(slices):
        half, shift = ("low", "high")[number * bits // 16], number * bits % 16
        lines += [f"shr.b32 pair, {half}, {shift};"]
        if bits == 4:
            lines += [f"lop3.b32 ${number}, pair, 0x000F000F, implied, 0xEA;"]
        else:  # the lower seven bits are added to 128; 128 or, where the byte is negative, 256 is taken off again
            lines += [f"lop3.b32 ${number}, pair, 0x007F007F, implied, 0xEA;"]
            lines += ["lop3.b32 sign, pair, 0x00800080, implied, 0xEA;", f"sub.bf16x2 ${number}, ${number}, sign;"]
    return tl.constexpr("{\n" + "\n".join(lines) + "\n}")


def _registers(bits: int) -> tl.constexpr:
    return tl.constexpr(",".join(["=&r"] * (32 // bits) + ["r", "r"]))


_NIBBLES, _BYTES = _pairs(4), _pairs(8)
_NIBBLE_REGISTERS, _BYTE_REGISTERS = _registers(4), _registers(8)


@triton.jit
def _codes_of(tile, dtype: tl.constexpr, BITS: tl.constexpr, IN_PAIRS: tl.constexpr):
    """The slices of words as numbers of a dtype, which represents them all; in pairs see `_pairs`."""
    if IN_PAIRS and BITS == 8:
        return tl.inline_asm_elementwise(
            _BYTES, _BYTE_REGISTERS, [tile],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2,
        )  # fmt: skip
    elif IN_PAIRS:
        return tl.inline_asm_elementwise(
            _NIBBLES, _NIBBLE_REGISTERS, [tile],
            dtype=(
                tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
            ), is_pure=True, pack=2,
        )  # fmt: skip
    elif BITS == 8:
        return (
            _signed(tile, dtype), _signed(tile >> 8, dtype), _signed(tile >> 16, dtype), _signed(tile >> 24, dtype),
        )  # fmt: skip
    else:
        return (
            (tile & 15).to(dtype), (tile >> 4 & 15).to(dtype), (tile >> 8 & 15).to(dtype), (tile >> 12 & 15).to(dtype),
            (tile >> 16 & 15).to(dtype), (tile >> 20 & 15).to(dtype), (tile >> 24 & 15).to(dtype),
            (tile >> 28 & 15).to(dtype),
        )  # fmt: skip


@triton.jit
def _signed(words, dtype: tl.constexpr):
    return (((words & 255) ^ 128) - 128).to(dtype)


@triton.jit(do_not_specialize=["count"])
def _multiply(
    out, rows, words, scales, zeros, bias, count, stride,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BLOCKS: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
    SCALES: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, WORDS: tl.constexpr, SPLITS: tl.constexpr,
    HAS_ZEROS: tl.constexpr, HAS_BIAS: tl.constexpr, IN_PAIRS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:  # what comes next is small and can wait beside this
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    output = tl.program_id(0) * TILE + tl.arange(0, TILE)
    split = tl.program_id(1)
    row, word = tl.arange(0, ROWS), tl.arange(0, WORDS)
    is_row = row < count
    slices: tl.constexpr = 32 // BITS
    block: tl.constexpr = WORDS * slices
    parts: tl.constexpr = SCALES if SCALES > 0 else 1
    share: tl.constexpr = (BLOCKS + SPLITS - 1) // SPLITS
    tiles = words + output.to(tl.int64)[:, None] * (BLOCKS * WORDS) + word[None, :]
    values = rows + row[:, None] * stride + word[None, :]
    dtype: tl.constexpr = rows.dtype.element_ty
    implied: tl.constexpr = 128.0 if IN_PAIRS and BITS == 4 else 0.0
    total = tl.zeros((TILE, ROWS), tl.float32)
    for index in range(split * share, tl.minimum((split + 1) * share, BLOCKS)):
        codes = _codes_of(tl.load(tiles + index * WORDS), dtype, BITS, IN_PAIRS)
        for part in tl.static_range(parts):
            if SCALES > 0:
                group = (index * block + part * (block // parts)) // GROUP * OUTPUTS + output
                scale = tl.load(scales + group).to(dtype)[:, None]
                if HAS_ZEROS:
                    zero = (tl.load(zeros + group) + implied).to(dtype)[:, None]
            for number in tl.static_range(part * slices // parts, (part + 1) * slices // parts):
                first = index * block + number * WORDS
                is_value = is_row[:, None]
                if INPUTS % block != 0:
                    is_value = is_value & (first + word < INPUTS)[None, :]
                weight = codes[number]
                if HAS_ZEROS:
                    weight -= zero
                elif BITS == 4:
                    weight = (weight - (implied + 8)).to(dtype)
                if SCALES > 0:
                    weight *= scale
                value = tl.load(values + first, mask=is_value, other=0.0)
                total = tl.dot(weight, tl.trans(value), total, input_precision="ieee")
    if SCALES == 0:
        total *= tl.load(scales + output)[:, None]
    if SPLITS == 1 and HAS_BIAS:
        total += tl.load(bias + output).to(tl.float32)[:, None]
    places = out + (split * count + row)[None, :].to(tl.int64) * OUTPUTS + output[:, None]
    tl.store(places, total.to(out.dtype.element_ty), mask=is_row[None, :])


@triton.jit
def _plain(
    out, words, scales, zeros,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROW_WORDS: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
    WORDS: tl.constexpr, TILE: tl.constexpr, HAS_ZEROS: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_column = column < INPUTS
    block: tl.constexpr = WORDS * (32 // BITS)
    word = tl.load(words + output * ROW_WORDS + column // block * WORDS + column % WORDS, mask=is_column, other=0)
    code = word >> (column % block // WORDS * BITS)
    number = _signed(code, tl.float32) if BITS == 8 else (code & 15).to(tl.float32)
    group = column // GROUP * OUTPUTS + output
    if HAS_ZEROS:
        number -= tl.load(zeros + group, mask=is_column, other=0.0)
    elif BITS == 4:
        number -= 8.0
    number *= tl.load(scales + group, mask=is_column, other=0.0)
    tl.store(out + output * INPUTS + column, number.to(out.dtype.element_ty), mask=is_column)


@triton.jit
def _scaled_codes(codes, scales, rows, stride, WIDTH: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr):
    await_inputs(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    mask = at < WIDTH
    numbers = tl.load(rows + row * stride + at, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(numbers), axis=0) / 448.0, 1.1754943508222875e-38)
    # A quotient may round up past the largest code.
    shares = tl.minimum(tl.maximum(numbers / scale, -448.0), 448.0)
    tl.store(codes + row * WIDTH + at, shares.to(codes.dtype.element_ty), mask=mask)
    tl.store(scales + row, scale)
