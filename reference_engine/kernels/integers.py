"""Products with weights of whole numbers, compiled; `integers.cpp` explains how and why."""

import ctypes
import functools

import torch
from torch.nn.functional import pad

from bakeoff.reference_engine.kernels.blocks import FORMATS, BlockFormat
from bakeoff.reference_engine.kernels.cpu import SUFFIXES
from bakeoff.reference_engine.kernels.native import LONG, POINTER, library
from bakeoff.reference_engine.kernels.operands import require_packed, require_rows

BLOCK = 32
"""Columns of a row that are rounded together."""
_STEP = 64  # columns that are multiplied together
_FORMATS = tuple(FORMATS[name] for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"))


class _Weight(ctypes.Structure):
    """The struct of that name in `integers.cpp`, field by field."""

    _fields_ = (
        *((name, POINTER) for name in ("codes", "scales", "offsets", "bias", "order")),
        *((name, LONG) for name in ("outputs", "columns", "groups", "bits", "format")),
    )


def has_kernel(device: torch.device, dtype: torch.dtype, group: int, columns: int) -> bool:
    """Whether there are compiled products for activations of this kind and such groups of a row's columns."""
    suits = group % BLOCK == 0 or group == columns
    return suits and device.type == "cpu" and dtype in SUFFIXES and _functions() is not None


def multiplies_blocks(device: torch.device, block_format: BlockFormat, columns: int) -> bool:
    """Whether `BlockIntegerLinear` supports matrices with that many columns."""
    suits = block_format in _FORMATS and columns % _STEP == 0
    return suits and device.type == "cpu" and _functions() is not None


def held_bytes(shape: tuple[int, int], group: int, bits: int, numbers: int) -> int:
    """Bytes of the codes of an `IntegerLinear`, and of its numbers in float32.

    Args:
        shape: of the weight.
        group: columns that share a scale.
        bits: of a code.
        numbers: 1 for scales, 2 for scales and offsets.
    """
    outputs, columns = shape
    return outputs * ((columns + -columns % _STEP) * bits // 8 + columns // group * numbers * 4)


class _Product:
    """y = x·Wᵀ + b, compiled, with x rounded to 8 bits: every 32 neighbours in steps of 1/127 of their largest.

    A row's bits do not depend on the other rows, nor on the number of threads.

    Args:
        tensors: codes, scales, offsets, bias and order; None for absent ones.
        numbers: outputs, columns, groups, bits (not of blocks) and format, see the struct in `integers.cpp`.
        dtype: of the activations.
        keeps_float32: whether y is float32, as the sums are; in `dtype` otherwise.
    """

    def __init__(
        self,
        tensors: tuple[torch.Tensor | None, ...],
        numbers: tuple[int, int, int, int, int],
        dtype: torch.dtype,
        *,
        keeps_float32: bool,
    ) -> None:
        self._rows_dtype = dtype
        self._dtype = torch.float32 if keeps_float32 else dtype
        suffix = "bf16_to_f32" if self._dtype != dtype else SUFFIXES[dtype]
        self._multiply = getattr(_compiled(), f"multiply_integers_{suffix}")
        require_packed(None, *tensors)
        self._kept, self._outputs = tensors, numbers[0]
        self._weight = _Weight(*map(_address, tensors), *numbers)
        self._pointer = ctypes.addressof(self._weight)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows [num_rows, in_features] in the activations' dtype, each contiguous -> [num_rows, out_features]."""
        require_rows(self._rows_dtype, rows)
        count = rows.shape[0]
        out = rows.new_empty(count, self._outputs, dtype=self._dtype)
        self._multiply(self._pointer, out.data_ptr(), rows.data_ptr(), rows.stride(0), count)
        return out


class IntegerLinear(_Product):
    """The product with an `IntegerMatrix`.

    Args:
        codes: see `IntegerMatrix`, as are scales, offsets, bits and order; `has_kernel` must be true.
        scales: [out_features, groups].
        offsets: [out_features, groups]; None for none.
        bits: of a code.
        order: [in_features]; None for that of the columns.
        bias: [out_features]; None for none.
        dtype: see `_Product`, as is `keeps_float32`.
    """

    def __init__(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        offsets: torch.Tensor | None,
        *,
        bits: int,
        order: torch.Tensor | None,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        keeps_float32: bool = False,
    ) -> None:
        columns = codes.shape[1] * 8 // bits
        missing = -columns % _STEP * bits // 8
        whole = pad(codes, (0, missing)) if missing else codes.contiguous()  # pad always copies
        tensors = (whole, *map(_floats, (scales, offsets, bias)), None if order is None else order.contiguous())
        numbers = (codes.shape[0], columns, scales.shape[1], bits, 0)
        super().__init__(tensors, numbers, dtype, keeps_float32=keeps_float32)


def dequantise(
    codes: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None, bits: int, dtype: torch.dtype
) -> torch.Tensor:
    """Plain numbers [out_features, in_features] in `dtype`, columns as in `codes`; `has_kernel` must be true."""
    outputs, columns = codes.shape[0], codes.shape[1] * 8 // bits
    tensors = (codes.contiguous(), *map(_floats, (scales, offsets)), None, None)
    weight = _Weight(*map(_address, tensors), outputs, columns, scales.shape[1], bits, 0)
    out = torch.empty(outputs, columns, dtype=dtype)
    getattr(_compiled(), f"dequantise_integers_{SUFFIXES[dtype]}")(ctypes.addressof(weight), out.data_ptr())
    return out


class BlockIntegerLinear(_Product):
    """The product with the blocks of a GGUF file, read as they are.

    Args:
        blocks: uint8 [out_features, bytes of a row], contiguous; `multiplies_blocks` must be true.
        block_format: of every block.
        shape: of the weight, [out_features, in_features].
        bias: [out_features]; None for none.
        dtype: see `_Product`, as is `keeps_float32`.
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
        outputs, columns = shape
        numbers = (outputs, columns, columns // BLOCK, 0, block_format.number)
        super().__init__((blocks, None, None, _floats(bias), None), numbers, dtype, keeps_float32=keeps_float32)


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _floats(numbers: torch.Tensor | None) -> torch.Tensor | None:
    return None if numbers is None else numbers.float().contiguous()


def _compiled() -> ctypes.CDLL:
    functions = _functions()
    if functions is None:
        raise RuntimeError("this machine has no compiled products with whole numbers; ask has_kernel first")
    return functions


@functools.cache
def _functions() -> ctypes.CDLL | None:
    functions = library("integers.cpp")
    if functions is None:
        return None
    for suffix in (*SUFFIXES.values(), "bf16_to_f32"):
        product = getattr(functions, f"multiply_integers_{suffix}")
        product.argtypes, product.restype = (POINTER, POINTER, POINTER, LONG, LONG), None
    for suffix in SUFFIXES.values():
        plain = getattr(functions, f"dequantise_integers_{suffix}")
        plain.argtypes, plain.restype = (POINTER, POINTER), None
    return functions
