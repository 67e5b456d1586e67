"""Matrix products whose rows do not depend on the number of rows, as one Triton kernel.

Every output is a sum over the inputs in one order: one tile shape for all numbers of rows, and no split of the inputs
(Thinking Machines, "Defeating Nondeterminism in LLM Inference", 2025). A tensor core computes each output from its own
row and column alone, wherever in the tile they are. Import this module only where `has_triton` holds, or under Triton's
interpreter.
"""

# Kernels are written as Triton's users know them, and its decorator hides their types.
# ruff: noqa: ANN001, ANN201, ANN202, N803, N806, PLR0917
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl

from bakeoff.reference_engine.kernels.operands import require_packed

# A narrow tile gives enough programs for one row; many rows keep prompts from reading the weight too often.
_TILE_ROWS, _TILE_OUTPUTS = 128, 64
_TILE_INPUTS, _STAGES = 128, 4
# For float32, each element of which takes three products and twice the shared memory.
_WIDE_TILE_INPUTS, _WIDE_STAGES = 32, 3
_WARPS = 4
_GROUP = 8  # tiles of rows whose programs are neighbours, so that they find tiles of the weight in the L2 cache


def multiply_invariantly(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Rows · weightᵀ + bias, summed in float32; each row's bits are the same in any batch.

    Args:
        rows: [rows, in_features].
        weight: [out_features, in_features], contiguous, in the dtype of the rows.
        bias: [out_features].
        dtype: of the result; None for that of the rows.

    Returns:
        [rows, out_features].
    """
    require_packed(rows.dtype, weight)
    require_packed(None, bias)
    count, (outputs, inputs) = rows.shape[0], weight.shape
    out = torch.empty(count, outputs, dtype=dtype or rows.dtype, device=rows.device)
    is_wide = weight.dtype.itemsize > 2
    tiles = triton.cdiv(count, _TILE_ROWS) * triton.cdiv(outputs, _TILE_OUTPUTS)
    if tiles:
        _multiply[(tiles,)](
            out, rows.contiguous(), weight, weight if bias is None else bias, count,
            OUTPUTS=outputs, INPUTS=inputs, TILE_ROWS=_TILE_ROWS, TILE_OUTPUTS=_TILE_OUTPUTS,
            TILE_INPUTS=_WIDE_TILE_INPUTS if is_wide else _TILE_INPUTS, GROUP=_GROUP, HAS_BIAS=bias is not None,
            num_warps=_WARPS, num_stages=_WIDE_STAGES if is_wide else _STAGES,
        )  # fmt: skip
    return out


@triton.jit
def product_tile(matrix, rows, is_row, bias, INPUTS: tl.constexpr, TILE_INPUTS: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Sums over the inputs in their order, plus a bias: float32 [outputs, rows].

    `matrix` and `bias` [outputs] point to the first weight and the bias of each output, `rows` [rows] to the first
    input of each row. Where `is_row` [rows] is false, the inputs count as 0.
    """
    inputs = tl.arange(0, TILE_INPUTS)
    weights, values = matrix[:, None] + inputs[None, :], rows[:, None] + inputs[None, :]
    total = tl.zeros((matrix.shape[0], rows.shape[0]), tl.float32)
    for first in range(0, INPUTS, TILE_INPUTS):
        if INPUTS % TILE_INPUTS == 0:
            tile = tl.load(weights + first)
            part = tl.load(values + first, mask=is_row[:, None], other=0.0)
        else:
            is_input = inputs[None, :] < INPUTS - first
            tile = tl.load(weights + first, mask=is_input, other=0.0)
            part = tl.load(values + first, mask=is_row[:, None] & is_input, other=0.0)
        total = tl.dot(tile, tl.trans(part), total, input_precision="tf32x3")
    if HAS_BIAS:
        total += tl.load(bias).to(tl.float32)[:, None]
    return total


@triton.jit(do_not_specialize=["count"])
def _multiply(
    out, rows, weight, bias, count,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr,
    TILE_INPUTS: tl.constexpr, GROUP: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    GROUP_PROGRAMS: tl.constexpr = GROUP * ((OUTPUTS + TILE_OUTPUTS - 1) // TILE_OUTPUTS)
    number = tl.program_id(0)
    first_tile = number // GROUP_PROGRAMS * GROUP
    group_tiles = tl.minimum(tl.cdiv(count, TILE_ROWS) - first_tile, GROUP)
    place = number % GROUP_PROGRAMS
    row = (first_tile + place % group_tiles) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    output = place // group_tiles * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)

    is_row, is_output = row < count, output < OUTPUTS
    row = row.to(tl.int64)
    loaded = tl.minimum(output, OUTPUTS - 1)  # past the last output, that one is loaded again and not stored
    total = product_tile(
        weight + loaded.to(tl.int64) * INPUTS, rows + row * INPUTS, is_row, bias + loaded, INPUTS, TILE_INPUTS, HAS_BIAS
    )
    stored = is_output[:, None] & is_row[None, :]
    tl.store(out + row[None, :] * OUTPUTS + output[:, None], total.to(out.dtype.element_ty), mask=stored)
