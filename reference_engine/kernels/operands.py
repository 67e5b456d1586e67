"""What kernels are given: rows as codes, and checks of shapes, from which they compute addresses."""

from typing import NamedTuple

import torch

from bakeoff.reference_engine.errors import EngineBugError


class CodedRows(NamedTuple):
    """Rows as codes.

    Attributes:
        codes: e4m3 [rows, columns].
        scales: float32 [rows, 1]: largest |x| of the row / 448.
    """

    codes: torch.Tensor
    scales: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        """Of the codes."""
        return self.codes.shape


def require_packed(dtype: torch.dtype | None, *tensors: torch.Tensor | None) -> None:
    """Checks that tensors are contiguous.

    Args:
        dtype: that all must have; None for any.
        tensors: None for absent ones.

    Raises:
        EngineBugError: one is not, or has another dtype.
    """
    for tensor in tensors:
        if tensor is None:
            continue
        if dtype is not None and tensor.dtype != dtype:
            raise EngineBugError(f"a kernel for {dtype} was given {tensor.dtype}")
        if not tensor.is_contiguous():
            raise _strided(tensor)


def require_rows(dtype: torch.dtype | None, *tensors: torch.Tensor | None) -> None:
    """Checks that each row of tensors, of any number of dimensions, is contiguous; it may be part of a longer one.

    Args:
        dtype: that all must have; None for any.
        tensors: [rows, ...]; None for absent ones.

    Raises:
        EngineBugError: a row is not, or has another dtype.
    """
    for tensor in tensors:
        if tensor is None:
            continue
        if dtype is not None and tensor.dtype != dtype:
            raise EngineBugError(f"a kernel for {dtype} was given {tensor.dtype}")
        # The common case first: this runs several times in each layer of a step.
        if not tensor.is_contiguous() and tensor.shape[0] and not tensor[0].is_contiguous():
            raise _strided(tensor)


def _strided(tensor: torch.Tensor) -> EngineBugError:
    shape, strides = list(tensor.shape), list(tensor.stride())
    return EngineBugError(f"a kernel for contiguous tensors was given shape {shape} with strides {strides}")
