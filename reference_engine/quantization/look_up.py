"""Weights as 4-bit indices into a table, with a scale for each block: w[o, i] = scale[o, b] · table[code[o, i]].

On a CPU in bfloat16 the entries become whole numbers of 8 bits, which have compiled products; float32 stays exact, but
dequantises in each product.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Self

import torch
from torch.nn.functional import pad

from bakeoff.reference_engine.kernels import integers
from bakeoff.reference_engine.quantization.block_scales import BlockScales
from bakeoff.reference_engine.quantization.coded_linear import (
    CodedLinear,
    CodedWeight,
    coded_call_bytes,
    coded_nbytes,
    has_coded_products,
)
from bakeoff.reference_engine.quantization.integer_matrix import UNIT, IntegerMatrix, pack, unpack
from bakeoff.reference_engine.quantization.matrix import Linear, SlabLinear, slab_call_bytes

_LARGEST_CODE = 127


def midpoints(values: torch.Tensor) -> torch.Tensor:
    """The midpoints of ascending values [n]: [n - 1]. `torch.bucketize` with them finds the nearest value."""
    return (values[:-1] + values[1:]) / 2


def in_blocks(flat: torch.Tensor, size: int, filler: int = 0) -> torch.Tensor:
    """Elements [n] as [blocks, size]; `filler` pads the last block."""
    return pad(flat, (0, -len(flat) % size), value=filler).view(-1, size)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LookUpMatrix:
    """A `QuantisedMatrix` of table entries.

    Attributes:
        codes: uint8 [rows, columns / 2], see `pack`.
        table: float32 [16].
        scales: of its blocks, whose columns are a multiple of `UNIT`.
        dtype: see `QuantisedMatrix`.
    """

    codes: torch.Tensor
    table: torch.Tensor
    scales: BlockScales
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        width = self.shape[1]
        if width % self.scales.blocks or self.block % UNIT:
            raise ValueError(f"{self.scales.blocks} blocks do not divide {width} columns into multiples of {UNIT}")

    @classmethod
    def of(cls, codes: torch.Tensor, table: torch.Tensor, scales: BlockScales, dtype: torch.dtype) -> Self:
        """A matrix of codes 0 to 15, uint8 [rows, columns]; see the attributes for the other arguments."""
        return cls(pack(codes), table, scales, dtype)

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1] * 2

    @property
    def block(self) -> int:
        """Columns that share a scale."""
        return self.shape[1] // self.scales.blocks

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.table.nbytes + self.scales.nbytes

    def held_bytes(self, device: torch.device, dtype: torch.dtype) -> int:
        """The kernels take scales in float32."""
        if self._has_integers(device, dtype):
            return integers.held_bytes(self.shape, self.block, 8, 1)
        if not self.has_kernel(device, dtype):
            return self.nbytes
        return self.table.nbytes + coded_nbytes(self.shape, 4, self.block, has_offsets=False)

    def call_bytes(self, rows: int, device: torch.device, dtype: torch.dtype) -> int:
        if self._has_integers(device, dtype):
            return rows * self.shape[0] * dtype.itemsize
        of_call = coded_call_bytes if self.has_kernel(device, dtype) else slab_call_bytes
        return of_call(self.shape, rows, dtype)

    @property
    def layout(self) -> Hashable:
        return self.block, tuple(self.table.tolist()), type(self.scales), self.scales.layout

    @property
    def column_unit(self) -> int:
        return self.block

    @property
    def may_capture(self) -> bool:
        return True

    def has_kernel(self, device: torch.device, dtype: torch.dtype) -> bool:
        return has_coded_products(device, self.shape[0], self.block) or self._has_integers(device, dtype)

    def _has_integers(self, device: torch.device, dtype: torch.dtype) -> bool:
        return dtype == torch.bfloat16 and integers.has_kernel(device, dtype, self.block, self.shape[1])

    def as_integers(self) -> IntegerMatrix:
        """The matrix with its table rounded to 8 bits: exact for MXFP4, within 0.4 % of a block's largest for NF4."""
        step = _step(self.table)
        codes = self._entries((self.table / step).round().to(torch.int8))
        return IntegerMatrix(codes, self.scales.values() * step, dtype=self.dtype)

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        codes, table, scales = self.codes.to(device), self.table.to(device), self.scales.to(device)
        return dataclasses.replace(self, codes=codes, table=table, scales=scales, dtype=dtype)

    def rows(self, index: torch.Tensor | slice) -> Self:
        return dataclasses.replace(self, codes=self.codes[index], scales=self.scales.rows(index))

    def columns(self, first: int, stop: int) -> Self:
        return dataclasses.replace(
            self,
            codes=self.codes[:, first // 2 : stop // 2].contiguous(),
            scales=self.scales.columns(first // self.block, stop // self.block),
        )

    def stacked(self, others: Sequence[Self]) -> Self:
        codes = torch.cat([self.codes, *(other.codes for other in others)])
        return dataclasses.replace(self, codes=codes, scales=self.scales.stacked([other.scales for other in others]))

    def dequantised(self) -> torch.Tensor:
        """Computed in float32 and rounded once."""
        scales = self.scales.values()
        blocks = self._entries(self.table).view(*scales.shape, self.block)
        return (blocks * scales[..., None]).flatten(1).to(self.dtype)

    def _entries(self, table: torch.Tensor) -> torch.Tensor:
        """The entry of each code, [rows, columns], in the table's dtype."""
        # On a CPU 8 times as fast as indexing with brackets.
        return table.index_select(0, unpack(self.codes).flatten().int()).view(self.shape)

    def linear(self, bias: torch.Tensor | None, *, keeps_float32: bool = False) -> Linear:
        if not self.has_kernel(self.codes.device, self.dtype):
            return SlabLinear(self, bias)
        if self._has_integers(self.codes.device, self.dtype):
            return self.as_integers().linear(bias, keeps_float32=keeps_float32)
        codes = CodedWeight(unpack(self.codes), self.scales.values(), None, 4, self.table)
        return CodedLinear(codes, bias, torch.float32 if keeps_float32 else self.dtype)


def _step(table: torch.Tensor) -> torch.Tensor:
    """The smallest nonzero magnitude if all are whole multiples of it, up to 127; else 1/127 of the largest."""
    sizes = table.abs()
    largest, least = sizes.max(), sizes[sizes > 0].min()
    multiples = sizes / least
    is_exact = bool((multiples == multiples.round()).all()) and largest / least <= _LARGEST_CODE
    return least if is_exact else largest / _LARGEST_CODE
