"""Matrices in the blocks of GGUF files (:mod:`bakeoff.reference_engine.kernels.blocks` has the formats)."""

import dataclasses
from collections.abc import Sequence
from typing import Self

import torch

from bakeoff.reference_engine.kernels import integers, quantised
from bakeoff.reference_engine.kernels.blocks import BlockFormat
from bakeoff.reference_engine.quantization.coded_linear import (
    CodedLinear,
    CodedWeight,
    coded_call_bytes,
    coded_nbytes,
    has_coded_products,
)
from bakeoff.reference_engine.quantization.integer_matrix import MIDDLE
from bakeoff.reference_engine.quantization.matrix import Linear, SlabLinear, slab_call_bytes


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BlockMatrix:
    """A `QuantisedMatrix` in blocks.

    Attributes:
        blocks: uint8 [rows, bytes of a row], contiguous.
        format: of every block.
        dtype: see `QuantisedMatrix`.
    """

    blocks: torch.Tensor
    format: BlockFormat
    dtype: torch.dtype = torch.float32

    @property
    def shape(self) -> tuple[int, int]:
        return self.blocks.shape[0], self.blocks.shape[1] // self.format.bytes * self.format.elements

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes

    def held_bytes(self, device: torch.device, dtype: torch.dtype) -> int:  # noqa: ARG002 (any)
        """Kernels for a GPU need codes of 8 or 4 bits, and scales in float32."""
        if not self._has_coded_products(device):
            return self.nbytes
        layout = self.format
        return coded_nbytes(self.shape, layout.bits, layout.group, has_offsets=layout.has_offsets)

    def call_bytes(self, rows: int, device: torch.device, dtype: torch.dtype) -> int:
        if self._has_coded_products(device):
            return coded_call_bytes(self.shape, rows, dtype)
        if self.has_kernel(device, dtype):
            return rows * self.shape[0] * dtype.itemsize
        return slab_call_bytes(self.shape, rows, dtype)

    @property
    def layout(self) -> str:
        return self.format.name

    @property
    def column_unit(self) -> int:
        return self.format.elements

    def has_kernel(self, device: torch.device, dtype: torch.dtype) -> bool:
        return quantised.has_kernel(device, dtype) or self._has_coded_products(device)

    def _has_coded_products(self, device: torch.device) -> bool:
        return has_coded_products(device, self.shape[0], self.format.group)

    @property
    def may_capture(self) -> bool:
        return True

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        return dataclasses.replace(self, blocks=self.blocks.to(device), dtype=dtype)

    def rows(self, index: torch.Tensor | slice) -> Self:
        return dataclasses.replace(self, blocks=self.blocks[index])

    def columns(self, first: int, stop: int) -> Self:
        start, end = (column // self.format.elements * self.format.bytes for column in (first, stop))
        return dataclasses.replace(self, blocks=self.blocks[:, start:end].contiguous())

    def stacked(self, others: Sequence[Self]) -> Self:
        return dataclasses.replace(self, blocks=torch.cat([self.blocks, *(other.blocks for other in others)]))

    def dequantised(self) -> torch.Tensor:
        """Compiled if a compiler was available, else in stock torch, with the same bits."""
        if quantised.has_kernel(self.blocks.device, self.dtype):
            return quantised.dequantise(self.blocks, self.format, self.shape, self.dtype)
        return self.format.unpack(self.blocks.reshape(-1, self.format.bytes)).view(self.shape).to(self.dtype)

    def linear(self, bias: torch.Tensor | None, *, keeps_float32: bool = False) -> Linear:
        """In bfloat16 rows are rounded to 8 bits where that is faster."""
        device, dtype = self.blocks.device, self.dtype
        if self._has_coded_products(device):
            return CodedLinear(self._coded(), bias, torch.float32 if keeps_float32 else dtype)
        if not quantised.has_kernel(device, dtype):
            return SlabLinear(self, bias)
        arguments = self.blocks, self.format, self.shape, bias, dtype
        # For many rows bfloat16 is faster on some processors, but then a token's bits would depend on the batch.
        rounds = dtype == torch.bfloat16 and integers.multiplies_blocks(device, self.format, self.shape[1])
        product = integers.BlockIntegerLinear if rounds else quantised.BlockLinear
        return product(*arguments, keeps_float32=keeps_float32)

    def _coded(self) -> CodedWeight:
        """The same numbers: codes of 5 and 6 bits are stored in bytes, and nested scales are multiplied out."""
        parts = self.format.parts(self.blocks.reshape(-1, self.format.bytes))
        if self.format.bits == 8:
            codes = parts.numbers.view(torch.int8)
        else:
            codes = parts.numbers if self.format.has_offsets else (parts.numbers + MIDDLE).view(torch.uint8)
        rows = self.shape[0]
        offsets = None if parts.offsets is None else parts.offsets.view(rows, -1)
        return CodedWeight(codes.reshape(self.shape), parts.scales.view(rows, -1), offsets, self.format.bits)
