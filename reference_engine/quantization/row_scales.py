"""Weights with a code for each element and a scale for each row: w[o, i] = scale[o] · code[o, i].

Each row stores its own scale even if one scale serves a whole tensor: that costs 4 bytes a row, and matrices can be
stacked and split exactly.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Self

import torch

from bakeoff.reference_engine.quantization.matrix import Linear, SlabLinear, slab_call_bytes


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RowScaledMatrix:
    """A `QuantisedMatrix` with row scales.

    Attributes:
        codes: [rows, columns], of any 8-bit dtype.
        scales: float32 [rows, 1].
        dtype: see `QuantisedMatrix`.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    dtype: torch.dtype = torch.float32

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def held_bytes(self, device: torch.device, dtype: torch.dtype) -> int:  # noqa: ARG002 (the same on any)
        return self.nbytes

    def call_bytes(self, rows: int, device: torch.device, dtype: torch.dtype) -> int:  # noqa: ARG002 (the same on any)
        return slab_call_bytes(self.shape, rows, dtype)

    @property
    def layout(self) -> Hashable:
        return self.codes.dtype

    @property
    def column_unit(self) -> int:
        return 1

    @property
    def may_capture(self) -> bool:
        return True

    def has_kernel(self, device: torch.device, dtype: torch.dtype) -> bool:  # noqa: ARG002 (of subclasses)
        return False

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        return dataclasses.replace(self, codes=self.codes.to(device), scales=self.scales.to(device), dtype=dtype)

    def rows(self, index: torch.Tensor | slice) -> Self:
        return dataclasses.replace(self, codes=self.codes[index], scales=self.scales[index])

    def columns(self, first: int, stop: int) -> Self:
        return dataclasses.replace(self, codes=self.codes[:, first:stop].contiguous())

    def stacked(self, others: Sequence[Self]) -> Self:
        parts = (self, *others)
        codes, scales = torch.cat([part.codes for part in parts]), torch.cat([part.scales for part in parts])
        return dataclasses.replace(self, codes=codes, scales=scales)

    def dequantised(self) -> torch.Tensor:
        """Computed in float32 and rounded once."""
        return (self.codes.float() * self.scales).to(self.dtype)

    def linear(self, bias: torch.Tensor | None, *, keeps_float32: bool = False) -> Linear:  # noqa: ARG002
        return SlabLinear(self, bias)
