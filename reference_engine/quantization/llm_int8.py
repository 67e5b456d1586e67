"""LLM.int8() (Dettmers et al., arXiv 2208.07339): INT8 products, except for the few inputs with large activations.

An input is an outlier if a token of the batch reaches `THRESHOLD` in it. Outliers are multiplied in the dtype of the
activations by their dequantised columns, the others as in :mod:`bakeoff.reference_engine.quantization.w8a8`. Which
inputs are outliers depends on the whole batch, and so do a token's last bits.
"""

import dataclasses

import torch
from torch.nn.functional import linear

from bakeoff.reference_engine.quantization.matrix import Linear
from bakeoff.reference_engine.quantization.w8a8 import W8A8Linear, W8A8Matrix

THRESHOLD = 6.0


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LlmInt8Matrix(W8A8Matrix):
    """A `QuantisedMatrix` of INT8 codes that are multiplied by INT8 codes and outliers."""

    @property
    def may_capture(self) -> bool:
        """Shapes depend on how many outliers there are."""
        return False

    def call_bytes(self, rows: int, device: torch.device, dtype: torch.dtype) -> int:
        copied = rows * self.shape[1] * dtype.itemsize  # without outliers
        return copied + super(LlmInt8Matrix, self).call_bytes(rows, device, dtype)

    def linear(self, bias: torch.Tensor | None, *, keeps_float32: bool = False) -> Linear:
        return LlmInt8Linear(self, bias, torch.float32 if keeps_float32 else self.dtype)


class LlmInt8Linear:
    """Product with INT8 codes and outliers.

    Args:
        weight: codes and scales.
        bias: [out_features]; None for none.
        dtype: of the result.
    """

    def __init__(self, weight: LlmInt8Matrix, bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        self._weight, self._dtype = weight, dtype
        self._regular = W8A8Linear(weight, bias, torch.float32)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        outliers = (rows.abs() >= THRESHOLD).any(0).nonzero().flatten()
        if not outliers.numel():
            return self._regular(rows).to(self._dtype)
        sums = self._regular(rows.index_fill(1, outliers, 0))
        columns = (self._weight.codes[:, outliers].float() * self._weight.scales).to(rows.dtype)
        return sums.add_(linear(rows[:, outliers], columns)).to(self._dtype)
