"""The numbers that all integer formats store, before each of them packs them in its own way."""

import dataclasses
from typing import Self

import torch

from bakeoff.reference_engine.errors import CheckpointError, ConfigError
from bakeoff.reference_engine.quantization.integer_matrix import UNIT, IntegerMatrix, unpack
from bakeoff.reference_engine.quantization.rounding import Bits, from_codes

_LARGEST_REMAINDER = 1e-3  # of a step: float32 divided by float32


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """A weight [rows, columns]: w[o, i] = scale[o, g] · (code[o, i] - zero[o, g]), where g = group_index[i].

    Attributes:
        codes: uint8 [rows, columns], 0 to 2^bits - 1.
        scales: [rows, groups], in any floating-point dtype.
        zeros: uint8 [rows, groups]; None for the middle code.
        bits: of a code.
        group_index: integers [columns]; None for groups of neighbours.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bits: Bits
    group_index: torch.Tensor | None = None

    @property
    def middle(self) -> int:
        """The code of zero of groups without a zero point."""
        return middle(self.bits)

    @classmethod
    def of(cls, matrix: IntegerMatrix, module: str) -> Self:
        """The codes of a matrix; scattered groups have an index.

        Raises:
            ConfigError: zero is not a code in some group; the message names the module.
        """
        codes = unpack(matrix.codes) if matrix.bits == 4 else matrix.codes.view(torch.uint8) + middle(8)
        index = None
        if matrix.order is not None:
            codes = torch.empty_like(codes).index_copy_(1, matrix.order, codes)
            index = torch.empty_like(matrix.order)
            index[matrix.order] = torch.arange(matrix.shape[1], device=index.device) // matrix.group
        return cls(codes, matrix.scales, _zeros(matrix, module), matrix.bits, index)

    def matrix(self, module: str) -> IntegerMatrix:
        """The codes in the engine's layout, which shares no memory with a file.

        Raises:
            CheckpointError: the parts do not fit together, or groups are of several sizes.
        """
        rows, columns = self.codes.shape
        shapes = [tuple(part.shape) for part in (self.scales, self.zeros) if part is not None]
        if any(shape != (rows, self.scales.shape[-1]) for shape in shapes):
            raise CheckpointError(
                f"{module}: scales and zero points of shapes {shapes} do not fit to codes of {(rows, columns)}; fetch "
                "the checkpoint again"
            )
        groups = self.scales.shape[1]
        check_group(module, columns, -(-columns // groups), self.bits)
        order = None if self.group_index is None else _order(self.group_index, columns, groups, module)
        codes = self.codes if order is None else self.codes[:, order]
        scales = self.scales.clone(memory_format=torch.contiguous_format)
        return from_codes(codes, scales, self.zeros, self.bits, order)


def middle(bits: Bits) -> int:
    """The code of zero in symmetric matrices."""
    return 1 << (bits - 1)


def check_group(module: str, columns: int, group: int, bits: Bits) -> None:
    """Raises CheckpointError for group sizes that `IntegerMatrix` cannot store."""
    if group < 1 or columns % group or (bits == 4 and group % UNIT):
        raise CheckpointError(
            f"{module}: groups of {group} of its {columns} inputs are not supported at {bits} bits, only of a size "
            f"that divides them, at 4 bits a multiple of {UNIT}"
        )


def _order(group_index: torch.Tensor, columns: int, groups: int, module: str) -> torch.Tensor | None:
    """Columns sorted by their groups; None if they are in order already."""
    index = group_index.long()
    size = columns // groups
    if index.shape != (columns,) or not torch.equal(index.sort().values, torch.arange(columns) // size):
        raise CheckpointError(
            f"{module}: its g_idx does not give each of {groups} groups {size} of {columns} inputs; fetch the "
            "checkpoint again, or quantise it with groups of one size"
        )
    order = index.argsort(stable=True)
    return None if torch.equal(order, torch.arange(columns)) else order


def _zeros(matrix: IntegerMatrix, module: str) -> torch.Tensor | None:
    if matrix.offsets is None:
        return None
    exact = (middle(8) if matrix.bits == 8 else 0) - matrix.offsets / matrix.scales.float()
    zeros = exact.round()
    is_code = (zeros >= 0) & (zeros < 1 << matrix.bits) & ((exact - zeros).abs() <= _LARGEST_REMAINDER)
    if not is_code.all():
        raise ConfigError(
            f"{module}: zero is not one of its codes, and a checkpoint keeps it as one; quantise with whole zero points"
        )
    return zeros.to(torch.uint8)
