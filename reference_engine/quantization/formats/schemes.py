"""Schemes of checkpoints besides whole numbers in groups: FP8, INT8 for INT8 products, and NF4."""

import dataclasses
import math

import torch

from bakeoff.reference_engine.errors import CheckpointError, ConfigError
from bakeoff.reference_engine.quantization import fp8, nf4
from bakeoff.reference_engine.quantization.block_scales import NestedScales, PlainScales
from bakeoff.reference_engine.quantization.formats.base import random_octets
from bakeoff.reference_engine.quantization.integer_matrix import IntegerMatrix
from bakeoff.reference_engine.quantization.look_up import LookUpMatrix
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix
from bakeoff.reference_engine.quantization.w8a8 import W8A8Matrix

_SMALL_E4M3 = 0b1011_1111
"""Clears the highest bit of the exponent: the result is below 2 and finite."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fp8Scheme:
    """A `Scheme` of E4M3 numbers.

    Attributes:
        per_tensor: whether all outputs share a scale; else each has its own.
    """

    per_tensor: bool = False

    def random(self, module: str, shape: tuple[int, int], std: float, seed: int) -> fp8.Fp8Matrix:  # noqa: ARG002
        """Uniform bits."""
        every = torch.arange(256, dtype=torch.uint8) & _SMALL_E4M3
        codes = (random_octets(*shape, seed) & _SMALL_E4M3).view(fp8.E4M3)
        return fp8.Fp8Matrix(codes, _equal_scales(shape[0], std, every.view(fp8.E4M3)))

    def suits(self, columns: int) -> bool:  # noqa: ARG002 (any)
        return True

    def nearest(self, weight: torch.Tensor) -> fp8.Fp8Matrix:
        return fp8.quantised(weight, per_tensor=self.per_tensor)

    def own(self, module: str, matrix: QuantisedMatrix) -> fp8.Fp8Matrix:
        """The matrix, if it has this layout.

        Raises:
            ConfigError: it is not.
        """
        if not isinstance(matrix, fp8.Fp8Matrix):
            raise ConfigError(f"{module} is not in FP8 (E4M3); quantise it as the format wants it")
        if self.per_tensor and bool((matrix.scales != matrix.scales[0]).any()):
            raise ConfigError(f"{module} has several scales, and the format keeps one for a tensor; quantise it so")
        return matrix


@dataclasses.dataclass(frozen=True, slots=True)
class Int8Scheme:
    """A `Scheme` of 8-bit whole numbers with a scale for each output, multiplied by activations of 8 bits.

    Attributes:
        matrix: class of the matrix: `W8A8Matrix` or a subclass.
    """

    matrix: type[W8A8Matrix] = W8A8Matrix

    def random(self, module: str, shape: tuple[int, int], std: float, seed: int) -> W8A8Matrix:  # noqa: ARG002
        """Uniform codes."""
        every = torch.arange(256, dtype=torch.uint8).view(torch.int8)
        return self.matrix(random_octets(*shape, seed).view(torch.int8), _equal_scales(shape[0], std, every))

    def suits(self, columns: int) -> bool:  # noqa: ARG002 (any)
        return True

    def nearest(self, weight: torch.Tensor) -> W8A8Matrix:
        return self.matrix.of(weight)

    def own(self, module: str, matrix: QuantisedMatrix) -> W8A8Matrix:
        """The matrix, if it has such codes; it may be an `IntegerMatrix`.

        Raises:
            ConfigError: it has other codes.
        """
        if isinstance(matrix, W8A8Matrix):
            return matrix
        if (
            isinstance(matrix, IntegerMatrix)
            and (matrix.bits, matrix.group) == (8, matrix.shape[1])
            and matrix.offsets is None
            and matrix.order is None
        ):
            return self.matrix(matrix.codes, matrix.scales.float(), matrix.dtype)
        raise ConfigError(
            f"{module} is not of 8 bits with a scale for each output and no zero point; quantise it as the format wants"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Nf4Scheme:
    """A `Scheme` of NF4.

    Attributes:
        nested: whether scales are quantised, too.
    """

    nested: bool = False

    def random(self, module: str, shape: tuple[int, int], std: float, seed: int) -> LookUpMatrix:
        """Uniform codes."""
        rows, columns = shape
        if not self.suits(columns):
            raise CheckpointError(
                f"{module}: its blocks of {nf4.BLOCK} would span rows of {columns} inputs, and then it is plain; list "
                "it in llm_int8_skip_modules"
            )
        table = torch.tensor(nf4.VALUES)
        absmax = _equal_scales(rows, std, table).expand(rows, columns // nf4.BLOCK).contiguous()
        scales = nf4.nested_scales(absmax) if self.nested else PlainScales(absmax)
        return LookUpMatrix(random_octets(rows, columns // 2, seed), table, scales)

    def suits(self, columns: int) -> bool:
        return columns % nf4.BLOCK == 0

    def nearest(self, weight: torch.Tensor) -> LookUpMatrix:
        matrix = nf4.quantised(weight, nested=self.nested)
        assert matrix is not None  # its columns suit
        return matrix

    def own(self, module: str, matrix: QuantisedMatrix) -> LookUpMatrix:
        """The matrix, if it has this layout.

        Raises:
            ConfigError: it is not.
        """
        if not isinstance(matrix, LookUpMatrix) or matrix.table.tolist() != list(_VALUES) or matrix.block != nf4.BLOCK:
            raise ConfigError(f"{module} is not in NF4 with blocks of {nf4.BLOCK}; quantise it as the format wants it")
        if isinstance(matrix.scales, NestedScales) != self.nested:
            kind = "codes of scales" if self.nested else "plain scales"
            raise ConfigError(f"{module}: the format keeps {kind}, and its scales are others; quantise it as it wants")
        return matrix


_VALUES = tuple(torch.tensor(nf4.VALUES).tolist())


def _equal_scales(rows: int, std: float, codes: torch.Tensor) -> torch.Tensor:
    """Scales, float32 [rows, 1], that give equally likely codes the standard deviation `std`."""
    return torch.full((rows, 1), std / math.sqrt(float(codes.float().square().mean())))
