"""Products with weights in blocks, compiled (`quantised.cpp`); see there for how and why."""

import ctypes
import functools

import torch

from reference_engine.kernels.blocks import QuantisedTensor
from reference_engine.kernels.cpu import SUFFIXES
from reference_engine.kernels.native import LONG, POINTER, library


def has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether compiled products with activations of this kind are there."""
    return device.type == "cpu" and dtype in SUFFIXES and _functions() is not None


class BlockLinear:
    """y = x·Wᵀ + b, compiled, of sums in float32.

    Args:
        weight: [out_features, in_features]; `has_kernel` said yes to its device and dtype.
        bias: [out_features]; None for none.
        keeps_float32: whether y is float32, as the sums are; in the weight's dtype otherwise.
    """

    def __init__(self, weight: QuantisedTensor, bias: torch.Tensor | None, *, keeps_float32: bool = False) -> None:
        self._dtype = torch.float32 if keeps_float32 else weight.dtype
        suffix = "bf16_to_f32" if self._dtype != weight.dtype else SUFFIXES[weight.dtype]
        self._multiply = getattr(_compiled(), f"multiply_blocks_{suffix}")
        self._blocks, self._bias = weight.blocks, None if bias is None else bias.float().contiguous()
        self._format, (self._out, self._in) = weight.format.number, weight.shape
        self._constants = (self._blocks.data_ptr(), None if self._bias is None else self._bias.data_ptr())

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows [num_rows, in_features] in the weight's dtype, each contiguous -> [num_rows, out_features]."""
        count, x = rows.shape[0], rows.data_ptr()
        out = rows.new_empty(count, self._out, dtype=self._dtype)
        self._multiply(self._format, out.data_ptr(), x, rows.stride(0), *self._constants, count, self._out, self._in)
        return out


def dequantise(matrix: QuantisedTensor) -> torch.Tensor:
    """The matrix as plain numbers of its dtype; compiled where that is there, else in stock torch."""
    if not has_kernel(matrix.blocks.device, matrix.dtype):
        return matrix.dequantised().to(matrix.dtype)
    out = torch.empty(matrix.shape, dtype=matrix.dtype)
    function = getattr(_compiled(), f"dequantise_{SUFFIXES[matrix.dtype]}")
    function(matrix.format.number, out.data_ptr(), matrix.blocks.data_ptr(), matrix.nbytes // matrix.format.bytes)
    return out


def _compiled() -> ctypes.CDLL:
    functions = _functions()
    if functions is None:
        raise RuntimeError("this machine has no compiled products with blocks; ask has_kernel first")
    return functions


@functools.cache
def _functions() -> ctypes.CDLL | None:
    functions = library("quantised.cpp")
    if functions is None:
        return None
    for suffix in (*SUFFIXES.values(), "bf16_to_f32"):
        product = getattr(functions, f"multiply_blocks_{suffix}")
        product.argtypes = (LONG, POINTER, POINTER, LONG, POINTER, POINTER, LONG, LONG, LONG)
        product.restype = None
    for suffix in SUFFIXES.values():
        plain = getattr(functions, f"dequantise_{suffix}")
        plain.argtypes, plain.restype = (LONG, POINTER, POINTER, LONG), None
    return functions
