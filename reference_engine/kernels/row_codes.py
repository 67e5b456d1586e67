"""Rows as E4M3 codes with a scale each. Import this module only where `has_triton` holds, or under its interpreter."""

# Kernels are written as Triton's users know them, and its decorator hides their types.
# ruff: noqa: ANN001, ANN202, N803, PLR0917
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl

from bakeoff.reference_engine.kernels.early_start import await_inputs, early_start
from bakeoff.reference_engine.kernels.operands import require_rows


def scaled_codes(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as E4M3 codes, and their scales: largest |x| of the row / 448.

    Args:
        rows: [rows, columns], each contiguous, in any floating-point dtype.

    Returns:
        [rows, columns] and float32 [rows, 1].
    """
    require_rows(None, rows)
    count, width = rows.shape
    codes = torch.empty(count, width, dtype=torch.float8_e4m3fn, device=rows.device)
    scales = torch.empty(count, 1, dtype=torch.float32, device=rows.device)
    padded = triton.next_power_of_2(width)
    _scaled_codes[(count,)](
        codes, scales, rows, rows.stride(0), WIDTH=width, PADDED=padded, num_warps=min(16, max(1, padded // 1024)),
        **early_start(rows, count),
    )  # fmt: skip
    return codes, scales


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
