"""Products on a GPU with weights of 4- or 8-bit whole numbers: by the codes for few rows, by plain numbers for more."""

import torch
from torch.nn.functional import linear

from reference_engine.kernels.native import has_triton

_DIVISION_ERROR = 1e-3
"""By which zero points may miss whole numbers."""


def has_coded_products(device: torch.device, outputs: int, group: int) -> bool:
    """Whether the kernels run there and suit a weight of so many outputs with a scale for each `group` of a row."""
    if not has_triton(device):
        return False
    from reference_engine.kernels.coded_products import suits_coded_products  # noqa: PLC0415 (needs Triton)

    return suits_coded_products(outputs, group)


class CodedLinear:
    """Few rows with Triton kernels, which read the codes once; for more the weight becomes plain each time.

    Args:
        codes: one in each byte, [out_features, in_features]; `has_coded_products` said yes to them.
        scales: [out_features, groups].
        offsets: float32 [out_features, groups]; None for none.
        bits: of a code.
        bias: [out_features]; None for none.
        dtype: of the result.
        order: see `IntegerMatrix`.
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
        order: torch.Tensor | None,
    ) -> None:
        from reference_engine.kernels import coded_products  # noqa: PLC0415 (needs Triton)

        zeros = None if offsets is None else (-offsets / scales.float()).nan_to_num_()  # a scale of 0 has no offset
        # The kernel takes zeros off codes, as whole numbers: an offset would be rounded as scaled numbers are.
        has_whole_zeros = zeros is None or bool(((zeros - zeros.round()).abs() < _DIVISION_ERROR).all())
        self._kernels, self._max_rows = coded_products, coded_products.MAX_ROWS if has_whole_zeros else 0
        self._weight = coded_products.Words.of(codes, scales, zeros, bits)
        self._bias, self._dtype, self._order = bias, dtype, order

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        if self._order is not None:
            rows = rows.index_select(1, self._order)
        if 0 < rows.shape[0] <= self._max_rows:
            return self._kernels.multiply(rows, self._weight, self._bias, self._dtype)
        return linear(rows, self._kernels.plain(self._weight, rows.dtype), self._bias).to(self._dtype)
