"""The small operations between the matrix products as Triton kernels, each a single pass over its rows.

They compute in float32 and round once. Import this module only where `has_triton` holds, or under Triton's interpreter.
"""

# Kernels are written as Triton's users know them, and its decorator hides their types.
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0917
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

from typing import Any

import torch
import triton
import triton.language as tl

from bakeoff.reference_engine.kernels.early_start import await_inputs, early_start
from bakeoff.reference_engine.kernels.operands import require_packed, require_rows

_SILU_TILE = 1024
_ARGMAX_TILE = 4096


class CudaKernels:
    """`Kernels` for CUDA; they rotate in place.

    The heads of a row must be contiguous; the row may be part of a longer one.

    A program computes a row, or a part of it, by itself, and its shape depends on the row's length alone.

    Args:
        batch_invariant: whether steps of any number of rows run the same compiled kernels.
    """

    def __init__(self, *, batch_invariant: bool = False) -> None:
        self._batch_invariant = batch_invariant

    def _early_start(self, rows: torch.Tensor) -> dict[str, Any]:
        return early_start(rows, None if self._batch_invariant else rows.shape[0])

    def add_rms_norm(
        self, residual: torch.Tensor, x: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """The weight may be of another dtype than the rows."""
        require_packed(residual.dtype, residual, x)
        require_packed(None, weight)
        out = torch.empty_like(residual)
        rows, width = residual.shape
        padded = triton.next_power_of_2(width)
        _add_rms_norm[(rows,)](
            out, residual, residual if x is None else x, weight, eps,
            ADDS=x is not None, WIDTH=width, PADDED=padded, num_warps=_warps(padded), **self._early_start(residual),
        )  # fmt: skip
        return out

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        require_packed(None, gate_up)
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, width)
        grid = (rows, triton.cdiv(width, _SILU_TILE))
        _silu_mul[grid](out, gate_up, WIDTH=width, TILE=_SILU_TILE, **self._early_start(gate_up))
        return out

    def argmax(self, rows: torch.Tensor) -> torch.Tensor:
        """NaN counts as infinity."""
        require_rows(None, rows)
        count, width = rows.shape
        tiles = triton.cdiv(width, _ARGMAX_TILE)
        maxima = torch.empty(count, tiles, dtype=torch.float32, device=rows.device)
        places = torch.empty(count, tiles, dtype=torch.int32, device=rows.device)
        out = torch.empty(count, dtype=torch.int64, device=rows.device)
        _argmax_of_tile[(count, tiles)](maxima, places, rows, rows.stride(0), WIDTH=width, TILE=_ARGMAX_TILE)
        _argmax_of_row[(count,)](out, maxima, places, TILES=tiles, PADDED=triton.next_power_of_2(tiles))
        return out

    def apply_rope(self, heads: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
        require_rows(None, heads)
        require_packed(cos.dtype, cos, signed_sin)
        rows, count, dim = heads.shape
        padded_heads, padded_half = triton.next_power_of_2(count), triton.next_power_of_2(dim // 2)
        _apply_rope[(rows,)](
            heads, cos, signed_sin, heads.stride(0),
            HEADS=count, HALF=dim // 2, PADDED_HEADS=padded_heads, PADDED_HALF=padded_half,
            num_warps=_warps(padded_heads * padded_half), **self._early_start(heads),
        )  # fmt: skip
        return heads


def replace_pending(token_ids: torch.Tensor, previous: torch.Tensor) -> None:
    """Replaces, in place, each token id -1-i by `previous[i]`; both int64."""
    require_packed(torch.int64, token_ids, previous)
    _replace_pending[(token_ids.shape[0],)](token_ids, previous)


def _warps(elements: int) -> int:
    """Warps for a tile, about 16 elements for each thread."""
    return min(16, max(1, elements // 512))


@triton.jit
def _add_rms_norm(
    out, residual, x, weight, eps,
    ADDS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    await_inputs(EARLY)
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    normed = normed_row(residual, x, weight, eps, row, ADDS, WIDTH, PADDED)
    tl.store(out + row * WIDTH + at, normed.to(out.dtype.element_ty), mask=at < WIDTH)


@triton.jit
def normed_row(residual, x, weight, eps, row, ADDS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """A row of the residual stream, to which `x` is added if `ADDS`, normed: float32 [PADDED], zeros behind it."""
    at = tl.arange(0, PADDED)
    mask = at < WIDTH
    place = row * WIDTH + at
    total = tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    if ADDS:
        total += tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        rounded = total.to(residual.dtype.element_ty)
        tl.store(residual + place, rounded, mask=mask)
        total = rounded.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(total * total, axis=0) / WIDTH + eps)
    return total * inverse * tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _silu_mul(out, gate_up, WIDTH: tl.constexpr, TILE: tl.constexpr, EARLY: tl.constexpr):
    await_inputs(EARLY)
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE + tl.arange(0, TILE)
    tl.store(out + row * WIDTH + at, gated(gate_up, row, at, WIDTH).to(out.dtype.element_ty), mask=at < WIDTH)


@triton.jit
def gated(gate_up, row, at, WIDTH: tl.constexpr):
    """SwiGLU of some columns of a row, in float32; zeros behind it."""
    mask = at < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + at, mask=mask, other=0.0).to(tl.float32)
    return gate * tl.sigmoid(gate) * up


@triton.jit
def _apply_rope(
    heads, cos, signed_sin, stride,
    HEADS: tl.constexpr, HALF: tl.constexpr, PADDED_HEADS: tl.constexpr, PADDED_HALF: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    await_inputs(EARLY)
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, PADDED_HALF)
    is_dim = dims < HALF
    angle = row * 2 * HALF + dims
    cos_low = tl.load(cos + angle, mask=is_dim, other=0.0).to(tl.float32)[None, :]
    cos_high = tl.load(cos + angle + HALF, mask=is_dim, other=0.0).to(tl.float32)[None, :]
    sin_low = tl.load(signed_sin + angle, mask=is_dim, other=0.0).to(tl.float32)[None, :]
    sin_high = tl.load(signed_sin + angle + HALF, mask=is_dim, other=0.0).to(tl.float32)[None, :]
    head = tl.arange(0, PADDED_HEADS)[:, None]
    mask = (head < HEADS) & is_dim[None, :]
    place = heads + row * stride + head * 2 * HALF + dims[None, :]
    low = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(place + HALF, mask=mask, other=0.0).to(tl.float32)
    dtype = heads.dtype.element_ty
    tl.store(place, (low * cos_low + high * sin_low).to(dtype), mask=mask)
    tl.store(place + HALF, (high * cos_high + low * sin_high).to(dtype), mask=mask)


@triton.jit
def _argmax_of_tile(maxima, places, rows, stride, WIDTH: tl.constexpr, TILE: tl.constexpr):
    row, tile = tl.program_id(0), tl.program_id(1)
    at = tile * TILE + tl.arange(0, TILE)
    scores = tl.load(rows + row.to(tl.int64) * stride + at, mask=at < WIDTH, other=float("-inf")).to(tl.float32)
    scores = tl.where(scores != scores, float("inf"), scores)  # noqa: PLR0124 (NaN)
    best, place = tl.max(scores, axis=0, return_indices=True, return_indices_tie_break_left=True)
    where = row * tl.num_programs(1) + tile
    tl.store(maxima + where, best)
    tl.store(places + where, tile * TILE + place)


@triton.jit
def _argmax_of_row(out, maxima, places, TILES: tl.constexpr, PADDED: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, PADDED)
    scores = tl.load(maxima + row * TILES + at, mask=at < TILES, other=float("-inf"))
    _, tile = tl.max(scores, axis=0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(out + row, tl.load(places + row * TILES + tile).to(tl.int64))


@triton.jit
def _replace_pending(token_ids, previous):
    place = token_ids + tl.program_id(0)
    token = tl.load(place)
    tl.store(place, tl.load(previous + (-1 - token), mask=token < 0, other=0), mask=token < 0)
