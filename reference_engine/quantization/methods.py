"""Methods that need only the weight, by name; they can also quantise plain checkpoints at load."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Literal

import torch

from bakeoff.reference_engine.quantization import fp8, mxfp4, nf4
from bakeoff.reference_engine.quantization.llm_int8 import LlmInt8Matrix
from bakeoff.reference_engine.quantization.matrix import QuantisedMatrix
from bakeoff.reference_engine.quantization.rounding import absmax, zero_point
from bakeoff.reference_engine.quantization.w8a8 import W8A8Matrix

_GROUPS = (128, 64, 32)


@dataclasses.dataclass(frozen=True, slots=True)
class Method:
    """How a weight [out_features, in_features] is quantised.

    Attributes:
        make: takes the weight in the dtype of the activations; returns None if its shape does not suit: it stays plain.
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
    """Default number of columns that share a scale: 128, or a smaller divisor of the columns."""
    return next((group for group in _GROUPS if columns % group == 0), None)


METHODS: Mapping[str, Method] = {
    "int8": _of_rows(absmax),
    "int8-zp": _of_rows(zero_point),
    "int4": _of_groups(absmax),
    "int4-zp": _of_groups(zero_point),
    "fp8": Method(fp8.quantised, "FP8 (E4M3), a scale for each output; activations too where the GPU multiplies FP8"),
    "w8a8": Method(W8A8Matrix.of, "8 bits, a scale for each output; activations too, a scale for each token"),
    "llm-int8": Method(LlmInt8Matrix.of, "as w8a8, but inputs with activations from 6 up are not rounded"),
    "nf4": Method(nf4.quantised, "4 bits, 16 quantiles of a normal distribution, a scale for each 64 inputs"),
    "nf4-double": Method(functools.partial(nf4.quantised, nested=True), "nf4 with its scales in 8 bits"),
    "mxfp4": Method(mxfp4.quantised, "FP4 (E2M1), a power of two as scale for each 32 inputs"),
}
"""By `MethodName`."""
