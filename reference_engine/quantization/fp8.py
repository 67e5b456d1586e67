"""FP8 weights (Micikevicius et al., arXiv 2209.05433): scale = max |w| / largest; code = w / scale, the nearest number.

Numbers are E4M3: largest 448, 3 bits of mantissa. If the device can multiply them, activations become E4M3 too, with a
scale for each token; otherwise weights are dequantised.
"""

import dataclasses
from collections.abc import Callable

import torch

from bakeoff.reference_engine.kernels.native import has_triton
from bakeoff.reference_engine.kernels.operands import CodedRows
from bakeoff.reference_engine.quantization.matrix import Linear, SlabLinear
from bakeoff.reference_engine.quantization.row_scales import RowScaledMatrix

E4M3 = torch.float8_e4m3fn

Norm = Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor, float], CodedRows]

_TILE = 16
"""FP8 products need multiples of this many rows and columns of a weight."""
_FIRST_CAPABILITY = (8, 9)
"""First CUDA devices that multiply FP8 numbers: Ada and Hopper."""


def quantised(weight: torch.Tensor, *, per_tensor: bool = False) -> "Fp8Matrix":
    """Quantises a weight [rows, columns].

    Args:
        weight: of any floating-point dtype.
        per_tensor: one scale for all rows, rather than one for each.
    """
    plain = weight.float()
    largest = plain.abs().amax(1, keepdim=True)
    codes, scales = _coded(plain, largest.amax().expand_as(largest).contiguous() if per_tensor else largest)
    return Fp8Matrix(codes, scales, weight.dtype)


def _coded(numbers: torch.Tensor, largest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of float32 numbers [rows, columns] whose absolute values reach `largest` [rows, 1], and their scales."""
    limit = torch.finfo(E4M3).max
    scales = (largest / limit).clamp_min_(torch.finfo(torch.float32).tiny)
    return (numbers / scales).clamp_(-limit, limit).to(E4M3), scales  # a quotient may round up past the limit


def has_fp8_products(device: torch.device) -> bool:
    """Whether `torch._scaled_mm` multiplies E4M3 numbers on the device in hardware."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FIRST_CAPABILITY


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Fp8Matrix(RowScaledMatrix):
    """A `QuantisedMatrix` of FP8 numbers."""

    def has_kernel(self, device: torch.device, dtype: torch.dtype) -> bool:  # noqa: ARG002 (any)
        rows, columns = self.shape
        return rows % _TILE == 0 == columns % _TILE and has_fp8_products(device)

    def call_bytes(self, rows: int, device: torch.device, dtype: torch.dtype) -> int:
        if not self.has_kernel(device, dtype):
            return super(Fp8Matrix, self).call_bytes(rows, device, dtype)
        width, depth = self.shape
        return rows * (depth + width * dtype.itemsize)  # codes of the activations

    def linear(self, bias: torch.Tensor | None, *, keeps_float32: bool = False) -> Linear:
        if self.has_kernel(self.codes.device, self.dtype):
            return Fp8Linear(self, bias, torch.float32 if keeps_float32 else self.dtype)
        return SlabLinear(self, bias)


class Fp8Linear:
    """E4M3 weights by E4M3 activations.

    A Triton kernel multiplies few rows. For more, a bfloat16 result comes from a product with scales for rows and
    outputs; a float32 result applies the scales to the sums, since such products round to bfloat16.

    Args:
        weight: `has_kernel` holds for it.
        bias: [out_features]; None for none.
        dtype: of the result.

    Attributes:
        norm: `Kernels.add_rms_norm` as codes, in one pass; None without a kernel.
        silu_mul: `Kernels.silu_mul` likewise.
    """

    def __init__(self, weight: Fp8Matrix, bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        device = weight.codes.device
        self._codes, self._scales = weight.codes.contiguous(), weight.scales.t().contiguous()
        self._unit_scale = torch.ones((), device=device)
        self._bias, self._dtype = bias, dtype
        self._scales_inside = device.type == "cuda" and dtype is torch.bfloat16
        self._encode, self._multiply_few, self._max_few = _row_codes, None, 0
        self.norm: Norm | None = None
        self.silu_mul: Callable[[torch.Tensor], CodedRows] | None = None
        if has_triton(device):
            from bakeoff.reference_engine.kernels import row_codes, small_products  # noqa: PLC0415 (needs Triton)

            self._encode = row_codes.scaled_codes
            self.norm, self.silu_mul = row_codes.add_rms_norm_codes, row_codes.silu_mul_codes
            if small_products.suits_small_products(weight.codes):
                self._multiply_few, self._max_few = small_products.multiply, small_products.MAX_ROWS_OF_CODES

    def __call__(self, rows: torch.Tensor | CodedRows) -> torch.Tensor:
        """Takes codes, too."""
        codes, scales = self._encode(rows) if isinstance(rows, torch.Tensor) else rows
        if self._multiply_few is not None and 0 < codes.shape[0] <= self._max_few:
            return self._multiply_few(codes, self._codes, self._bias, self._dtype, (scales, self._scales))
        product = torch.ops.aten._scaled_mm  # noqa: SLF001 (no public name)
        weight = self._codes.t()
        if self._scales_inside:
            sums = product(codes, weight, scales, self._scales, out_dtype=self._dtype, use_fast_accum=True)
        else:
            sums = product(codes, weight, self._unit_scale, self._unit_scale, out_dtype=torch.float32)
            sums = sums.mul_(scales).mul_(self._scales)
        return (sums if self._bias is None else sums.add_(self._bias)).to(self._dtype)


def _row_codes(rows: torch.Tensor) -> CodedRows:
    """Codes of rows, each with a scale of its own."""
    numbers = rows.float()
    return CodedRows(*_coded(numbers, numbers.abs().amax(1, keepdim=True)))
