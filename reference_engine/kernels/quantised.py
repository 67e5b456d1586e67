"""Products with weights in blocks, compiled (`quantised.cpp`); see there for how and why."""

import ctypes
import functools

import torch

from reference_engine.kernels.blocks import QuantisedTensor
from reference_engine.kernels.native import library

_SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}
_POINTER, _LONG = ctypes.c_void_p, ctypes.c_int64


def has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether compiled products with activations of this kind are there."""
    return device.type == "cpu" and dtype in _SUFFIXES and _functions() is not None


def multiply(rows: torch.Tensor, weight: QuantisedTensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Compiled x·Wᵀ + b; `has_kernel` said yes.

    Args:
        rows: [num_rows, in_features], each contiguous; not rounded.
        weight: [out_features, in_features].
        bias: float32 [out_features], or None.

    Returns:
        [num_rows, out_features] in the dtype of `rows`, of sums in float32.
    """
    count, (width, depth) = rows.shape[0], weight.shape
    out = rows.new_empty(count, width)
    function = getattr(_compiled(), f"multiply_blocks_{_SUFFIXES[rows.dtype]}")
    function(
        weight.format.number,
        out.data_ptr(),
        rows.data_ptr(),
        rows.stride(0),
        weight.blocks.data_ptr(),
        None if bias is None else bias.data_ptr(),
        count,
        width,
        depth,
    )
    return out


def dequantise(matrix: QuantisedTensor, dtype: torch.dtype) -> torch.Tensor:
    """The matrix as plain numbers of a dtype; compiled where that is there, else in stock torch."""
    if not has_kernel(matrix.blocks.device, dtype):
        return matrix.dequantised().to(dtype)
    out = torch.empty(matrix.shape, dtype=dtype)
    function = getattr(_compiled(), f"dequantise_{_SUFFIXES[dtype]}")
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
    for suffix in _SUFFIXES.values():
        product, plain = getattr(functions, f"multiply_blocks_{suffix}"), getattr(functions, f"dequantise_{suffix}")
        product.argtypes = (_LONG, _POINTER, _POINTER, _LONG, _POINTER, _POINTER, _LONG, _LONG, _LONG)
        plain.argtypes = (_LONG, _POINTER, _POINTER, _LONG)
        product.restype = plain.restype = None
    return functions
