"""What a format of quantised checkpoints does, and what it says about a module."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch

from reference_engine.errors import CheckpointError, ConfigError
from reference_engine.quantization.formats.codes import check_group
from reference_engine.quantization.integer_matrix import MIDDLE, IntegerMatrix
from reference_engine.quantization.matrix import QuantisedMatrix
from reference_engine.quantization.rounding import Bits

IN_LAYERS = ".layers."
"""In the names of modules that GPTQ's and AWQ's tools quantise."""


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


class CheckpointFormat(Protocol):
    """A `quantization_config`: reads and writes the tensors of modules."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Last names of a quantised module's tensors; the first one is there if and only if it is quantised."""
        ...

    def scheme(self, module: str) -> Scheme | None:
        """How a linear layer or embedding is quantised; None if it stays plain."""
        ...

    def decode(self, module: str, parts: Mapping[str, torch.Tensor]) -> QuantisedMatrix:
        """The weight of a module.

        Args:
            module: its name, without ``.weight``.
            parts: its tensors by their last names; they may be views of a file, the matrix is not.

        Raises:
            CheckpointError: a part is missing, or parts do not fit together; the message begins with the module.
        """
        ...

    def encode(self, module: str, matrix: IntegerMatrix) -> dict[str, torch.Tensor]:
        """The tensors of a module by their last names; the inverse of `decode`.

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
        """See `Scheme`; uniform codes."""
        rows, columns = shape
        size = self.group_size or columns
        check_group(module, columns, size, self.bits)
        groups = columns // size
        generator, width = np.random.default_rng(seed), columns * self.bits // 8
        # Eight codes or more at a time: 17 times as fast as torch's generator.
        words = generator.integers(1 << 64, size=-(-rows * width // 8), dtype=np.uint64)
        octets = torch.from_numpy(words.view(np.uint8))[: rows * width].view(rows, width)
        scales = torch.full((rows, groups), std * math.sqrt(12) / (1 << self.bits), dtype=torch.float16)
        offsets = None if self.symmetric else scales.float() * (-MIDDLE if self.bits == 4 else 0)
        order = torch.from_numpy(generator.permutation(columns)) if self.act_order else None
        codes = octets if self.bits == 4 else octets.view(torch.int8)
        return IntegerMatrix(codes, scales, offsets, self.bits, order)

    def check(self, module: str, matrix: IntegerMatrix) -> None:
        """Raises ConfigError for a matrix of another layout."""
        size = self.group_size or matrix.shape[1]
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


def part_of(parts: Mapping[str, torch.Tensor], module: str, name: str) -> torch.Tensor:
    """A tensor of a module.

    Raises:
        CheckpointError: it is missing.
    """
    if name not in parts:
        raise CheckpointError(f"{module}: its tensor {name} is missing; fetch the checkpoint again")
    return parts[name]


def own_scheme(scheme: IntegerScheme | None, module: str, matrix: IntegerMatrix) -> IntegerScheme:
    """The scheme of a module that is to be encoded.

    Raises:
        ConfigError: the module stays plain, or the matrix is of another layout.
    """
    if scheme is None:
        raise ConfigError(f"{module} stays plain in this format; write its plain weight")
    scheme.check(module, matrix)
    return scheme
