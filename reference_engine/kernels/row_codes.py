"""Rows as E4M3 codes with a scale each, also right behind the operation that made the rows, which saves a pass.

Numbers are rounded to the rows' dtype before they become codes, so that the results are those of separate passes.
Import this module only where `has_triton` holds, or under its interpreter.
"""

# Kernels are written as Triton's users know them, and its decorator hides their types.
# ruff: noqa: ANN001, ANN202, N803, PLR0917
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false

from typing import Any

import torch
import triton
import triton.language as tl

from bakeoff.reference_engine.kernels.cuda import gated, normed_row
from bakeoff.reference_engine.kernels.early_start import await_inputs, early_start
from bakeoff.reference_engine.kernels.operands import CodedRows, require_packed, require_rows


def scaled_codes(rows: torch.Tensor) -> CodedRows:
    """Rows [rows, columns], each contiguous, in any floating-point dtype, as codes."""
    require_rows(None, rows)
    count, width = rows.shape
    coded = _empty(count, width, rows.device)
    _scaled_codes[(count,)](*coded, rows, rows.stride(0), WIDTH=width, **_tile(width), **early_start(rows, count))
    return coded


def add_rms_norm_codes(residual: torch.Tensor, x: torch.Tensor | None, weight: torch.Tensor, eps: float) -> CodedRows:
    """The codes of `Kernels.add_rms_norm`."""
    require_packed(residual.dtype, residual, x)
    require_packed(None, weight)
    count, width = residual.shape
    coded = _empty(count, width, residual.device)
    _add_rms_norm_codes[(count,)](
        *coded, residual, residual if x is None else x, weight, eps,
        ADDS=x is not None, WIDTH=width, **_tile(width), **early_start(residual, count),
    )  # fmt: skip
    return coded


def silu_mul_codes(gate_up: torch.Tensor) -> CodedRows:
    """The codes of `Kernels.silu_mul`."""
    require_packed(None, gate_up)
    count, width = gate_up.shape[0], gate_up.shape[1] // 2
    coded = _empty(count, width, gate_up.device)
    _silu_mul_codes[(count,)](*coded, gate_up, WIDTH=width, **_tile(width), **early_start(gate_up, count))
    return coded


def _empty(count: int, width: int, device: torch.device) -> CodedRows:
    codes = torch.empty(count, width, dtype=torch.float8_e4m3fn, device=device)
    return CodedRows(codes, torch.empty(count, 1, dtype=torch.float32, device=device))


def _tile(width: int) -> dict[str, Any]:
    """A program takes a row."""
    padded = triton.next_power_of_2(width)
    return {"PADDED": padded, "num_warps": min(16, max(1, padded // 1024))}


@triton.jit
def _scaled_codes(codes, scales, rows, stride, WIDTH: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr):
    await_inputs(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    mask = at < WIDTH
    numbers = tl.load(rows + row * stride + at, mask=mask, other=0.0).to(tl.float32)
    _store_codes(codes, scales, row, numbers, WIDTH, PADDED)


@triton.jit
def _add_rms_norm_codes(
    codes, scales, residual, x, weight, eps,
    ADDS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    await_inputs(EARLY)
    row = tl.program_id(0).to(tl.int64)
    numbers = normed_row(residual, x, weight, eps, row, ADDS, WIDTH, PADDED)
    _store_codes(codes, scales, row, numbers.to(residual.dtype.element_ty).to(tl.float32), WIDTH, PADDED)


@triton.jit
def _silu_mul_codes(codes, scales, gate_up, WIDTH: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr):
    await_inputs(EARLY)
    row = tl.program_id(0).to(tl.int64)
    numbers = gated(gate_up, row, tl.arange(0, PADDED), WIDTH)
    _store_codes(codes, scales, row, numbers.to(gate_up.dtype.element_ty).to(tl.float32), WIDTH, PADDED)


@triton.jit
def _store_codes(codes, scales, row, numbers, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    at = tl.arange(0, PADDED)
    mask = at < WIDTH
    scale = tl.maximum(tl.max(tl.abs(numbers), axis=0) / 448.0, 1.1754943508222875e-38)
    # A quotient may round up past the largest code.
    shares = tl.minimum(tl.maximum(numbers / scale, -448.0), 448.0)
    tl.store(codes + row * WIDTH + at, shares.to(codes.dtype.element_ty), mask=mask)
    tl.store(scales + row, scale)
