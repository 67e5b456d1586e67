"""The small operations between the matrix products, compiled (`rows.cpp`, `attention.cpp`) and in stock torch.

`TorchKernels` is the reference that tests compare `NativeKernels` and `CudaKernels` with, and the fallback: for other
dtypes, without a compiler, on a GPU without Triton.
"""

import ctypes
import functools
from typing import Literal, Protocol

import torch
from torch.nn.functional import rms_norm, silu

from bakeoff.reference_engine.kernels.native import FLOAT, LONG, POINTER, has_triton, library
from bakeoff.reference_engine.kernels.operands import require_packed, require_rows

SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}
_ARGUMENTS = {
    "add_rms_norm": (POINTER, POINTER, POINTER, POINTER, LONG, LONG, FLOAT),
    "add_rms_norm_f32_weight": (POINTER, POINTER, POINTER, POINTER, LONG, LONG, FLOAT),
    "silu_mul": (POINTER, POINTER, LONG, LONG),
    "argmax": (POINTER, POINTER, LONG, LONG),
    "apply_rope": (POINTER, LONG, POINTER, POINTER, LONG, LONG, LONG),
    "paged_attention": (POINTER,) * 8,
}


class Kernels(Protocol):
    """Operations on rows of tokens."""

    def add_rms_norm(
        self, residual: torch.Tensor, x: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Adds `x` to `residual`, in place, and returns the sum's RMS norm (arXiv 1910.07467) times `weight`.

        Args:
            residual: [rows, dim], contiguous.
            x: the same; None adds nothing.
            weight: [dim], in the dtype of `residual` or in float32.
            eps: added to the mean square.
        """
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """The middle of SwiGLU (arXiv 2002.05202): [rows, 2 · dim], gates first -> [rows, dim]."""
        ...

    def argmax(self, rows: torch.Tensor) -> torch.Tensor:
        """Index of the largest element of each row, the lowest of equals: [rows, dim] -> int64 [rows], same device."""
        ...

    def apply_rope(self, heads: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
        """Rotates heads [rows, num_heads, head_dim] by the result of `RotaryTable.at`; possibly in place."""
        ...


class TorchKernels:
    """Stock operators; see `Kernels`."""

    def add_rms_norm(
        self, residual: torch.Tensor, x: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        if x is not None:
            residual.add_(x)
        return rms_norm(residual.to(weight.dtype), (residual.shape[-1],), weight, eps).to(residual.dtype)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate).mul_(up)

    def argmax(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.device.type == "cpu":
            # NumPy's argmax is vectorised (17 µs for 8 rows of 49152 here); torch's takes 660 µs on bf16.
            return torch.from_numpy(rows.float().numpy().argmax(axis=-1))
        return rows.argmax(dim=-1)

    def apply_rope(self, heads: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, dims=-1), signed_sin)


_TORCH = TorchKernels()


class NativeKernels:
    """Compiled operators; see `Kernels`. Rows of `heads` may be parts of longer rows; all else is contiguous."""

    def __init__(self, rows: ctypes.CDLL, attention: ctypes.CDLL, dtype: torch.dtype) -> None:
        places = dict.fromkeys(_ARGUMENTS, rows) | {"paged_attention": attention}
        functions = {name: getattr(place, f"{name}_{SUFFIXES[dtype]}") for name, place in places.items()}
        for name, function in functions.items():
            function.argtypes, function.restype = _ARGUMENTS[name], None
        self._dtype = dtype
        self._add_rms_norm = {torch.float32: functions["add_rms_norm_f32_weight"], dtype: functions["add_rms_norm"]}
        self._silu_mul = functions["silu_mul"]
        self._apply_rope, self._argmax = functions["apply_rope"], functions["argmax"]
        self.paged_attention = functions["paged_attention"]

    def add_rms_norm(
        self, residual: torch.Tensor, x: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        require_packed(self._dtype, residual, x)
        require_packed(None, weight)
        out = torch.empty_like(residual)
        added = None if x is None else x.data_ptr()
        function = self._add_rms_norm[weight.dtype]
        function(out.data_ptr(), residual.data_ptr(), added, weight.data_ptr(), *residual.shape, eps)
        return out

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        require_packed(self._dtype, gate_up)
        rows, width = gate_up.shape
        out = gate_up.new_empty(rows, width // 2)
        self._silu_mul(out.data_ptr(), gate_up.data_ptr(), rows, width // 2)
        return out

    def argmax(self, rows: torch.Tensor) -> torch.Tensor:
        require_packed(self._dtype, rows)
        out = torch.empty(rows.shape[0], dtype=torch.int64)
        self._argmax(out.data_ptr(), rows.data_ptr(), *rows.shape)
        return out

    def apply_rope(self, heads: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
        """In place."""
        require_rows(self._dtype, heads)
        require_packed(self._dtype, cos, signed_sin)
        rows, count, dim = heads.shape
        self._apply_rope(heads.data_ptr(), heads.stride(0), cos.data_ptr(), signed_sin.data_ptr(), rows, count, dim)
        return heads


class AttentionCall(ctypes.Structure):
    """Arguments of `paged_attention` for a whole step; see the struct of that name in `attention.h`."""

    _fields_ = (
        *((name, POINTER) for name in ("tables", "ends", "learned_sinks")),
        *((name, LONG) for name in ("batch", "block_size", "heads", "kv_heads", "key_dim", "value_dim")),
        *((name, LONG) for name in ("query_stride", "key_stride", "value_stride", "window", "sinks")),
        *((name, FLOAT) for name in ("scale", "soft_cap")),
    )


@functools.cache
def native_kernels(device: torch.device, dtype: torch.dtype) -> NativeKernels | None:
    """The compiled operations for tensors of this kind; None if there are none."""
    if device.type != "cpu" or dtype not in SUFFIXES:
        return None
    rows, attention = library("rows.cpp"), library("attention.cpp")
    return None if rows is None or attention is None else NativeKernels(rows, attention, dtype)


def kernel_kind(device: torch.device, dtype: torch.dtype) -> Literal["triton", "native", "torch"]:
    """The kind of `best_kernels`: of Triton, compiled for this processor, or torch's own operations."""
    if has_triton(device):
        return "triton"
    return "torch" if native_kernels(device, dtype) is None else "native"


def best_kernels(device: torch.device, dtype: torch.dtype, *, batch_invariant: bool = False) -> Kernels:
    """The fastest operations for tensors of this kind on this machine.

    Args:
        device: of the tensors.
        dtype: of the tensors.
        batch_invariant: whether each row's bits must not depend on the others; requires `has_triton`.
    """
    if has_triton(device):
        from bakeoff.reference_engine.kernels.cuda import CudaKernels  # noqa: PLC0415 (torch for the CPU comes without Triton)

        return CudaKernels(batch_invariant=batch_invariant)
    return native_kernels(device, dtype) or _TORCH
