"""Products of few rows with a 16-bit weight as Triton kernels: bound by reading the weight.

A tile of the weight is the left operand and the rows are the right one, so that tensor cores waste nothing on rows that
are not there. Where the weight has few tiles its columns are split among several programs, whose sums a second kernel
adds up in a fixed order: the result does not depend on the timing (Stream-K, arXiv 2301.03598, discusses the choice).
Import this module only where `has_triton` holds, or under Triton's interpreter.
"""

# Kernels are written as Triton's users know them, and its decorator hides their types.
# ruff: noqa: ANN001, ANN202, N803, PLR0917
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl

MAX_ROWS = 64
"""Above, products are bound by arithmetic and cuBLAS is faster."""

_TILE_OUTPUTS, _TILE_INPUTS = 64, 128
_MIN_ROWS = 16  # of a tile; tl.dot takes no fewer
_PROGRAMS = 264  # two for each of the 132 SMs of an H100 or H200
_STAGES = 4
_SUM_TILE = 1024


def suits_small_products(weight: torch.Tensor) -> bool:
    """Whether whole tiles cover a weight [out_features, in_features]."""
    outputs, inputs = weight.shape
    return weight.dtype.itemsize == 2 and outputs % _TILE_OUTPUTS == 0 and inputs % (4 * _TILE_INPUTS) == 0


def multiply(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Rows · weightᵀ + bias, summed in float32.

    Args:
        rows: [1 to MAX_ROWS, in_features], each contiguous.
        weight: [out_features, in_features], contiguous; `suits_small_products` said yes to it.
        bias: [out_features].
        dtype: of the result; None for that of the rows.

    Returns:
        [rows, out_features].
    """
    count, (outputs, inputs) = rows.shape[0], weight.shape
    tile_rows = max(_MIN_ROWS, triton.next_power_of_2(count))
    tiles = outputs // _TILE_OUTPUTS
    splits = 1 if tiles >= _PROGRAMS else 2 if tile_rows == MAX_ROWS else 4
    out = torch.empty(count, outputs, dtype=dtype or rows.dtype, device=rows.device)
    parts = out if splits == 1 else torch.empty(splits, count, outputs, dtype=torch.float32, device=rows.device)
    given_bias = weight if bias is None else bias
    _multiply[(tiles, splits)](
        parts, rows, weight, given_bias, count, rows.stride(0),
        OUTPUTS=outputs, INPUTS=inputs, ROWS=tile_rows, TILE_OUTPUTS=_TILE_OUTPUTS, TILE_INPUTS=_TILE_INPUTS,
        SPLITS=splits, HAS_BIAS=bias is not None, num_warps=4, num_stages=_STAGES,
    )  # fmt: skip
    if splits > 1:
        _add_up[(count, triton.cdiv(outputs, _SUM_TILE))](
            out, parts, given_bias, count,
            OUTPUTS=outputs, TILE=_SUM_TILE, SPLITS=splits, HAS_BIAS=bias is not None,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["count"])
def _multiply(
    out, rows, weight, bias, count, stride,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr, TILE_INPUTS: tl.constexpr, SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
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
    if HAS_BIAS and SPLITS == 1:
        total += tl.load(bias + output).to(tl.float32)[:, None]
    place = (split * count + row)[None, :] * OUTPUTS + output[:, None]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=is_row[None, :])


@triton.jit(do_not_specialize=["count"])
def _add_up(
    out, parts, bias, count,
    OUTPUTS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    output = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = output < OUTPUTS
    total = tl.zeros((TILE,), tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + (split * count + row) * OUTPUTS + output, mask=mask, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + output, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * OUTPUTS + output, total.to(out.dtype.element_ty), mask=mask)
