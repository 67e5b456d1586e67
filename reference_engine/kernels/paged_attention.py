"""Attention over the paged cache as Triton kernels: one that stores new tokens, one that attends, one that combines.

`attend` is FlashAttention-2 (arXiv 2307.08691) over block tables (PagedAttention, arXiv 2309.06180). A program takes a
tile of consecutive new tokens of one sequence, with all query heads of one key/value head as further rows of the tile,
so that each key is read once for the whole group. Where there are few programs the keys of a tile are split among
several (Flash-Decoding) and `_combine` weighs their results.

Codes of a quantised cache become numbers in registers. The scale of a key multiplies its scores and that of a value its
shares, which are fewer than the elements of either. Keys and values that no query of the tile sees are not loaded but
replaced by 0: the unwritten tail of a block, or a block that another sequence has left, may hold NaN, and 0 · NaN would
spread. Import this module only where `has_triton` is true, or under Triton's interpreter.
"""

# Kernels are written as Triton's users know them, and its decorator hides their types.
# ruff: noqa: ANN001, ANN202, N803, N806, PLR0915, PLR0917, SIM102
# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

import math
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from bakeoff.reference_engine.kernels.cache_codes import code_scales, decoded, encoding_of
from bakeoff.reference_engine.kernels.early_start import await_inputs, early_start
from bakeoff.reference_engine.kernels.operands import require_packed, require_rows
from bakeoff.reference_engine.kernels.scoring import Scoring
from bakeoff.reference_engine.kv_cache.block_table import Visible

MAX_DIM = 256
"""Elements of the longest head that fits into registers and shared memory."""

_MIN_ROWS = 16  # of a tile; tl.dot takes no fewer
_CHUNK_ROWS = 128
_INVARIANT_ROWS = 64  # of a tile of decodes and chunks alike; tensor cores of a Hopper GPU take no fewer at full speed
_LONG_HEAD_BYTES = 256
_KEY_TILE_BYTES = 16 << 10  # of keys, and as many of values, in shared memory for each pipeline stage
_MAX_KEYS = 64
# Stages of the loop over keys, of which loads of block numbers take half: two, one and three key tiles are in flight.
_CHUNK_STAGES, _DECODE_STAGES, _SPLIT_STAGES = 5, 4, 7
_PROGRAMS = 264  # two for each of the 132 SMs of an H100 or H200
_MAX_SPLITS = 16
SPLIT_FACTORS = (1, 4)
"""Factors by which a decode batch may multiply `num_splits`; see `split_factor`."""
_UNEVEN = 1.5
_LOG2_E = math.log2(math.e)  # scores in the kernels are in units of log2


class PagedCache(NamedTuple):
    """Keys and values of a layer.

    Attributes:
        keys: [num_blocks, block_size, kv_heads, dim], in the dtype of queries or as codes: int8, or uint8 for e4m3.
        values: the same.
        key_scales: bfloat16 [num_blocks, block_size, kv_heads, 1], of codes; None where there are none.
        value_scales: the same.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None


def tokens_per_tile(query: torch.Tensor, keys: torch.Tensor, *, batch_invariant: bool = False) -> int:
    """Maximum tokens in a tile of `attend_chunks`, for queries [tokens, heads, dim] over a cache `keys`."""
    return max(1, (_INVARIANT_ROWS if batch_invariant else _chunk_rows(query)) // (query.shape[1] // keys.shape[2]))


def _chunk_rows(query: torch.Tensor) -> int:
    """Query rows of a tile: fewer where heads are long, so that queries and sums still fit into registers."""
    is_long = triton.next_power_of_2(query.shape[2]) * query.element_size() > _LONG_HEAD_BYTES
    return _CHUNK_ROWS // 2 if is_long else _CHUNK_ROWS


def num_splits(rows: int, kv_heads: int) -> int:
    """Parts of the keys of each row of a decode batch, a power of 2; depends on the grid only, as CUDA graphs need."""
    wanted = min(_MAX_SPLITS, _PROGRAMS // (rows * kv_heads))
    return 1 << max(0, wanted.bit_length() - 1)


def split_factor(lengths: NDArray[np.int64], kv_heads: int) -> int:
    """Chooses one of `SPLIT_FACTORS` for a decode batch.

    With rows of one length all programs end together. If one row is much longer than the mean, and one of its programs
    has more keys than its share of all keys, the others wait for it: 4,000 keys take a program 100 µs on an H200.

    Args:
        lengths: keys of each row, at least one row.
        kv_heads: of a layer.
    """
    longest, total = int(lengths.max()), int(lengths.sum())
    splits = num_splits(len(lengths), kv_heads)
    is_uneven = longest * len(lengths) > _UNEVEN * total
    return SPLIT_FACTORS[is_uneven and longest * _PROGRAMS > _UNEVEN * total * kv_heads * splits]


def store_tokens(
    keys: torch.Tensor, values: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    """Writes new tokens into the cache.

    Args:
        keys: the cache, [num_blocks, block_size, kv_heads, dim].
        values: the same.
        key: [tokens, kv_heads, dim]; the heads of a token contiguous, tokens may be parts of longer rows.
        value: the same.
        slots: int32 [tokens], block · block_size + place in the block.
    """
    require_packed(keys.dtype, keys, values)
    require_rows(None, key, value)
    require_packed(torch.int32, slots)
    width = math.prod(keys.shape[2:])
    _store_tokens[(slots.shape[0],)](
        keys, values, key, value, slots, key.stride(0), value.stride(0),
        WIDTH=width, PADDED=triton.next_power_of_2(width), **early_start(keys, slots.shape[0]),
    )  # fmt: skip


def attend_chunks(
    out: torch.Tensor,
    query: torch.Tensor,
    cache: PagedCache,
    tiles: torch.Tensor,
    tables: torch.Tensor,
    *,
    scoring: Scoring,
    visible: Visible,
    towards_sinks: torch.Tensor | None = None,
) -> None:
    """Attention of chunks of several tokens, whose own keys and values are already stored.

    Args:
        out: [tokens, heads, dim], contiguous.
        query: [tokens, heads, dim]; tokens may be parts of longer rows.
        cache: keys and values.
        tiles: int32 [tiles, 4]: first row, tokens (at most `tokens_per_tile`), position of the first one, and where
            in `tables` the sequence's blocks begin.
        tables: int32, the block tables of all sequences one after the other.
        scoring: from products of queries and keys to weights.
        visible: what each token sees.
        towards_sinks: contiguous [tokens, heads, dim], multiplied by the keys of sinks; None for `query`.
    """
    rows = max(_chunk_rows(query), triton.next_power_of_2(query.shape[1] // cache.keys.shape[2]))
    _launch(out, None, query, towards_sinks, cache, tiles, tables, scoring, visible, rows=rows, splits=1)


def attend_decodes(
    out: torch.Tensor,
    query: torch.Tensor,
    cache: PagedCache,
    tiles: torch.Tensor,
    tables: torch.Tensor,
    *,
    scoring: Scoring,
    visible: Visible,
    towards_sinks: torch.Tensor | None = None,
    factor: int = 1,
    has_empty_tiles: bool = False,
) -> None:
    """The same for the first rows of a step, each the one new token of its sequence; tile i is row i.

    Keys are split into `factor` times `num_splits` parts; see `split_factor`. With `has_empty_tiles` tiles may have no
    token: their rows are not changed.
    """
    count, kv_heads = tiles.shape[0], cache.keys.shape[2]
    rows = max(_MIN_ROWS, triton.next_power_of_2(query.shape[1] // kv_heads))
    splits = min(_MAX_SPLITS, factor * num_splits(count, kv_heads))
    if splits == 1:
        _launch(out, None, query, towards_sinks, cache, tiles, tables, scoring, visible, rows=rows, splits=1)
        return
    heads, dim = query.shape[1:]
    parts = torch.empty(count, heads, splits, dim, dtype=torch.float32, device=query.device)
    weights = torch.empty(count, heads, splits, dtype=torch.float32, device=query.device)
    _launch(parts, weights, query, towards_sinks, cache, tiles, tables, scoring, visible, rows=rows, splits=splits)
    require_packed(None, out)
    _combine[(count, heads)](
        out, parts, weights, tiles, HEADS=heads, DIM=dim, PADDED_DIM=triton.next_power_of_2(dim), SPLITS=splits,
        HAS_EMPTY_TILES=has_empty_tiles, num_warps=2, **early_start(out, count),
    )  # fmt: skip


def attend_invariantly(
    out: torch.Tensor,
    query: torch.Tensor,
    cache: PagedCache,
    tiles: torch.Tensor,
    tables: torch.Tensor,
    *,
    scoring: Scoring,
    visible: Visible,
    towards_sinks: torch.Tensor | None = None,
) -> None:
    """The same for decodes and chunks, with a token's bits depending only on the tokens that it sees.

    One tile shape serves all, and tiles of keys begin at multiples of their size. Tiles that only other tokens see add
    zeros.
    """
    rows = max(_INVARIANT_ROWS, triton.next_power_of_2(query.shape[1] // cache.keys.shape[2]))
    _launch(
        out,
        None,
        query,
        towards_sinks,
        cache,
        tiles,
        tables,
        scoring,
        visible,
        rows=rows,
        splits=1,
        batch_invariant=True,
    )


def _launch(
    out: torch.Tensor,
    weights: torch.Tensor | None,
    query: torch.Tensor,
    towards_sinks: torch.Tensor | None,
    cache: PagedCache,
    tiles: torch.Tensor,
    tables: torch.Tensor,
    scoring: Scoring,
    visible: Visible,
    *,
    rows: int,
    splits: int,
    batch_invariant: bool = False,
) -> None:
    keys, values, key_scales, value_scales = cache
    require_packed(keys.dtype, keys, values)
    require_packed(torch.bfloat16, key_scales, value_scales)
    require_rows(None, query)
    require_packed(None, out)
    require_packed(torch.int32, tiles, tables)
    require_packed(torch.float32, scoring.sinks)
    require_packed(query.dtype, towards_sinks)
    block_size, kv_heads, dim = keys.shape[1:]
    padded_dim = max(16, triton.next_power_of_2(dim))
    tile_keys = min(_MAX_KEYS, max(16, _KEY_TILE_BYTES // (padded_dim * query.element_size())))
    stages = _CHUNK_STAGES if rows > _MIN_ROWS else _DECODE_STAGES if splits == 1 else _SPLIT_STAGES
    _attend[(tiles.shape[0], kv_heads, splits)](
        out, out if weights is None else weights, query, query if towards_sinks is None else towards_sinks,
        keys, values,
        keys if key_scales is None else key_scales, values if value_scales is None else value_scales, tiles, tables,
        query if scoring.sinks is None else scoring.sinks, query.stride(0), scoring.factor(dim) * _LOG2_E,
        HEADS=query.shape[1], KV_HEADS=kv_heads, GROUP=query.shape[1] // kv_heads,
        DIM=dim, PADDED_DIM=padded_dim, BLOCK_SIZE=block_size,
        WINDOW=visible.window or 0, SINKS=visible.sinks, ROWS=rows, KEYS=tile_keys, SPLITS=splits,
        SOFT_CAP=(scoring.soft_cap or 0.0) * _LOG2_E, HAS_LEARNED_SINKS=scoring.sinks is not None,
        LOOKS_APART=towards_sinks is not None,
        ENCODING=encoding_of(keys), num_warps=8 if rows > 64 else 4, num_stages=stages,
        **early_start(query, None if batch_invariant else query.shape[0]),
    )  # fmt: skip


@triton.jit
def _store_tokens(
    keys, values, key, value, slots, key_stride, value_stride,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    await_inputs(EARLY)
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64) * WIDTH
    at = tl.arange(0, PADDED)
    mask = at < WIDTH
    tl.store(keys + slot + at, tl.load(key + token * key_stride + at, mask=mask), mask=mask)
    tl.store(values + slot + at, tl.load(value + token * value_stride + at, mask=mask), mask=mask)


@triton.jit
def _attend(  # noqa: C901, PLR0912 (branches on constants, which the compiler removes)
    out, weights, query, towards_sinks, keys, values, key_scales, value_scales, tiles, tables, learned_sinks,
    query_stride, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, SINKS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr,
    SOFT_CAP: tl.constexpr, HAS_LEARNED_SINKS: tl.constexpr, LOOKS_APART: tl.constexpr,
    ENCODING: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    await_inputs(EARLY)
    tile = tiles + 4 * tl.program_id(0)
    kv_head, split = tl.program_id(1), tl.program_id(2)
    first_row, count = tl.load(tile), tl.load(tile + 1)
    first_position, table = tl.load(tile + 2), tables + tl.load(tile + 3)

    # Row r of the tile is query head r % GROUP of token r // GROUP.
    token = tl.arange(0, ROWS) // GROUP
    head = kv_head * GROUP + tl.arange(0, ROWS) % GROUP
    position = first_position + token
    dims = tl.arange(0, PADDED_DIM)
    is_row = (token < count)[:, None] & (dims < DIM)[None, :]
    row = (first_row + token).to(tl.int64)
    queries = tl.load(query + (row * query_stride + head * DIM)[:, None] + dims[None, :], mask=is_row, other=0.0)

    # Tiles of keys: those with sinks, then those from the first token's window to the last token.
    end = first_position + count
    SINK_TILES: tl.constexpr = (SINKS + KEYS - 1) // KEYS if WINDOW else 0
    first_tile = SINK_TILES
    if WINDOW:
        first_tile = tl.maximum(SINK_TILES, (first_position - WINDOW + 1) // KEYS)
    num_tiles = SINK_TILES + tl.cdiv(end, KEYS) - first_tile
    part = tl.cdiv(num_tiles, SPLITS)
    start = split * part

    top = tl.full((ROWS,), float("-inf"), tl.float32)  # largest score of each row so far, in units of log2
    total = tl.zeros((ROWS,), tl.float32)
    if HAS_LEARNED_SINKS:
        if split == 0:  # the first part counts the token without a value
            top = tl.load(learned_sinks + head) * 1.4426950408889634  # log2(e)
            total += 1.0
    mixed = tl.zeros((ROWS, PADDED_DIM), tl.float32)
    for number in range(start, tl.minimum(start + part, num_tiles)):
        key_tile = number
        if WINDOW:
            key_tile = tl.where(number < SINK_TILES, number, number - SINK_TILES + first_tile)
        key = key_tile * KEYS + tl.arange(0, KEYS)
        is_key = key < end
        if WINDOW:
            is_key &= (key > first_position - WINDOW) | (key < SINKS)
        block = tl.load(table + key // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
        vector = (block * BLOCK_SIZE + key % BLOCK_SIZE) * KV_HEADS + kv_head
        places = (vector * DIM)[:, None] + dims[None, :]
        is_loaded = is_key[:, None] & (dims < DIM)[None, :]

        tile_keys = decoded(tl.load(keys + places, mask=is_loaded, other=0), ENCODING, queries.dtype)
        scores = tl.dot(queries, tl.trans(tile_keys), input_precision="tf32x3") * scale
        if LOOKS_APART:
            if key_tile < SINK_TILES:
                place = (row * HEADS + head) * DIM
                apart = tl.load(towards_sinks + place[:, None] + dims[None, :], mask=is_row, other=0.0)
                apart_scores = tl.dot(apart, tl.trans(tile_keys), input_precision="tf32x3") * scale
                scores = tl.where((key < SINKS)[None, :], apart_scores, scores)
        if ENCODING:
            scores *= code_scales(key_scales, vector, is_key, ENCODING)[None, :]
        if SOFT_CAP > 0:  # SOFT_CAP · tanh(scores / SOFT_CAP), without overflow
            shrunk = tl.exp2(tl.abs(scores) * (-2.0 * 1.4426950408889634 / SOFT_CAP))
            bounded = SOFT_CAP * (1.0 - shrunk) / (1.0 + shrunk)
            scores = tl.where(scores < 0.0, -bounded, bounded)
        is_seen = is_key[None, :] & (key[None, :] <= position[:, None])
        if WINDOW:
            is_seen &= (key[None, :] > position[:, None] - WINDOW) | (key < SINKS)[None, :]
        scores = tl.where(is_seen, scores, float("-inf"))

        new_top = tl.maximum(top, tl.max(scores, axis=1))
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)  # a row that has seen nothing yet
        shares = tl.exp2(scores - shift[:, None])
        fade = tl.exp2(top - shift)
        total = total * fade + tl.sum(shares, axis=1)
        tile_values = decoded(tl.load(values + places, mask=is_loaded, other=0), ENCODING, queries.dtype)
        if ENCODING:
            value_scale = code_scales(value_scales, vector, is_key, ENCODING)
            if queries.dtype == tl.float16:  # in which a product of a small share and a small scale is 0
                tile_values = (tile_values.to(tl.float32) * value_scale[:, None]).to(tl.float16)
            else:
                shares *= value_scale[None, :]
        mixed = mixed * fade[:, None] + tl.dot(shares.to(tile_values.dtype), tile_values, input_precision="tf32x3")
        top = new_top

    total = tl.where(total == 0.0, 1.0, total)  # a part without keys has the weight 2^-inf
    result = mixed / total[:, None]
    place = (row * HEADS + head) * SPLITS + split
    tl.store(out + place[:, None] * DIM + dims[None, :], result.to(out.dtype.element_ty), mask=is_row)
    if SPLITS > 1:
        tl.store(weights + place, top + tl.log2(total), mask=token < count)


@triton.jit
def _combine(
    out, parts, weights, tiles,
    HEADS: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr, SPLITS: tl.constexpr,
    HAS_EMPTY_TILES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    await_inputs(EARLY)
    if HAS_EMPTY_TILES:
        if tl.load(tiles + 4 * tl.program_id(0) + 1) == 0:
            return
    head = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    split, dims = tl.arange(0, SPLITS), tl.arange(0, PADDED_DIM)
    weight = tl.load(weights + head * SPLITS + split)
    weight = tl.exp2(weight - tl.max(weight, axis=0))
    places = (head * SPLITS + split)[:, None] * DIM + dims[None, :]
    part = tl.load(parts + places, mask=(dims < DIM)[None, :], other=0.0)
    mixed = tl.sum(part * weight[:, None], axis=0) / tl.sum(weight, axis=0)
    tl.store(out + head * DIM + dims, mixed.to(out.dtype.element_ty), mask=dims < DIM)
