"""Scales of blocks, which are neighbours in a row."""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Protocol, Self

import torch


class BlockScales(Protocol):
    """Scales [rows, blocks] of a matrix; shards of the matrix need the same shards of them."""

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the scales."""
        ...

    @property
    def layout(self) -> Hashable:
        """Equal for scales that `stacked` can join."""
        ...

    def to(self, device: torch.device) -> Self:
        """The same scales on a device."""
        ...

    def rows(self, index: torch.Tensor | slice) -> Self:
        """The scales of some rows."""
        ...

    def columns(self, first: int, stop: int) -> Self:
        """The scales of the blocks from `first` to before `stop` of each row."""
        ...

    def stacked(self, others: Sequence[Self]) -> Self:
        """The scales of these rows, followed by those of others with the same layout."""
        ...

    def values(self) -> torch.Tensor:
        """The scales as float32 [rows, blocks]."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PlainScales:
    """`BlockScales` as numbers.

    Attributes:
        numbers: [rows, blocks], of any floating-point dtype; float8_e8m0fnu has powers of two only.
    """

    numbers: torch.Tensor

    @property
    def blocks(self) -> int:
        return self.numbers.shape[1]

    @property
    def nbytes(self) -> int:
        return self.numbers.nbytes

    @property
    def layout(self) -> Hashable:
        return self.numbers.dtype

    def to(self, device: torch.device) -> Self:
        return dataclasses.replace(self, numbers=self.numbers.to(device))

    def rows(self, index: torch.Tensor | slice) -> Self:
        return dataclasses.replace(self, numbers=self.numbers[index])

    def columns(self, first: int, stop: int) -> Self:
        return dataclasses.replace(self, numbers=self.numbers[:, first:stop].contiguous())

    def stacked(self, others: Sequence[Self]) -> Self:
        return dataclasses.replace(self, numbers=torch.cat([self.numbers, *(other.numbers for other in others)]))

    def values(self) -> torch.Tensor:
        return self.numbers.float()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class NestedScales:
    """`BlockScales` that are quantised themselves (QLoRA's double quantisation, arXiv 2305.14314, section 3).

    scale[i] = table[code[i]] · absmax[i // group] + offset[i // group], where i counts the blocks of the whole matrix
    row by row: groups span rows.

    Attributes:
        codes: uint8 [rows, blocks].
        places: int32 [rows]: i of each row's first block.
        table: float32 [256].
        absmax: float32 [groups].
        offsets: float32 [groups].
        group: blocks that share a scale of their scales.
    """

    codes: torch.Tensor
    places: torch.Tensor
    table: torch.Tensor
    absmax: torch.Tensor
    offsets: torch.Tensor
    group: int

    @classmethod
    def of(
        cls, codes: torch.Tensor, table: torch.Tensor, absmax: torch.Tensor, offset: torch.Tensor, group: int
    ) -> Self:
        """Scales of a whole matrix with one offset, float32 []; see the attributes for the other arguments."""
        rows, blocks = codes.shape
        places = torch.arange(0, rows * blocks, blocks, dtype=torch.int32, device=codes.device)
        return cls(codes, places, table, absmax, offset.expand_as(absmax).contiguous(), group)

    @property
    def blocks(self) -> int:
        return self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.codes, self.places, self.table, self.absmax, self.offsets))

    @property
    def layout(self) -> Hashable:
        return self.group, tuple(self.table.tolist())

    def to(self, device: torch.device) -> Self:
        names = ("codes", "places", "table", "absmax", "offsets")
        return dataclasses.replace(self, **{name: getattr(self, name).to(device) for name in names})

    def rows(self, index: torch.Tensor | slice) -> Self:
        return dataclasses.replace(self, codes=self.codes[index], places=self.places[index])

    def columns(self, first: int, stop: int) -> Self:
        return dataclasses.replace(self, codes=self.codes[:, first:stop].contiguous(), places=self.places + first)

    def stacked(self, others: Sequence[Self]) -> Self:
        parts, places, groups = (self, *others), list[torch.Tensor](), 0
        for part in parts:
            places.append(part.places + groups * self.group)
            groups += part.absmax.shape[0]
        return dataclasses.replace(
            self,
            codes=torch.cat([part.codes for part in parts]),
            places=torch.cat(places),
            absmax=torch.cat([part.absmax for part in parts]),
            offsets=torch.cat([part.offsets for part in parts]),
        )

    def values(self) -> torch.Tensor:
        blocks = torch.arange(self.blocks, dtype=torch.int32, device=self.codes.device)
        groups = (self.places[:, None] + blocks) // self.group
        return self.table[self.codes.int()] * self.absmax[groups] + self.offsets[groups]
