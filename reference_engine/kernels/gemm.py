"""Matrix products with packed weights, compiled; `gemm.cpp` explains how and why."""

import ctypes
import functools

import torch

from bakeoff.reference_engine.kernels.native import LONG, POINTER, library
from bakeoff.reference_engine.kernels.operands import require_rows

_PANEL = 32  # both dimensions of a weight must be multiples of it


class TiledLinear:
    """y = x·Wᵀ + b for bfloat16 on this CPU; keeps no copy of the weight [out_features, in_features] it is made from.

    Args:
        weight: :func:`can_tile` is true of it.
        bias: [out_features]; None for none.
        keeps_float32: whether y is float32, as the sums are; rounded to bfloat16 otherwise.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, keeps_float32: bool = False) -> None:
        functions = _functions()
        if functions is None:
            raise RuntimeError("this machine has no tiled products; ask can_tile first")
        weight = weight.contiguous()
        self._packed = torch.empty_like(weight)
        self._bias = None if bias is None else bias.float().contiguous()
        self._out, self._in = weight.shape
        functions.pack(self._packed.data_ptr(), weight.data_ptr(), self._out, self._in)
        self._dtype = torch.float32 if keeps_float32 else weight.dtype
        self._multiply = functions.multiply_packed_f32 if keeps_float32 else functions.multiply_packed
        self._constants = (self._packed.data_ptr(), None if self._bias is None else self._bias.data_ptr())

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features]."""
        require_rows(torch.bfloat16, rows)
        count = rows.shape[0]
        out = rows.new_empty(count, self._out, dtype=self._dtype)
        self._multiply(out.data_ptr(), rows.data_ptr(), rows.stride(0), *self._constants, count, self._out, self._in)
        return out


def can_tile(weight: torch.Tensor) -> bool:
    """Whether `TiledLinear` supports this weight on this machine."""
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return False
    return not any(size % _PANEL for size in weight.shape) and _functions() is not None


@functools.cache
def _functions() -> ctypes.CDLL | None:
    functions = library("gemm.cpp")
    if functions is None or not functions.can_multiply():
        return None
    functions.pack.argtypes = (POINTER, POINTER, LONG, LONG)
    functions.pack.restype = None
    for product in (functions.multiply_packed, functions.multiply_packed_f32):
        product.argtypes, product.restype = (POINTER, POINTER, LONG, POINTER, POINTER, LONG, LONG, LONG), None
    return functions
