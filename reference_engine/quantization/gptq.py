"""GPTQ (Frantar et al., arXiv 2210.17323): later columns compensate each column's rounding error.

The error of a matrix's output over inputs X is tr(ΔW H ΔWᵀ) with H = XᵀX. Columns are rounded one after another; with U
the upper Cholesky factor of H⁻¹, error (w_j - q_j) / U_jj times the rest of U's row j is subtracted from later columns.
"""

import torch

from bakeoff.reference_engine.quantization.integer_matrix import IntegerMatrix
from bakeoff.reference_engine.quantization.rounding import Bits, decoded, from_codes, nearest, scales_of

_DAMPING = 0.01
"""Share of the mean of H's diagonal that is added to it, which keeps H invertible."""
_BLOCK = 128
"""Columns whose errors are applied to the columns after the block at once."""


def gptq(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    bits: Bits,
    group: int,
    *,
    symmetric: bool = True,
    ordered: bool = False,
) -> IntegerMatrix:
    """Quantises a weight [rows, columns] for inputs like those of `hessian`.

    Args:
        weight: of any floating-point dtype; the scales get the same.
        hessian: XᵀX, float32 [columns, columns], of inputs X [tokens, columns].
        bits: of a code.
        group: columns that share a scale; divides the columns.
        symmetric: see `rounding.absmax` and `rounding.zero_point`.
        ordered: whether columns with large inputs come first (act-order), which scatters the groups.

    Raises:
        ValueError: the Hessian is not positive, even damped.
    """
    work, hessian = weight.float().clone(), hessian.float().clone()
    columns = work.shape[1]
    diagonal = hessian.diagonal()
    dead = diagonal == 0  # inputs that were always 0
    diagonal[dead] = 1
    work[:, dead] = 0
    order = diagonal.argsort(descending=True, stable=True) if ordered else None
    if order is not None:
        work, hessian = work[:, order], hessian[order][:, order]
    factor = _factor(hessian)
    codes = torch.empty_like(work)
    all_scales, all_zeros = [], []
    scales, zeros = work.new_empty(0), None
    for start in range(0, columns, _BLOCK):
        stop = min(start + _BLOCK, columns)
        errors = work.new_empty(work.shape[0], stop - start)
        for column in range(start, stop):
            if column % group == 0:
                # Columns of the group beyond this block lack this block's corrections, so their scale is slightly off.
                scales, zeros = scales_of(
                    work[:, None, column : column + group], bits, weight.dtype, symmetric=symmetric
                )
                all_scales.append(scales)
                all_zeros.append(zeros)
            weights = work[:, column, None, None]
            code = nearest(weights, scales, zeros, bits)
            codes[:, column] = code[:, 0, 0]
            error = (weights - decoded(code, scales, zeros, bits))[:, 0, 0] / factor[column, column]
            work[:, column:stop] -= error[:, None] * factor[column, column:stop]
            errors[:, column - start] = error
        work[:, stop:] -= errors @ factor[start:stop, stop:]
    known_zeros = [zero for zero in all_zeros if zero is not None]
    return from_codes(codes, torch.cat(all_scales, 1), torch.cat(known_zeros, 1) if known_zeros else None, bits, order)


def _factor(hessian: torch.Tensor) -> torch.Tensor:
    """The upper Cholesky factor of the inverse of a Hessian, damped in place."""
    hessian.diagonal().add_(_DAMPING * hessian.diagonal().mean())
    lower, failed = torch.linalg.cholesky_ex(hessian)
    if failed:
        raise ValueError("the Hessian is not positive: the calibration text gives inputs that are not finite")
    return torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)
