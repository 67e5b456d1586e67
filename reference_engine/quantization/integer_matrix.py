"""Weights as whole numbers of 4 or 8 bits, with a scale for each group of neighbours in a row.

w[o, i] = scale[o, g] · code[o, i] + offset[o, g], where g = i // group. Round-to-nearest methods, GPTQ and AWQ differ
in how they choose codes and scales, not in this.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Literal, Self

import torch

from bakeoff.reference_engine.kernels import integers
from bakeoff.reference_engine.quantization.coded_linear import (
    CodedLinear,
    CodedWeight,
    coded_call_bytes,
    coded_nbytes,
    has_coded_products,
)
from bakeoff.reference_engine.quantization.matrix import Linear, SlabLinear, slab_call_bytes

UNIT = 32
"""Columns that 16 bytes of 4-bit codes hold: byte j has column j in its low half and column j + 16 in its high half, so
that each half of a register holds neighbours."""
MIDDLE = 8
"""The 4-bit code of zero in a matrix without offsets."""


def pack(codes: torch.Tensor) -> torch.Tensor:
    """4-bit codes 0 to 15, uint8 [..., columns], as bytes [..., columns / 2]; see `UNIT`."""
    low, high = codes.unflatten(-1, (-1, 2, UNIT // 2)).unbind(-2)
    return (low | (high << 4)).flatten(-2)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Inverse of `pack`."""
    units = packed.unflatten(-1, (-1, UNIT // 2))
    return torch.stack((units & 15, units >> 4), dim=-2).flatten(-3)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class IntegerMatrix:
    """A `QuantisedMatrix` of whole numbers.

    Attributes:
        codes: 8 bits: int8 [rows, columns]; 4 bits: uint8 [rows, columns / 2], see `pack`.
        scales: [rows, groups], in any floating-point dtype.
        offsets: float32 [rows, groups]; None if zero is code 0 (8 bits) or `MIDDLE` (4 bits).
        bits: of a code.
        order: int64 [columns]: column j of `codes` is column order[j] of the matrix, for groups that are not neighbours
            (GPTQ's act-order); None for neighbours.
        dtype: see `QuantisedMatrix`.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None = None
    bits: Literal[4, 8] = 8
    order: torch.Tensor | None = None
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        width = self.shape[1]
        if width % self.scales.shape[1] or (self.bits == 4 and self.group % UNIT):
            raise ValueError(f"{self.scales.shape[1]} groups do not divide {width} columns of {self.bits} bits")

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1] * 8 // self.bits

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return self.shape[1] // self.scales.shape[1]

    @property
    def nbytes(self) -> int:
        return sum(
            tensor.nbytes for tensor in (self.codes, self.scales, self.offsets, self.order) if tensor is not None
        )

    def held_bytes(self, device: torch.device, dtype: torch.dtype) -> int:
        order = 0 if self.order is None else self.order.nbytes
        if self._has_coded_products(device):
            return order + coded_nbytes(self.shape, self.bits, self.group, has_offsets=self.offsets is not None)
        if self.has_kernel(device, dtype):
            numbers = 1 if self.offsets is None else 2
            return order + integers.held_bytes(self.shape, self.group, self.bits, numbers)
        return self.nbytes

    def call_bytes(self, rows: int, device: torch.device, dtype: torch.dtype) -> int:
        if self._has_coded_products(device):
            in_order = 0 if self.order is None else rows * self.shape[1] * dtype.itemsize
            return in_order + coded_call_bytes(self.shape, rows, dtype)
        if not self.has_kernel(device, dtype):
            return slab_call_bytes(self.shape, rows, dtype)
        return rows * self.shape[0] * dtype.itemsize

    @property
    def layout(self) -> Hashable:
        """Different for any two matrices with an `order`."""
        return self.bits, self.group, self.offsets is None, self.scales.dtype, None if self.order is None else id(self)

    @property
    def column_unit(self) -> int:
        """One group, or the whole width if groups are scattered."""
        return self.group if self.order is None else self.shape[1]

    def has_kernel(self, device: torch.device, dtype: torch.dtype) -> bool:
        return integers.has_kernel(device, dtype, self.group, self.shape[1]) or self._has_coded_products(device)

    def _has_coded_products(self, device: torch.device) -> bool:
        return has_coded_products(device, self.shape[0], self.group)

    @property
    def may_capture(self) -> bool:
        return True

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        moved = {
            name: tensor.to(device)
            for name in ("codes", "scales", "offsets", "order")
            if (tensor := getattr(self, name)) is not None
        }
        return dataclasses.replace(self, dtype=dtype, **moved)

    def rows(self, index: torch.Tensor | slice) -> Self:
        offsets = None if self.offsets is None else self.offsets[index]
        return dataclasses.replace(self, codes=self.codes[index], scales=self.scales[index], offsets=offsets)

    def columns(self, first: int, stop: int) -> Self:
        groups = slice(first // self.group, stop // self.group)
        codes = self.codes[:, first * self.bits // 8 : stop * self.bits // 8]
        return dataclasses.replace(
            self,
            codes=codes.contiguous(),
            scales=self.scales[:, groups].contiguous(),
            offsets=None if self.offsets is None else self.offsets[:, groups].contiguous(),
        )

    def stacked(self, others: Sequence[Self]) -> Self:
        parts = (self, *others)
        offsets = [part.offsets for part in parts if part.offsets is not None]
        return dataclasses.replace(
            self,
            codes=torch.cat([part.codes for part in parts]),
            scales=torch.cat([part.scales for part in parts]),
            offsets=torch.cat(offsets) if offsets else None,
        )

    def dequantised(self) -> torch.Tensor:
        """Computed in float32 and rounded once, compiled if a compiler was available."""
        if integers.has_kernel(self.codes.device, self.dtype, self.group, self.shape[1]):
            plain = integers.dequantise(self.codes, self.scales, self.offsets, self.bits, self.dtype)
            return self._in_order(plain)
        codes = self.codes.float() if self.bits == 8 else unpack(self.codes).float()
        if self.bits == 4 and self.offsets is None:
            codes -= MIDDLE
        grouped = codes.unflatten(1, (-1, self.group)) * self.scales.float()[..., None]
        if self.offsets is not None:
            grouped += self.offsets[..., None]
        return self._in_order(grouped.flatten(1).to(self.dtype))

    def _in_order(self, plain: torch.Tensor) -> torch.Tensor:
        return plain if self.order is None else torch.empty_like(plain).index_copy_(1, self.order, plain)

    def linear(self, bias: torch.Tensor | None, *, keeps_float32: bool = False) -> Linear:
        if self._has_coded_products(self.codes.device):
            codes = self.codes if self.bits == 8 else unpack(self.codes)
            dtype = torch.float32 if keeps_float32 else self.dtype
            return CodedLinear(CodedWeight(codes, self.scales, self.offsets, self.bits), bias, dtype, self.order)
        if not self.has_kernel(self.codes.device, self.dtype):
            return SlabLinear(self, bias)
        # For many rows bfloat16 is faster on some processors, but then a token's bits would depend on the batch.
        return integers.IntegerLinear(
            self.codes, self.scales, self.offsets,
            bits=self.bits, order=self.order, bias=bias, dtype=self.dtype, keeps_float32=keeps_float32,
        )  # fmt: skip
