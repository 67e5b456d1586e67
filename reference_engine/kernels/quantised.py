"""Products with weights in blocks, compiled; `quantised.cpp` explains how and why."""

import ctypes
import functools

import torch

from bakeoff.reference_engine.kernels.blocks import BlockFormat
from bakeoff.reference_engine.kernels.cpu import SUFFIXES
from bakeoff.reference_engine.kernels.native import LONG, POINTER, library
from bakeoff.reference_engine.kernels.operands import require_packed, require_rows


def has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether there are compiled products for activations of this kind."""
    return device.type == "cpu" and dtype in SUFFIXES and _functions() is not None


class BlockLinear:
    """y = x·Wᵀ + b, compiled, with sums in float32.

    Args:
        blocks: uint8 [out_features, bytes of a row], contiguous; `has_kernel` must be true of its device and `dtype`.
        block_format: of every block.
        shape: of the weight, [out_features, in_features].
        bias: [out_features]; None for none.
        dtype: of the activations.
        keeps_float32: whether y is float32, as the sums are; in `dtype` otherwise.
    """

    def __init__(
        self,
        blocks: torch.Tensor,
        block_format: BlockFormat,
        shape: tuple[int, int],
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        *,
        keeps_float32: bool = False,
    ) -> None:
        require_packed(torch.uint8, blocks)
        self._rows_dtype = dtype
        self._dtype = torch.float32 if keeps_float32 else dtype
        suffix = "bf16_to_f32" if self._dtype != dtype else SUFFIXES[dtype]
        self._multiply = getattr(_compiled(), f"multiply_blocks_{suffix}")
        self._blocks, self._bias = blocks, None if bias is None else bias.float().contiguous()
        self._format, (self._out, self._in) = block_format.number, shape
        self._constants = (self._blocks.data_ptr(), None if self._bias is None else self._bias.data_ptr())

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows [num_rows, in_features] in the activations' dtype, each contiguous -> [num_rows, out_features]."""
        require_rows(self._rows_dtype, rows)
        count, x = rows.shape[0], rows.data_ptr()
        out = rows.new_empty(count, self._out, dtype=self._dtype)
        self._multiply(self._format, out.data_ptr(), x, rows.stride(0), *self._constants, count, self._out, self._in)
        return out


def dequantise(
    blocks: torch.Tensor, block_format: BlockFormat, shape: tuple[int, int], dtype: torch.dtype
) -> torch.Tensor:
    """Plain numbers [rows, columns] in `dtype`; `has_kernel` must be true. See `BlockLinear` for the arguments."""
    require_packed(torch.uint8, blocks)
    out = torch.empty(shape, dtype=dtype)
    function = getattr(_compiled(), f"dequantise_{SUFFIXES[dtype]}")
    function(block_format.number, out.data_ptr(), blocks.data_ptr(), blocks.nbytes // block_format.bytes)
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
