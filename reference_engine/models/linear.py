"""y = x·Wᵀ + b as a callable, with weights packed for the CPU where that is faster.

oneDNN's pre-packed weights are 2 to 3 times faster than `torch.nn.functional.linear` at the batch sizes of decoding
(measured on an AMD Turin core pair, lm_head 576 x 49152, one row: bf16 2412 -> 715 µs, fp32 6716 -> 2293 µs); oneDNN
rounds nothing that stock torch does not. `PlainLinear` is the reference for `PackedLinear` in tests, and the fallback
where the packed operator does not exist.

A quantised matrix brings its own product (:mod:`bakeoff.reference_engine.quantization`).
"""

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch.nn.functional import embedding, linear

from bakeoff.reference_engine.kernels.cpu import Kernels
from bakeoff.reference_engine.kernels.gemm import TiledLinear, can_tile
from bakeoff.reference_engine.kernels.native import has_triton
from bakeoff.reference_engine.quantization.fp8 import Fp8Linear
from bakeoff.reference_engine.quantization.matrix import Linear, QuantisedMatrix, stacked

Matrix = torch.Tensor | QuantisedMatrix
"""[rows, columns], plain or quantised."""

_HALF_DTYPES = (torch.bfloat16, torch.float16)


class PlainLinear:
    """Stock torch; weight [out_features, in_features]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return linear(rows, self._weight, self._bias)


class FloatLinear:
    """A 16-bit weight [out_features, in_features] on a GPU; outputs are the float32 sums, not rounded."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._transposed = weight.t()

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.mm(rows, self._transposed, out_dtype=torch.float32)


class SmallProductLinear:
    """Few rows with Triton kernels, which read a weight faster than cuBLAS; more rows with another linear.

    Args:
        weight: [out_features, in_features], supported by the kernels.
        bias: [out_features]; None for none.
        inner: multiplies by the same weight.
        dtype: of the result.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, inner: Linear, dtype: torch.dtype) -> None:
        from bakeoff.reference_engine.kernels.small_products import MAX_ROWS, multiply  # noqa: PLC0415 (needs Triton)

        self._max_rows = MAX_ROWS
        self._multiply, self._weight, self._bias, self._inner, self._dtype = multiply, weight, bias, inner, dtype

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if 0 < rows.shape[0] <= self._max_rows:
            return self._multiply(rows, self._weight, self._bias, self._dtype)
        return self._inner(rows)


class InvariantLinear:
    """One Triton kernel for any number of rows, so that each row's bits do not depend on the others.

    Args:
        weight: [out_features, in_features]; requires `has_triton`.
        bias: [out_features]; None for none.
        dtype: of the result; None for that of the rows.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, dtype: torch.dtype | None = None
    ) -> None:
        from bakeoff.reference_engine.kernels.invariant_products import multiply_invariantly  # noqa: PLC0415 (needs Triton)

        self._multiply, self._weight, self._bias, self._dtype = multiply_invariantly, weight.contiguous(), bias, dtype

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._multiply(rows, self._weight, self._bias, self._dtype)


class PackedLinear:
    """oneDNN with the weight in its blocked layout; does not keep the original weight."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)  # noqa: SLF001 (no public name)
        self._bias = bias
        self._multiply = torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001 (no public name)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._multiply(rows, self._packed, self._bias, "none", [], "")


def can_pack(weight: torch.Tensor) -> bool:
    """Whether `PackedLinear` supports this weight: bf16 or fp32 on a CPU with oneDNN's operators."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001 (no public name)
    return weight.dtype == torch.float32


class JoinedLinear:
    """Several matrices with the same input, outputs side by side."""

    def __init__(self, linears: Sequence[Linear]) -> None:
        self._linears = linears

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([linear(rows) for linear in self._linears], dim=1)


def make_linear(
    weight: Matrix, bias: torch.Tensor | None = None, *, keeps_float32: bool = False, batch_invariant: bool = False
) -> Linear:
    """The fastest exact multiplication for this weight [out_features, in_features] on this machine.

    Args:
        weight: in the dtype of its inputs.
        bias: [out_features]; None for none.
        keeps_float32: whether outputs stay float32 where the kernel sums in it; stock operators round to the dtype.
        batch_invariant: whether each row's bits must not depend on the others; requires plain weights and `has_triton`.
    """
    if not isinstance(weight, torch.Tensor):
        return weight.linear(bias, keeps_float32=keeps_float32)
    if batch_invariant:
        return InvariantLinear(weight, bias)
    if can_tile(weight):
        return TiledLinear(weight, bias, keeps_float32=keeps_float32)
    if can_pack(weight):
        return PackedLinear(weight, bias)
    return _with_small_products(weight, bias, PlainLinear(weight, bias), weight.dtype)


def make_head(weight: Matrix, *, batch_invariant: bool = False) -> Linear:
    """The multiplication that gives logits, in float32 if that costs nothing; see `make_linear`.

    Near 20, bfloat16 has steps of 1/8, so many logits would be equal.
    """
    if batch_invariant and isinstance(weight, torch.Tensor):
        return InvariantLinear(weight, dtype=torch.float32)
    if isinstance(weight, torch.Tensor) and weight.is_cuda and weight.dtype in _HALF_DTYPES:
        return _with_small_products(weight, None, FloatLinear(weight), torch.float32)
    return make_linear(weight, keeps_float32=True)


def _with_small_products(weight: torch.Tensor, bias: torch.Tensor | None, inner: Linear, dtype: torch.dtype) -> Linear:
    if not has_triton(weight.device):
        return inner
    from bakeoff.reference_engine.kernels.small_products import suits_small_products  # noqa: PLC0415 (needs Triton)

    return SmallProductLinear(weight, bias, inner, dtype) if suits_small_products(weight) else inner


def norm_for(linear: Linear, kernels: Kernels) -> Callable[..., Any]:
    """`Kernels.add_rms_norm`, with a result that the linear takes without a further pass over it: rows, or codes."""
    fused = linear.norm if isinstance(linear, Fp8Linear) else None
    return kernels.add_rms_norm if fused is None else fused


def silu_mul_for(linear: Linear, kernels: Kernels) -> Callable[[torch.Tensor], Any]:
    """`Kernels.silu_mul` likewise."""
    fused = linear.silu_mul if isinstance(linear, Fp8Linear) else None
    return kernels.silu_mul if fused is None else fused


def make_joined(weights: Sequence[Matrix], bias: torch.Tensor | None, *, batch_invariant: bool = False) -> Linear:
    """Joins matrices with the same input, outputs side by side; consecutive ones of the same kind become one product.

    Files mix formats: sensitive matrices, often the projection to values, have more bits than others.
    """
    runs = [_joined(list(run)) for _, run in itertools.groupby(weights, key=_kind)]
    if len(runs) == 1:
        return make_linear(runs[0], bias, batch_invariant=batch_invariant)
    biases = [None] * len(runs) if bias is None else bias.split([run.shape[0] for run in runs])
    return JoinedLinear(
        [make_linear(run, part, batch_invariant=batch_invariant) for run, part in zip(runs, biases, strict=True)]
    )


def _kind(weight: Matrix) -> Hashable:
    return None if isinstance(weight, torch.Tensor) else (type(weight), weight.layout)


def _joined(run: Sequence[Matrix]) -> Matrix:
    """Matrices of one kind, concatenated along their rows."""
    plain = [matrix for matrix in run if isinstance(matrix, torch.Tensor)]
    return torch.cat(plain) if plain else stacked([matrix for matrix in run if not isinstance(matrix, torch.Tensor)])


def rows_of(table: Matrix, index: torch.Tensor) -> torch.Tensor:
    """Rows [num_rows, columns] of a table, selected by an index, int64 [num_rows]."""
    if isinstance(table, torch.Tensor):
        return embedding(index, table)
    return table.rows(index).dequantised()
