"""y = x·Wᵀ + b behind one call, with weights packed for the CPU where that pays.

oneDNN's pre-packed weights are 2 to 3 times faster than `torch.nn.functional.linear` at the batch sizes of decoding
(measured on an AMD Turin core pair, lm_head 576 x 49152, one row: bf16 2412 -> 715 µs, fp32 6716 -> 2293 µs); oneDNN
rounds nothing that stock torch would not. `PlainLinear` is the twin that the tests
compare `PackedLinear` with, and the one used wherever the packed operator does not exist.
"""

from typing import Protocol

import torch
from torch.nn.functional import linear

from reference_engine.kernels.gemm import TiledLinear, can_tile


class Linear(Protocol):
    """A matrix with an optional bias."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows [num_rows, in_features] -> [num_rows, out_features]."""
        ...


class PlainLinear:
    """Stock torch; weight [out_features, in_features]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return linear(rows, self._weight, self._bias)


class PackedLinear:
    """oneDNN with the weight in its own blocked layout; keeps no copy of the weight it is made from."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)  # noqa: SLF001 (no public name)
        self._bias = bias
        self._multiply = torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001 (no public name)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return self._multiply(rows, self._packed, self._bias, "none", [], "")


def can_pack(weight: torch.Tensor) -> bool:
    """Whether `PackedLinear` works for this weight here: bf16 or fp32 on a CPU with oneDNN's operators."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001 (no public name)
    return weight.dtype == torch.float32


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The fastest exact multiplication for this weight [out_features, in_features] on this machine."""
    if can_tile(weight):
        return TiledLinear(weight, bias)
    return PackedLinear(weight, bias) if can_pack(weight) else PlainLinear(weight, bias)
