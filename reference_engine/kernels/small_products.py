"""Products of few rows with a weight of 16 or 8 bits as Triton kernels; their time goes into reading the weight.

A tile of the weight is the left operand and the rows are the right one, so that tensor cores waste nothing on missing
rows. If the weight has few tiles its columns are split among several programs, whose sums a second kernel adds up in a
fixed order: the result does not depend on the timing (Stream-K, arXiv 2301.03598, discusses the choice). Import this
module only where `has_triton` is true, or under Triton's interpreter.
"""

# Kernels are written as Triton's users know them, and its decorator hides their types.
# ruff: noqa: ANN001, ANN202, N803, PLR0917
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from bakeoff.reference_engine.kernels.early_start import await_inputs, early_start
from bakeoff.reference_engine.kernels.operands import require_packed, require_rows

MAX_ROWS = 32
"""At 64 rows cuBLAS is faster for every weight of an 8B model in 16 bits."""
MAX_ROWS_OF_CODES = 64
"""Rows for weights of 8 bits: 92 against 115 µs for a layer of an 8B model on an H200."""

_TILE_OUTPUTS, _TILE_INPUTS = 64, 128
_MIN_ROWS = 16  # of a tile; tl.dot takes no fewer
_PROGRAMS = 264  # two for each of the 132 SMs of an H100 or H200
_STAGES = 4
_SPLITS = 4
_SUM_TILE = 1024
# For a single row, whose tiles stay in registers.
_ROW_TILE_OUTPUTS, _ROW_TILE_INPUTS = 4, 1024
_MANY_OUTPUTS = 16_384
_MAX_ROW_INPUTS = 8192  # longer sums are faster in parts: 31 against 36 µs at 14,336


def suits_small_products(weight: torch.Tensor) -> bool:
    """Whether a weight [out_features, in_features] consists of whole tiles."""
    outputs, inputs = weight.shape
    return weight.dtype.itemsize <= 2 and outputs % _TILE_OUTPUTS == 0 and inputs % (_SPLITS * _TILE_INPUTS) == 0


def multiply(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Rows · weightᵀ + bias, summed in float32.

    Args:
        rows: [1 to MAX_ROWS, or MAX_ROWS_OF_CODES, in_features], each contiguous.
        weight: [out_features, in_features], contiguous, of the rows' dtype; `suits_small_products` must be true of it.
        bias: [out_features].
        dtype: of the result; None for that of the rows.
        scales: float32, of the rows and of the outputs, where rows and weight are codes of 8 bits.

    Returns:
        [rows, out_features].
    """
    require_rows(weight.dtype, rows)
    require_packed(weight.dtype, weight)
    require_packed(None, bias)
    require_packed(torch.float32, *(scales or ()))
    count, (outputs, inputs) = rows.shape[0], weight.shape
    tile_rows = max(_MIN_ROWS, triton.next_power_of_2(count))
    tiles = outputs // _TILE_OUTPUTS
    is_row = count == 1 and scales is None and inputs <= _MAX_ROW_INPUTS
    splits = 1 if is_row else splits_of(tiles)
    out = torch.empty(count, outputs, dtype=dtype or rows.dtype, device=rows.device)
    parts = out if splits == 1 else torch.empty(splits, count, outputs, dtype=torch.float32, device=rows.device)
    given_bias = weight if bias is None else bias
    row_scales, output_scales = scales or (given_bias, given_bias)
    early = early_start(rows, count)
    if is_row:
        tile_outputs = _ROW_TILE_OUTPUTS if outputs < _MANY_OUTPUTS else 2 * _ROW_TILE_OUTPUTS
        _multiply_row[(outputs // tile_outputs,)](
            out, rows, weight, given_bias,
            INPUTS=inputs, TILE_OUTPUTS=tile_outputs,
            TILE_INPUTS=_ROW_TILE_INPUTS if inputs % _ROW_TILE_INPUTS == 0 else _ROW_TILE_INPUTS // 2,
            HAS_BIAS=bias is not None, num_warps=4, **early,
        )  # fmt: skip
        return out
    _multiply[(tiles, splits)](
        parts, rows, weight, given_bias, row_scales, output_scales, count, rows.stride(0),
        HAS_SCALES=scales is not None, OUTPUTS=outputs, INPUTS=inputs, ROWS=tile_rows, TILE_OUTPUTS=_TILE_OUTPUTS,
        TILE_INPUTS=_TILE_INPUTS, SPLITS=splits, HAS_BIAS=bias is not None, num_warps=4,
        num_stages=_STAGES if count <= MAX_ROWS else _STAGES - 1, **early,
    )  # fmt: skip
    if splits > 1:
        add_parts(out, parts, bias, early)
    return out


def splits_of(tiles: int) -> int:
    """Number of parts that the columns are split into, so that there are enough programs."""
    return 1 if tiles >= _PROGRAMS else _SPLITS


def add_parts(out: torch.Tensor, parts: torch.Tensor, bias: torch.Tensor | None, early: Mapping[str, Any]) -> None:
    """Writes the sums of parts, float32 [splits, rows, outputs], and a bias [outputs] to `out` [rows, outputs].

    Args:
        out: of any dtype.
        parts: added up in order.
        bias: None for none.
        early: from `early_start`.
    """
    splits, count, outputs = parts.shape
    _add_up[(count, triton.cdiv(outputs, _SUM_TILE))](
        out, parts, parts if bias is None else bias, count,
        OUTPUTS=outputs, TILE=_SUM_TILE, SPLITS=splits, HAS_BIAS=bias is not None, **early,
    )  # fmt: skip


@triton.jit
def _multiply_row(
    out, row, weight, bias,
    INPUTS: tl.constexpr, TILE_OUTPUTS: tl.constexpr, TILE_INPUTS: tl.constexpr, HAS_BIAS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    output = tl.program_id(0) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    inputs = tl.arange(0, TILE_INPUTS)
    weights = weight + output.to(tl.int64)[:, None] * INPUTS + inputs[None, :]
    if EARLY:  # what comes next is small and can wait beside this
        tl.extra.cuda.gdc_launch_dependents()
    tile = tl.load(weights)  # starts before the row is available
    if EARLY:
        tl.extra.cuda.gdc_wait()
    total = tl.zeros((TILE_OUTPUTS, TILE_INPUTS), tl.float32)
    for first in range(TILE_INPUTS, INPUTS, TILE_INPUTS):
        next_tile = tl.load(weights + first)
        part = tl.load(row + first - TILE_INPUTS + inputs)
        total += tile.to(tl.float32) * part.to(tl.float32)[None, :]
        tile = next_tile
    total += tile.to(tl.float32) * tl.load(row + INPUTS - TILE_INPUTS + inputs).to(tl.float32)[None, :]
    result = tl.sum(total, axis=1)
    if HAS_BIAS:
        result += tl.load(bias + output).to(tl.float32)
    tl.store(out + output, result.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["count"])
def _multiply(
    out, rows, weight, bias, row_scales, output_scales, count, stride,
    HAS_SCALES: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr, TILE_INPUTS: tl.constexpr, SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:  # what comes next is small and can wait beside this
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    output = tl.program_id(0) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    split = tl.program_id(1)
    row = tl.arange(0, ROWS)
    share: tl.constexpr = INPUTS // SPLITS
    inputs = split * share + tl.arange(0, TILE_INPUTS)
    weights = weight + output.to(tl.int64)[:, None] * INPUTS + inputs[None, :]
    values = rows + row[:, None] * stride + inputs[None, :]
    is_row = row < count
    total = tl.zeros((TILE_OUTPUTS, ROWS), tl.float32)
    for first in range(0, share, TILE_INPUTS):
        tile = tl.load(weights + first)
        part = tl.load(values + first, mask=is_row[:, None], other=0.0)
        total = tl.dot(tile, tl.trans(part), total)
    if HAS_SCALES:
        total *= tl.load(output_scales + output)[:, None] * tl.load(row_scales + row, mask=is_row, other=0.0)[None, :]
    if HAS_BIAS and SPLITS == 1:
        total += tl.load(bias + output).to(tl.float32)[:, None]
    place = (split * count + row)[None, :] * OUTPUTS + output[:, None]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=is_row[None, :])


@triton.jit(do_not_specialize=["count"])
def _add_up(
    out, parts, bias, count,
    OUTPUTS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    await_inputs(EARLY)
    row = tl.program_id(0)
    output = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = output < OUTPUTS
    total = tl.zeros((TILE,), tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + (split * count + row) * OUTPUTS + output, mask=mask, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + output, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * OUTPUTS + output, total.to(out.dtype.element_ty), mask=mask)
