"""Products with weights of whole numbers, compiled (`integers.cpp`); see there for how and why."""

import ctypes
import functools

import torch
from torch.nn.functional import pad

from reference_engine.kernels.cpu import SUFFIXES
from reference_engine.kernels.native import LONG, POINTER, library

_BLOCK = 32  # columns of a row that are rounded together
_STEP = 64  # columns that are multiplied together


class _Weight(ctypes.Structure):
    """See the struct of that name in `integers.cpp`."""

    _fields_ = (
        *((name, POINTER) for name in ("codes", "scales", "offsets", "bias", "order")),
        *((name, LONG) for name in ("outputs", "columns", "groups", "bits")),
    )


def has_kernel(device: torch.device, dtype: torch.dtype, group: int, columns: int) -> bool:
    """Whether compiled products with activations of this kind are there, for such groups of a row's columns."""
    suits = group % _BLOCK == 0 or group == columns
    return suits and device.type == "cpu" and dtype in SUFFIXES and _functions() is not None


class IntegerLinear:
    """y = x·Wᵀ + b, compiled, with x rounded to 8 bits: each 32 neighbours to the 127th part of their largest.

    A row's bits do not depend on the other rows, nor on the number of threads.

    Args:
        codes: see `IntegerMatrix`, as are scales, offsets, bits and order; `has_kernel` said yes to it.
        scales: [out_features, groups].
        offsets: [out_features, groups]; None for none.
        bits: of a code.
        order: [in_features]; None for that of the columns.
        bias: [out_features]; None for none.
        dtype: of the activations.
        keeps_float32: whether y is float32, as the sums are; in `dtype` otherwise.
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
        self._dtype = torch.float32 if keeps_float32 else dtype
        suffix = "bf16_to_f32" if self._dtype != dtype else SUFFIXES[dtype]
        self._multiply = getattr(_compiled(), f"multiply_integers_{suffix}")
        self._out, columns = codes.shape[0], codes.shape[1] * 8 // bits
        missing = -columns % _STEP * bits // 8
        whole = pad(codes, (0, missing)) if missing else codes.contiguous()  # padding copies, be it with nothing
        numbers = [None if part is None else part.float().contiguous() for part in (scales, offsets, bias)]
        self._kept = (whole, *numbers, None if order is None else order.contiguous())
        pointers = (None if part is None else part.data_ptr() for part in self._kept)
        self._weight = _Weight(*pointers, self._out, columns, scales.shape[1], bits)
        self._pointer = ctypes.addressof(self._weight)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows [num_rows, in_features] in the activations' dtype, each contiguous -> [num_rows, out_features]."""
        count = rows.shape[0]
        out = rows.new_empty(count, self._out, dtype=self._dtype)
        self._multiply(self._pointer, out.data_ptr(), rows.data_ptr(), rows.stride(0), count)
        return out


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
    return functions
