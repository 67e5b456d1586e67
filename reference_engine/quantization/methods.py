"""Methods that need nothing but the weight, by name; they also quantise plain checkpoints at load."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

import torch

from reference_engine.quantization.matrix import QuantisedMatrix
from reference_engine.quantization.rounding import absmax, zero_point

MethodName = Literal["int8", "int8-zp", "int4", "int4-zp"]

_GROUPS = (128, 64, 32)


@dataclasses.dataclass(frozen=True, slots=True)
class Method:
    """How a weight [out_features, in_features] is quantised.

    Attributes:
        make: takes the weight in the dtype of the activations; None where its shape does not suit, so it stays plain.
        summary: for `--help`.
    """

    make: Callable[[torch.Tensor], QuantisedMatrix | None]
    summary: str


def _of_rows(quantise: Callable[[torch.Tensor, Literal[4, 8], int], QuantisedMatrix]) -> Method:
    zero = "" if quantise is absmax else ", with a zero point"
    return Method(lambda weight: quantise(weight, 8, weight.shape[1]), f"8 bits, a scale for each output{zero}")


def _of_groups(quantise: Callable[[torch.Tensor, Literal[4, 8], int], QuantisedMatrix]) -> Method:
    def make(weight: torch.Tensor) -> QuantisedMatrix | None:
        group = group_of(weight.shape[1])
        return None if group is None else quantise(weight, 4, group)

    zero = "" if quantise is absmax else ", with a zero point"
    return Method(make, f"4 bits, a scale for each group of inputs{zero}")


def group_of(columns: int) -> int | None:
    """Columns that share a scale, where none are prescribed: 128, or less where that does not divide them."""
    return next((group for group in _GROUPS if columns % group == 0), None)


METHODS: Mapping[str, Method] = {
    "int8": _of_rows(absmax),
    "int8-zp": _of_rows(zero_point),
    "int4": _of_groups(absmax),
    "int4-zp": _of_groups(zero_point),
}
"""By `MethodName`."""
