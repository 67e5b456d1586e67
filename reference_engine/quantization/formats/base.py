"""Interfaces of formats of quantised checkpoints and of the schemes of their modules."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from bakeoff.reference_engine.errors import CheckpointError, ConfigError
from bakeoff.reference_engine.quantization.formats.codes import check_group
from bakeoff.reference_engine.quantization.integer_matrix import MIDDLE, UNIT, IntegerMatrix
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix
from bakeoff.reference_engine.quantization.rounding import Bits, absmax, zero_point

IN_LAYERS = ".layers."
"""Part of the names of modules that GPTQ's and AWQ's tools quantise."""


class Scheme(Protocol):
    """How the weight of one module is quantised."""

    def random(self, module: str, shape: tuple[int, int], std: float, seed: int) -> QuantisedMatrix:
        """A matrix of this layout with random numbers, for speed measurements.

        Args:
            module: for messages.
            shape: out_features, in_features.
            std: of its weights.
            seed: equal seeds give equal matrices.

        Raises:
            CheckpointError: the shape cannot have this layout.
        """
        ...

    def suits(self, columns: int) -> bool:
        """Whether a matrix of so many inputs can have this layout."""
        ...

    def nearest(self, weight: torch.Tensor) -> QuantisedMatrix:
        """Rounds a weight [rows, columns] of any floating-point dtype to nearest; `suits` must hold for its columns."""
        ...


class CheckpointFormat(Protocol):
    """A `quantization_config`: reads and writes the tensors of modules."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Suffixes of a module's tensors; the first tensor exists if and only if the module is quantised."""
        ...

    def scheme(self, module: str) -> Scheme | None:
        """How a linear layer or embedding is quantised; None if it stays plain."""
        ...

    def decode(self, module: str, parts: Mapping[str, torch.Tensor]) -> QuantisedMatrix | torch.Tensor:
        """The weight of a module, dequantised if no matrix of the engine has its layout.

        Args:
            module: its name, without ``.weight``.
            parts: its tensors by the names in `parts`; they may be views of a file, the result is not.

        Raises:
            CheckpointError: a part is missing, or parts do not fit together; the message begins with the module.
        """
        ...

    def encode(self, module: str, matrix: QuantisedMatrix) -> dict[str, torch.Tensor]:
        """The tensors of a module by the names in `parts`; the inverse of `decode`.

        Raises:
            ConfigError: the matrix is not of the module's scheme.
        """
        ...

    def config(self) -> dict[str, Any]:
        """The `quantization_config` of config.json."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class IntegerScheme:
    """A `Scheme` of whole numbers.

    Attributes:
        bits: of a code.
        group_size: inputs that share a scale; None for all inputs of an output.
        symmetric: whether zero is the middle code.
        act_order: whether groups are scattered inputs (GPTQ, arXiv 2210.17323, with desc_act).
    """

    bits: Bits
    group_size: int | None = 128
    symmetric: bool = True
    act_order: bool = False

    def random(self, module: str, shape: tuple[int, int], std: float, seed: int) -> IntegerMatrix:
        """Uniform codes."""
        rows, columns = shape
        size = self.group_of(columns)
        check_group(module, columns, size, self.bits)
        groups = columns // size
        octets = random_octets(rows, columns * self.bits // 8, seed)
        scales = torch.full((rows, groups), std * math.sqrt(12) / (1 << self.bits), dtype=torch.float16)
        offsets = None if self.symmetric else scales.float() * (-MIDDLE if self.bits == 4 else 0)
        order = torch.from_numpy(np.random.default_rng(seed).permutation(columns)) if self.act_order else None
        codes = octets if self.bits == 4 else octets.view(torch.int8)
        return IntegerMatrix(codes, scales, offsets, self.bits, order)

    def group_of(self, columns: int) -> int:
        """Inputs that share a scale in a matrix of `columns` inputs."""
        return self.group_size or columns

    def suits(self, columns: int) -> bool:
        return columns % (self.group_size or (UNIT if self.bits == 4 else 1)) == 0

    def nearest(self, weight: torch.Tensor) -> IntegerMatrix:
        return (absmax if self.symmetric else zero_point)(weight, self.bits, self.group_of(weight.shape[1]))

    def own(self, module: str, matrix: QuantisedMatrix) -> IntegerMatrix:
        """The matrix, if it has this layout.

        Raises:
            ConfigError: it is not.
        """
        if not isinstance(matrix, IntegerMatrix):
            raise ConfigError(f"{module} is not of whole numbers in groups; quantise it as the format wants it")
        size = self.group_of(matrix.shape[1])
        differences = {
            f"{matrix.bits} bits instead of {self.bits}": matrix.bits != self.bits,
            f"groups of {matrix.group} inputs instead of {size}": matrix.group != size,
            "zero points, and the format is symmetric": self.symmetric and matrix.offsets is not None,
            "no zero points, and the format needs them": not self.symmetric and matrix.offsets is None,
            "scattered groups, and the format has none (act_order)": not self.act_order and matrix.order is not None,
        }
        for difference, is_there in differences.items():
            if is_there:
                raise ConfigError(f"{module} has {difference}; quantise it as the format wants it")
        return matrix


def random_octets(rows: int, width: int, seed: int) -> torch.Tensor:
    """Uniform bytes, uint8 [rows, width]; equal seeds give equal bytes."""
    # Eight at a time: 17 times as fast as torch's generator.
    words = np.random.default_rng(seed).integers(1 << 64, size=-(-rows * width // 8), dtype=np.uint64)
    return torch.from_numpy(words.view(np.uint8))[: rows * width].view(rows, width)


def stored_modules(names: Iterable[str], parts: Sequence[str]) -> dict[str, dict[str, str]]:
    """The quantised modules among the tensors of a checkpoint: the tensors of each by the names in `parts`.

    Args:
        names: of all tensors.
        parts: see `CheckpointFormat`.
    """
    present, mark = set(names), f".{parts[0]}"
    modules = (name.removesuffix(mark) for name in present if name.endswith(mark))
    return {
        module: {part: name for part in parts if (name := f"{module}.{part}") in present} for module in sorted(modules)
    }


def part_of(parts: Mapping[str, torch.Tensor], module: str, name: str) -> torch.Tensor:
    """A tensor of a module.

    Raises:
        CheckpointError: it is missing.
    """
    if name not in parts:
        raise CheckpointError(f"{module}: its tensor {name} is missing; fetch the checkpoint again")
    return parts[name]


_Scheme = TypeVar("_Scheme", bound=Scheme)


def own_scheme(scheme: _Scheme | None, module: str) -> _Scheme:
    """The scheme of a module to encode.

    Raises:
        ConfigError: the module stays plain.
    """
    if scheme is None:
        raise ConfigError(f"{module} stays plain in this format; write its plain weight")
    return scheme
