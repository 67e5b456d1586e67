"""Draws from the tokens that min-p and top-p keep, as a Triton kernel that sorts nothing.

A program draws from one row. It searches for the lowest score that is kept, then for the score of the drawn token. Each
pass over the row sums the softmax above three thresholds and so quarters the interval. FlashInfer (arXiv 2501.01005)
samples without sorting, too, but by rejection; here the uniform number determines the token. Tokens of equal scores
rank by their ids. Import this module only where `has_triton` holds, or under Triton's interpreter.
"""

# Kernels are written as Triton's users know them, and its decorator hides their types.
# ruff: noqa: ANN001, ANN202, N803, PLR0917
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

import math

import torch
import triton
import triton.language as tl

from bakeoff.reference_engine.kernels.operands import require_packed

_TILE, _WARPS = 8192, 16
_LOG2_E = math.log2(math.e)
_LOWEST, _HIGHEST = tl.constexpr(-1e30), tl.constexpr(1e38)  # finite, so that nothing is infinity minus infinity


def draw_nucleus(
    scores: torch.Tensor,
    rows: torch.Tensor,
    tops: torch.Tensor,
    uniforms: torch.Tensor,
    temperatures: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
) -> torch.Tensor:
    """One token per row; see `draw_truncated`. Weights are float32, their sums float64.

    Args:
        scores: float32 [all_rows, width], contiguous.
        rows: int64 [num_rows], which of them to draw from.
        tops: float32 [num_rows], their largest scores.
        uniforms: float64 [num_rows] in [0, 1), as are the next three.
        temperatures: above 0.
        top_ps: shares of the mass that `min_ps` keeps.
        min_ps: shares of the largest probability.

    Returns:
        int64 [num_rows]; `width` for a row in which all tokens are forbidden, or which holds NaN.
    """
    require_packed(torch.float32, scores, tops)
    require_packed(torch.int64, rows)
    require_packed(torch.float64, uniforms, temperatures, top_ps, min_ps)
    tokens = torch.empty_like(rows)
    _draw_nucleus[rows.shape](
        tokens, scores, rows, tops, uniforms, _LOG2_E / temperatures, top_ps, min_ps,
        WIDTH=scores.shape[1], TILE=_TILE, num_warps=_WARPS,
    )  # fmt: skip
    return tokens


@triton.jit
def _load(row, at, WIDTH: tl.constexpr):
    return tl.minimum(tl.load(row + at, mask=at < WIDTH, other=float("-inf")), _HIGHEST)


@triton.jit
def _weights(scores, top, rate, rest, min_p):
    """Softmax without its denominator; `rate` and `rest` are the float32 halves of log2(e) / temperature."""
    shifted = tl.maximum(scores - top, _LOWEST)
    weights = tl.exp2(shifted * rate + shifted * rest)
    return tl.where(weights >= min_p, weights, 0.0)


@triton.jit
def _search(
    row, low, high, limit, top, rate, rest, min_p,
    INCLUSIVE: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The smallest score in (low, high] with a mass above it under `limit` (or equal, if INCLUSIVE).

    The mass above `high` is 0. Returns the score, the mass above it and the float32 next below the score.
    """
    mass = limit * 0.0
    middle = low * 0.5 + high * 0.5
    while (middle > low) & (middle < high):
        first, third = low * 0.75 + high * 0.25, low * 0.25 + high * 0.75
        above_first = tl.zeros([TILE], tl.float32)
        above_middle = tl.zeros([TILE], tl.float32)
        above_third = tl.zeros([TILE], tl.float32)
        for start in range(0, WIDTH, TILE):
            at = start + tl.arange(0, TILE)
            scores = _load(row, at, WIDTH)
            weights = _weights(scores, top, rate, rest, min_p)
            above_first += tl.where(scores > first, weights, 0.0)
            above_middle += tl.where(scores > middle, weights, 0.0)
            above_third += tl.where(scores > third, weights, 0.0)
        mass_first = tl.sum(above_first.to(tl.float64), axis=0)
        mass_middle = tl.sum(above_middle.to(tl.float64), axis=0)
        mass_third = tl.sum(above_third.to(tl.float64), axis=0)
        if _is_under(mass_first, limit, INCLUSIVE):
            high, mass = first, mass_first
        elif _is_under(mass_middle, limit, INCLUSIVE):
            low, high, mass = first, middle, mass_middle
        elif _is_under(mass_third, limit, INCLUSIVE):
            low, high, mass = middle, third, mass_third
        else:
            low = third
        middle = low * 0.5 + high * 0.5
    return high, mass, low


@triton.jit
def _is_under(mass, limit, INCLUSIVE: tl.constexpr):
    return mass <= limit if INCLUSIVE else mass < limit


@triton.jit
def _draw_nucleus(tokens, scores, rows, tops, uniforms, rates, top_ps, min_ps, WIDTH: tl.constexpr, TILE: tl.constexpr):
    place = tl.program_id(0)
    row = scores + tl.load(rows + place) * WIDTH
    top = tl.load(tops + place)
    min_p = tl.load(min_ps + place)
    drawn = tl.full((), WIDTH, tl.int32)
    is_finite = top < float("inf")
    if (top > float("-inf")) & (is_finite | (min_p > 0)):
        top = tl.minimum(top, _HIGHEST)
        exact_rate = tl.load(rates + place)
        rate = exact_rate.to(tl.float32)
        rest = (exact_rate - rate).to(tl.float32)
        least = min_p.to(tl.float32)
        masses = tl.zeros([TILE], tl.float32)
        for start in range(0, WIDTH, TILE):
            at = start + tl.arange(0, TILE)
            masses += _weights(_load(row, at, WIDTH), top, rate, rest, least)
        limit = tl.load(top_ps + place) * tl.sum(masses.to(tl.float64), axis=0)
        low = tl.maximum(top - (150.0 / exact_rate).to(tl.float32), _LOWEST)  # 2^-150 is 0 in float32
        last, mass, low = _search(row, low, top, limit, top, rate, rest, least, False, WIDTH, TILE)
        weight = _weights(last, top, rate, rest, least)
        equals = tl.zeros([TILE], tl.int32)
        for start in range(0, WIDTH, TILE):
            at = start + tl.arange(0, TILE)
            equals += (_load(row, at, WIDTH) == last).to(tl.int32)
        # Of equal scores at the border, those are kept before which the limit is not reached.
        num_kept = tl.minimum(tl.maximum(tl.ceil((limit - mass) / weight), 1.0), tl.sum(equals, axis=0).to(tl.float64))
        target = (mass + num_kept * weight) * tl.load(uniforms + place)
        drawn_score, mass, low = _search(row, low, top, target, top, rate, rest, least, True, WIDTH, TILE)
        skipped = tl.maximum(tl.floor((target - mass) / _weights(drawn_score, top, rate, rest, least)), 0.0)
        skipped = tl.where(drawn_score == last, tl.minimum(skipped, num_kept - 1.0), skipped)
        skipped = tl.where(is_finite, skipped, 0.0).to(tl.int32)
        before = 0
        for start in range(0, WIDTH, TILE):
            at = start + tl.arange(0, TILE)
            is_equal = (_load(row, at, WIDTH) == drawn_score).to(tl.int32)
            number = before + tl.cumsum(is_equal, axis=0) - 1
            # The last one, in case rounding skips them all.
            candidate = tl.max(tl.where((is_equal != 0) & (number <= skipped), at, -1), axis=0)
            drawn = tl.where(candidate >= 0, candidate, drawn)
            before += tl.sum(is_equal, axis=0)
    tl.store(tokens + place, drawn.to(tl.int64))
