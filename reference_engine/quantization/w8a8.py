"""INT8 weights by INT8 activations.

Weights have a scale for each output, activations one for each token, computed when they are multiplied: scale =
max |x| / 127; code = round(x / scale). y[t, o] = scale[t] · scale[o] · Σ code[t, i] · code[o, i], and the sum is exact.
"""

import dataclasses
from typing import Self

import torch
from torch.nn.functional import linear, pad

from bakeoff.reference_engine.quantization.matrix import Linear
from bakeoff.reference_engine.quantization.rounding import nearest, scales_of
from bakeoff.reference_engine.quantization.row_scales import RowScaledMatrix

_EXACT_COLUMNS = 1024
"""Sums of so many products of INT8 codes stay below 2^24, so float32 represents them exactly in any order."""
_MIN_INT_MM_ROWS = 32
"""cuBLAS needs at least 17."""
_SUM_BYTES = 4
_int_mm = torch.ops.aten._int_mm  # noqa: SLF001 (no public name)


def coded(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers [rows, columns] as codes, int8 [rows, columns] from -127 to 127, and scales, float32 [rows, 1]."""
    groups = numbers.float()[:, None]
    scales, _ = scales_of(groups, 8, torch.float32, symmetric=True)
    return (nearest(groups, scales, None, 8)[:, 0] - 128).to(torch.int8), scales


def integer_product(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows · weightᵀ, exact: int8 [num_rows, columns], int8 [outputs, columns] -> int32 [num_rows, outputs]."""
    (outputs, columns), count = weight.shape, rows.shape[0]
    if _has_int_mm(weight.device, (outputs, columns)):
        return _int_mm(pad(rows, (0, 0, 0, max(0, _MIN_INT_MM_ROWS - count))), weight.t())[:count]
    sums = torch.zeros(count, outputs, dtype=torch.int32, device=rows.device)
    for first in range(0, columns, _EXACT_COLUMNS):
        part = slice(first, first + _EXACT_COLUMNS)
        sums += linear(rows[:, part].float(), weight[:, part].float()).int()
    return sums


def _has_int_mm(device: torch.device, shape: tuple[int, int]) -> bool:
    """Whether cuBLAS can multiply by a weight: it needs multiples of 8, and at least 16 columns."""
    return device.type == "cuda" and shape[0] % 8 == 0 == shape[1] % 8 and shape[1] >= 16


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class W8A8Matrix(RowScaledMatrix):
    """A `QuantisedMatrix` of INT8 codes that are multiplied by INT8 codes."""

    @classmethod
    def of(cls, weight: torch.Tensor) -> Self:
        """Quantises a weight [rows, columns] of any floating-point dtype."""
        return cls(*coded(weight), weight.dtype)

    def has_kernel(self, device: torch.device, dtype: torch.dtype) -> bool:  # noqa: ARG002 (any)
        return device.type == "cuda"

    def call_bytes(self, rows: int, device: torch.device, dtype: torch.dtype) -> int:
        width, depth = self.shape
        numbers = 2 if dtype is torch.float32 else 3  # float32 copies alive while activations are coded
        sums = rows * (depth + 2 * _SUM_BYTES * width)  # beside the codes, before and after they become float32
        if not _has_int_mm(device, self.shape):
            sums += _SUM_BYTES * max(min(depth, _EXACT_COLUMNS) * (rows + width), rows * width)
        return max(rows * depth * numbers * 4, sums)

    def linear(self, bias: torch.Tensor | None, *, keeps_float32: bool = False) -> Linear:
        return W8A8Linear(self, bias, torch.float32 if keeps_float32 else self.dtype)


class W8A8Linear:
    """Product of INT8 weights and INT8 activations.

    Args:
        weight: codes and scales.
        bias: [out_features]; None for none.
        dtype: of the result.
    """

    def __init__(self, weight: RowScaledMatrix, bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        self._codes, self._scales = weight.codes, weight.scales.t().contiguous()
        self._bias, self._dtype = bias, dtype

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        codes, scales = coded(rows)
        sums = integer_product(codes, self._codes).float().mul_(scales).mul_(self._scales)
        return (sums if self._bias is None else sums.add_(self._bias)).to(self._dtype)
