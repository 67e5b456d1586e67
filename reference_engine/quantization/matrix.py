"""The interface of quantised matrices, so that models, shards and checkpoints need not know the method."""

from collections.abc import Hashable, Sequence
from typing import Protocol, Self, TypeVar

import torch
from torch.nn.functional import linear

_SLAB_ELEMENTS = 1 << 24
"""Weights to dequantise at a time without a kernel: few compared with a model, many compared with a launch."""

_DECODED_BYTES = 8
"""Bytes for each dequantised weight: two float32 numbers, before and after scaling."""


class Linear(Protocol):
    """A matrix with an optional bias."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features]."""
        ...


class QuantisedMatrix(Protocol):
    """A weight [out_features, in_features] in fewer bits than its activations."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix: out_features, in_features."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the activations that it is multiplied by, and of its dequantised numbers."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, scales included."""
        ...

    def held_bytes(self, device: torch.device, dtype: torch.dtype) -> int:
        """Bytes that its product keeps on a device for activations of a dtype; kernels may rearrange codes."""
        ...

    def call_bytes(self, rows: int, device: torch.device, dtype: torch.dtype) -> int:
        """Most bytes that its product takes while it multiplies many rows there, result included."""
        ...

    @property
    def layout(self) -> Hashable:
        """Equal for matrices that `stacked` can join if they have as many columns."""
        ...

    @property
    def column_unit(self) -> int:
        """Shards by `columns` must begin and end at multiples of this."""
        ...

    def has_kernel(self, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether `linear` would multiply by the codes, instead of dequantising them each time."""
        ...

    @property
    def may_capture(self) -> bool:
        """Whether its product never waits for the device, so that a CUDA graph can repeat it."""
        ...

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        """The same numbers on a device, for activations of a dtype."""
        ...

    def rows(self, index: torch.Tensor | slice) -> Self:
        """Some of its rows, in the order of `index`."""
        ...

    def columns(self, first: int, stop: int) -> Self:
        """Its columns from `first` to before `stop`, both multiples of `column_unit`."""
        ...

    def stacked(self, others: Sequence[Self]) -> Self:
        """The rows of this matrix, then of others with the same layout and columns."""
        ...

    def dequantised(self) -> torch.Tensor:
        """Plain numbers [rows, columns] in `dtype`."""
        ...

    def linear(self, bias: torch.Tensor | None, *, keeps_float32: bool = False) -> Linear:
        """The fastest product with it on its device.

        Args:
            bias: [out_features]; None for none.
            keeps_float32: whether results may stay float32 if sums are, see `make_head`.
        """
        ...


_Matrix = TypeVar("_Matrix", bound=QuantisedMatrix)


class SlabLinear:
    """Dequantises a slab of rows at a time and multiplies in stock torch; for any quantised matrix."""

    def __init__(self, weight: QuantisedMatrix, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        width, depth = self._weight.shape
        step = max(1, _SLAB_ELEMENTS // depth)
        slabs = [slice(first, first + step) for first in range(0, width, step)]
        parts = [
            linear(rows, self._weight.rows(slab).dequantised(), None if self._bias is None else self._bias[slab])
            for slab in slabs
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def slab_call_bytes(shape: tuple[int, int], rows: int, dtype: torch.dtype) -> int:
    """`QuantisedMatrix.call_bytes` of `SlabLinear`."""
    width, depth = shape
    slab_rows = min(width, max(1, _SLAB_ELEMENTS // depth))
    result, earlier = rows * width * dtype.itemsize, rows * (width - slab_rows) * dtype.itemsize
    decoded = _DECODED_BYTES + (0 if dtype.itemsize == 4 else dtype.itemsize)  # and a rounded copy, unless float32
    multiplied = result + slab_rows * depth * dtype.itemsize
    joined = 2 * result if earlier else result
    return max(joined, multiplied, earlier + slab_rows * depth * decoded)


def stacked(parts: Sequence[_Matrix]) -> _Matrix:
    """Stacks matrices of one layout and width by rows."""
    return parts[0] if len(parts) == 1 else parts[0].stacked(parts[1:])
