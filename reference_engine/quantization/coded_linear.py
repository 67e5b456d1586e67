"""Products on a GPU with weights of 4- or 8-bit codes: by the codes for few rows, in other ways for more."""

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from reference_engine.kernels.native import has_triton
from reference_engine.quantization.matrix import Linear

if TYPE_CHECKING:
    from collections.abc import Callable


def has_coded_products(device: torch.device, outputs: int, inputs: int, group: int) -> bool:
    """Whether the kernels run there and suit a weight [outputs, inputs] with a scale for each `group` of a row."""
    if not has_triton(device):
        return False
    from reference_engine.kernels.coded_products import suits_coded_products  # noqa: PLC0415 (needs Triton)

    return suits_coded_products(outputs, inputs, group)


class CodedLinear:
    """Few rows with Triton kernels, which read the codes once; more rows with another linear.

    Args:
        codes: as `coded_products.multiply` takes them; `has_coded_products` said yes to their shape and device.
        scales: [out_features, groups].
        offsets: float32 [out_features, groups]; None for none.
        bits: of a code.
        bias: [out_features]; None for none.
        dtype: of the result.
        order: see `IntegerMatrix`.
        many_rows: multiplies by the same weight, its columns in the order of the codes; None: the weight becomes plain
            each time.
    """

    def __init__(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        offsets: torch.Tensor | None,
        *,
        bits: int,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        order: torch.Tensor | None = None,
        many_rows: Linear | None = None,
    ) -> None:
        from reference_engine.kernels import coded_products  # noqa: PLC0415 (needs Triton)

        # Neighbours in a tile of outputs read neighbours.
        self._weight = codes.contiguous(), _transposed(scales), None if offsets is None else _transposed(offsets), bits
        self._bias, self._dtype, self._order = bias, dtype, order
        self._multiply, self._plain, self._max_rows = (
            coded_products.multiply, coded_products.plain, coded_products.MAX_ROWS,
        )  # fmt: skip
        self._many_rows: Callable[[torch.Tensor], torch.Tensor] = many_rows or self._by_plain_numbers

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        if self._order is not None:
            rows = rows.index_select(1, self._order)
        if 0 < rows.shape[0] <= self._max_rows:
            return self._multiply(rows, *self._weight, self._bias, self._dtype)
        return self._many_rows(rows)

    def _by_plain_numbers(self, rows: torch.Tensor) -> torch.Tensor:
        return linear(rows, self._plain(*self._weight, rows.dtype), self._bias).to(self._dtype)


def _transposed(part: torch.Tensor) -> torch.Tensor:
    return part.t().contiguous()
