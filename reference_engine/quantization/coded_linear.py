"""Products with weights of 4- or 8-bit codes on a GPU, for all methods that choose codes."""

import dataclasses

import torch
from torch.nn.functional import linear

from bakeoff.reference_engine.kernels.native import has_triton

_DIVISION_ERROR = 1e-3
"""Largest deviation of quotients from whole numbers."""


def has_coded_products(device: torch.device, outputs: int, group: int) -> bool:
    """Whether the kernels run on a device and suit a weight of `outputs` rows with a scale for every `group` inputs."""
    if not has_triton(device):
        return False
    from bakeoff.reference_engine.kernels.coded_products import suits_coded_products  # noqa: PLC0415 (needs Triton)

    return suits_coded_products(outputs, group)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CodedWeight:
    """A weight [out_features, in_features]: scale · number + offset for each group of neighbours in a row.

    Attributes:
        codes: one in each byte, [out_features, in_features]; 8 bits: int8, 4 bits: uint8 0 to 15.
        scales: [out_features, groups], in any floating-point dtype.
        offsets: float32 [out_features, groups]; None if zero is code 0 (8 bits) or 8 (4 bits), and with a table.
        bits: 4 or 8.
        table: float32 [16], the number of each code; None if codes are the numbers.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    bits: int
    table: torch.Tensor | None = None


def coded_nbytes(shape: tuple[int, int], bits: int, group: int, *, has_offsets: bool) -> int:
    """Bytes that `CodedLinear` keeps for a weight of a shape; see `has_coded_products` for when it is used."""
    from bakeoff.reference_engine.kernels.code_words import nbytes_of  # noqa: PLC0415 (needs Triton)

    return nbytes_of(shape, bits, group, has_zeros=has_offsets)


def coded_call_bytes(shape: tuple[int, int], rows: int, dtype: torch.dtype) -> int:
    """`QuantisedMatrix.call_bytes` of `CodedLinear`: the result, and the plain weight."""
    return (rows + shape[1]) * shape[0] * dtype.itemsize


class CodedLinear:
    """Triton kernels that read the codes; for many rows the weight is dequantised each time.

    Args:
        weight: `has_coded_products` holds for it.
        bias: [out_features]; None for none.
        dtype: of the result.
        order: int64 [in_features]: column j of the codes is input order[j]; None for the same order.

    Attributes:
        weight: in the kernels' layout.
        bias: the same.
        order: the same.
    """

    def __init__(
        self, weight: CodedWeight, bias: torch.Tensor | None, dtype: torch.dtype, order: torch.Tensor | None = None
    ) -> None:
        from bakeoff.reference_engine.kernels import coded_products  # noqa: PLC0415 (needs Triton)
        from bakeoff.reference_engine.kernels.code_words import Words  # noqa: PLC0415 (needs Triton)

        codes, scales, zeros = _with_zeros(weight)
        self.weight: Words = Words.of(codes, scales, zeros, weight.bits, weight.table)
        self.bias, self.order = bias, order
        self._kernels, self._dtype = coded_products, dtype

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if self.order is not None:
            rows = rows.index_select(1, self.order)
        if 0 < rows.shape[0] <= self._kernels.max_rows(self.weight, rows.dtype):
            return self._kernels.multiply(rows, self.weight, self.bias, self._dtype)
        return linear(rows, self._kernels.plain(self.weight, rows.dtype), self.bias).to(self._dtype)


def _with_zeros(weight: CodedWeight) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Codes, scales and zeros: scale · (number − zero); a group with the scale 0 becomes 1 times its offset."""
    if weight.offsets is None:
        return weight.codes, weight.scales, None
    scales = weight.scales.float()
    is_constant = scales == 0
    zeros = (-weight.offsets / scales).masked_fill_(is_constant, 0)
    whole = zeros.round()
    if bool(((zeros - whole).abs() < _DIVISION_ERROR).all()):
        zeros = whole
    if not bool(is_constant.any()):
        return weight.codes, scales, zeros
    group = weight.codes.shape[1] // scales.shape[1]
    codes = weight.codes.masked_fill(is_constant.repeat_interleave(group, 1), 1)
    return codes, torch.where(is_constant, weight.offsets, scales), zeros
