"""Attention over the paged cache as Triton kernels: one that stores new tokens, one that attends, one that combines.

`_attend` is FlashAttention-2 (arXiv 2307.08691) over block tables (PagedAttention, arXiv 2309.06180). A program takes a
tile of consecutive new tokens of one sequence, with all query heads of one key/value head as further rows of the tile,
so that each key is read once for the whole group. The keys of a tile may be split among several programs
(Flash-Decoding), and `_combine` weighs their results. The host lists which program takes which keys of which tile (as
FlashInfer plans its work, arXiv 2501.01005): rows of very different lengths, and a short chunk behind a long cache,
then keep the whole GPU busy, and a graph's grid still fits every step. All heads of a part run side by side, the
longest parts first.

Codes of a quantised cache become numbers in registers. The scale of a key multiplies its scores and that of a value its
shares, which are fewer than the elements of either. Codes of values are read two at a time, so that even and odd
elements are summed apart. Keys and values that no query of the tile sees are not loaded but replaced by 0: the
unwritten tail of a block, or a block that another sequence has left, may hold NaN, and 0 · NaN would spread. Import
this module only where `has_triton` is true, or under Triton's interpreter.
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

from bakeoff.reference_engine.kernels.cache_codes import (
    code_scales,
    decoded,
    decoded_halves,
    encoding_of,
    rescaled,
)
from bakeoff.reference_engine.kernels.code_words import has_pairs
from bakeoff.reference_engine.kernels.early_start import await_inputs, early_start
from bakeoff.reference_engine.kernels.operands import require_packed, require_rows
from bakeoff.reference_engine.kernels.scoring import Scoring
from bakeoff.reference_engine.kv_cache.block_table import Visible

MAX_DIM = 256
"""Elements of the longest head that fits into registers and shared memory."""

_MIN_ROWS = 16  # of a tile; tl.dot takes no fewer
_CHUNK_ROWS = 128
_SHORT_STEP = 64
"""Tokens of a step up to which tiles of chunks have half the rows: few chunks would fill more."""
_INVARIANT_ROWS = 64  # of a tile of decodes and chunks alike; tensor cores of a Hopper GPU take no fewer at full speed
_LONG_HEAD_BYTES = 256
_KEY_TILE_BYTES = 16 << 10  # of keys, and as many of values, in shared memory for each pipeline stage
_MAX_KEYS = 64
# Stages of the loop over keys, of which loads of block numbers take half: two key tiles of chunks are in flight, one of
# decodes, and two where their keys are codes.
_CHUNK_STAGES, _DECODE_STAGES, _CODED_DECODE_STAGES = 5, 4, 5
_WARPS, _CODED_DECODE_WARPS = 4, 2  # of tiles with few rows; fewer in bfloat16 only, of which two keep all in registers
_MULTIPROCESSORS = 132  # of an H100 or H200
_PROGRAMS = 3 * _MULTIPROCESSORS  # that share the keys of decodes; also bounds the extra parts of chunks
_MOST_SPLITS, _MOST_SPLITS_OF_FEW_HEADS = 32, 64  # parts of the keys of a tile
_LEAST_KEYS = _MAX_KEYS  # of a part of a decode's keys: one tile
_UNEVEN = 1.6
"""No decode is split if the longest has at most so many shares: waiting for it takes less time than combining parts."""
_TRIED_SPLITS = np.array([1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64])  # of the longest tile of a step's chunks
_RESULT_KEYS = 0.6
"""Keys of a tile whose attention takes as long as weighing one result of one token: 16 of 26 ns on an H200."""
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


class QueryShape(NamedTuple):
    """Of a layer's queries.

    Attributes:
        group: query heads of each key/value head.
        dim: elements of a head.
        element_size: bytes of an element.
    """

    group: int
    dim: int
    element_size: int

    @classmethod
    def of(cls, query: torch.Tensor, keys: torch.Tensor) -> "QueryShape":
        """Of queries [tokens, heads, dim] over a cache [num_blocks, block_size, kv_heads, dim]."""
        return cls(query.shape[1] // keys.shape[2], query.shape[2], query.element_size())


def tokens_per_tile(step_tokens: int, queries: QueryShape, *, batch_invariant: bool = False) -> int:
    """Maximum tokens in a tile of a chunk in a step of `step_tokens` tokens."""
    return max(1, (_INVARIANT_ROWS if batch_invariant else _chunk_rows(step_tokens, queries)) // queries.group)


def _chunk_rows(step_tokens: int, queries: QueryShape) -> int:
    """Query rows of a tile: fewer where heads are long, so that queries and sums still fit into registers."""
    is_long = triton.next_power_of_2(queries.dim) * queries.element_size > _LONG_HEAD_BYTES
    return _CHUNK_ROWS // 2 if is_long or step_tokens <= _SHORT_STEP else _CHUNK_ROWS


def programs_at_a_time(step_tokens: int, queries: QueryShape) -> int:
    """Programs of chunks that a GPU runs at a time: two on a multiprocessor if they have half of the largest tile."""
    tile_bytes = _chunk_rows(step_tokens, queries) * triton.next_power_of_2(queries.dim) * queries.element_size
    return _MULTIPROCESSORS * (2 if 2 * tile_bytes <= _CHUNK_ROWS * _LONG_HEAD_BYTES else 1)


def _most_splits(kv_heads: int) -> int:
    """Most parts of the keys of a tile, a power of 2: one sequence with few heads should occupy half of the GPU."""
    return _MOST_SPLITS if kv_heads > 2 else _MOST_SPLITS_OF_FEW_HEADS


def most_extra_parts(kv_heads: int, tiles: int) -> int:
    """The most parts, beyond one for each of so many tiles, that `decode_splits` and `chunk_splits` make."""
    return min(-(-_PROGRAMS // kv_heads), tiles * (_most_splits(kv_heads) - 1))


def decode_splits(keys: NDArray[np.int64], kv_heads: int) -> NDArray[np.int64]:
    """Parts of the keys of each decode of a step, of at most a share each where so many parts are allowed.

    A share is what each of `_PROGRAMS` would have, in whole tiles of keys. None is split where all have about one.

    Args:
        keys: that each token sees, [decodes].
        kv_heads: of a layer.
    """
    share = _LEAST_KEYS * max(1, -(-int(keys.sum()) * kv_heads // (_PROGRAMS * _LEAST_KEYS)))
    if keys.max(initial=0) <= _UNEVEN * share:
        return np.ones_like(keys)
    return np.minimum(-(-keys // share), _most_splits(kv_heads))


def chunk_splits(
    keys: NDArray[np.int64], tokens: NDArray[np.int64], kv_heads: int, programs_at_a_time: int
) -> NDArray[np.int64]:
    """Parts of the keys of each tile of a step's chunks, by the number of parts that is estimated to end earliest.

    The estimate is the time of the longest part, or of one mean part in each round of programs if that is longer, and
    the time to weigh the results.

    Args:
        keys: that each tile sees, [tiles].
        tokens: of each tile.
        kv_heads: of a layer.
        programs_at_a_time: that a GPU runs.
    """
    if not len(keys):
        return np.ones(0, np.int64)
    tried = _TRIED_SPLITS[_TRIED_SPLITS <= _most_splits(kv_heads)]  # noqa: SIM300
    splits = -(-keys // -(-keys.max() // tried)[:, None])  # [tried, tiles]
    parts = splits.sum(axis=1)
    rounds = -(-parts * kv_heads // programs_at_a_time)
    longest = (keys / splits).max(axis=1)
    results = ((splits > 1) * splits * tokens).sum(axis=1)
    durations = np.maximum(longest, rounds * keys.sum() / parts) + _RESULT_KEYS * results
    durations[parts - len(keys) > most_extra_parts(kv_heads, len(keys))] = np.inf
    return splits[durations.argmin()]


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


class AttentionWork(NamedTuple):
    """Decodes, or chunks of several tokens, as work for programs; padding has no tokens and no parts.

    Attributes:
        parts: int32 [parts, 8], each a tile of tokens and a part of its keys: first row, tokens (at most
            `tokens_per_tile`, one of decodes), position of the first one, where in `tables` the sequence's blocks
            begin, the number of this part, how many parts the tile's keys have, the place of the first token's result
            where they have several, and 0.
        rows: int32 [rows, 4], each a token whose keys have several parts: row of the step, place of the first part's
            result, how many parts there are, and 0. The result of the next part is as many places behind as a tile
            has tokens at most.
        num_places: of results; 0 if no tile's keys have several parts.
    """

    parts: torch.Tensor
    rows: torch.Tensor
    num_places: int


def attend_chunks(
    out: torch.Tensor,
    query: torch.Tensor,
    cache: PagedCache,
    work: AttentionWork,
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
        work: which program attends to what.
        tables: int32, the block tables of all sequences one after the other.
        scoring: from products of queries and keys to weights.
        visible: what each token sees.
        towards_sinks: contiguous [tokens, heads, dim], multiplied by the keys of sinks; None for `query`.
    """
    queries = QueryShape.of(query, cache.keys)
    rows, step = _chunk_rows(len(query), queries), tokens_per_tile(len(query), queries)
    _launch(out, query, towards_sinks, cache, work, tables, scoring, visible, rows=rows, step=step)


def attend_decodes(
    out: torch.Tensor,
    query: torch.Tensor,
    cache: PagedCache,
    work: AttentionWork,
    tables: torch.Tensor,
    *,
    scoring: Scoring,
    visible: Visible,
    towards_sinks: torch.Tensor | None = None,
) -> None:
    """The same for tokens that are the one new token of their sequence."""
    _launch(out, query, towards_sinks, cache, work, tables, scoring, visible, rows=_MIN_ROWS, step=1)


def attend_invariantly(
    out: torch.Tensor,
    query: torch.Tensor,
    cache: PagedCache,
    work: AttentionWork,
    tables: torch.Tensor,
    *,
    scoring: Scoring,
    visible: Visible,
    towards_sinks: torch.Tensor | None = None,
) -> None:
    """The same for decodes and chunks, with a token's bits depending only on the tokens that it sees.

    One tile shape serves all, and tiles of keys begin at multiples of their size. Tiles that only other tokens see add
    zeros. No tile's keys have several parts.
    """
    _launch(
        out, query, towards_sinks, cache, work, tables, scoring, visible, rows=_INVARIANT_ROWS, step=1,
        batch_invariant=True,
    )  # fmt: skip


def _launch(
    out: torch.Tensor,
    query: torch.Tensor,
    towards_sinks: torch.Tensor | None,
    cache: PagedCache,
    work: AttentionWork,
    tables: torch.Tensor,
    scoring: Scoring,
    visible: Visible,
    *,
    rows: int,
    step: int,
    batch_invariant: bool = False,
) -> None:
    """Attends, and combines the results of parts, `step` places apart, of tiles of at least `rows` rows."""
    keys, values, key_scales, value_scales = cache
    parts, listed_rows, num_places = work
    require_packed(keys.dtype, keys, values)
    require_packed(torch.bfloat16, key_scales, value_scales)
    require_rows(None, query)
    require_packed(None, out)
    require_packed(torch.int32, parts, listed_rows, tables)
    require_packed(torch.float32, scoring.sinks)
    require_packed(query.dtype, towards_sinks)
    block_size, kv_heads, dim = keys.shape[1:]
    heads = query.shape[1]
    group = heads // kv_heads
    rows = max(rows, triton.next_power_of_2(group))
    encoding = encoding_of(keys)
    padded_dim = max(32 if encoding else 16, triton.next_power_of_2(dim))
    tile_keys = min(_MAX_KEYS, max(16, _KEY_TILE_BYTES // (padded_dim * query.element_size())))
    mixed = weights = out
    if num_places:
        mixed = torch.empty(num_places, heads, dim, dtype=torch.float32, device=query.device)
        weights = torch.empty(num_places, heads, dtype=torch.float32, device=query.device)
    stages, warps = _CHUNK_STAGES, 8 if rows > 64 else _WARPS
    if rows == _MIN_ROWS:
        is_narrow = encoding and query.dtype == torch.bfloat16
        stages, warps = (_CODED_DECODE_STAGES, _CODED_DECODE_WARPS) if is_narrow else (_DECODE_STAGES, _WARPS)
    early = early_start(query, None if batch_invariant else query.shape[0])
    _attend[(parts.shape[0] * kv_heads,)](
        out, mixed, weights, query, query if towards_sinks is None else towards_sinks, keys,
        values.view(torch.uint16) if encoding else values,
        keys if key_scales is None else key_scales, values if value_scales is None else value_scales, parts, tables,
        query if scoring.sinks is None else scoring.sinks, query.stride(0), scoring.factor(dim) * _LOG2_E,
        HEADS=heads, KV_HEADS=kv_heads, GROUP=group, DIM=dim, PADDED_DIM=padded_dim, BLOCK_SIZE=block_size,
        WINDOW=visible.window or 0, SINKS=visible.sinks, ROWS=rows, KEYS=tile_keys, STEP=step,
        HAS_RESULTS=num_places > 0, SOFT_CAP=(scoring.soft_cap or 0.0) * _LOG2_E,
        HAS_LEARNED_SINKS=scoring.sinks is not None, LOOKS_APART=towards_sinks is not None,
        ENCODING=encoding, IN_PAIRS=has_pairs(query.device), num_warps=warps, num_stages=stages, **early,
    )  # fmt: skip
    if num_places:
        _combine[(listed_rows.shape[0], heads)](
            out, mixed, weights, listed_rows, HEADS=heads, DIM=dim, PADDED_DIM=padded_dim,
            SPLITS=_most_splits(kv_heads), STEP=step, num_warps=2, **early,
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
    out, mixed_parts, weights, query, towards_sinks, keys, values, key_scales, value_scales, parts, tables,
    learned_sinks, query_stride, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, SINKS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    STEP: tl.constexpr, HAS_RESULTS: tl.constexpr,
    SOFT_CAP: tl.constexpr, HAS_LEARNED_SINKS: tl.constexpr, LOOKS_APART: tl.constexpr,
    ENCODING: tl.constexpr, IN_PAIRS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    await_inputs(EARLY)
    kv_head = tl.program_id(0) % KV_HEADS
    part = parts + 8 * (tl.program_id(0) // KV_HEADS)
    first_row, count = tl.load(part), tl.load(part + 1)
    if count == 0:
        return
    first_position, table = tl.load(part + 2), tables + tl.load(part + 3)
    split, splits, first_place = tl.load(part + 4), tl.load(part + 5), tl.load(part + 6)

    # Row r of the tile is query head r % GROUP of token r // GROUP.
    token = tl.arange(0, ROWS) // GROUP
    head = kv_head * GROUP + tl.arange(0, ROWS) % GROUP
    position = first_position + token
    dims = tl.arange(0, PADDED_DIM)
    is_row = (token < count)[:, None] & (dims < DIM)[None, :]
    row = (first_row + token).to(tl.int64)
    queries = tl.load(query + (row * query_stride + head * DIM)[:, None] + dims[None, :], mask=is_row, other=0.0)
    queries = rescaled(queries, ENCODING, queries.dtype)

    # Tiles of keys: those with sinks, then those from the first token's window to the last token.
    end = first_position + count
    SINK_TILES: tl.constexpr = (SINKS + KEYS - 1) // KEYS if WINDOW else 0
    first_tile = SINK_TILES
    if WINDOW:
        first_tile = tl.maximum(SINK_TILES, (first_position - WINDOW + 1) // KEYS)
    num_tiles = SINK_TILES + tl.cdiv(end, KEYS) - first_tile
    share = tl.cdiv(num_tiles, splits)
    start = split * share

    top = tl.full((ROWS,), float("-inf"), tl.float32)  # largest score of each row so far, in units of log2
    total = tl.zeros((ROWS,), tl.float32)
    if HAS_LEARNED_SINKS:
        if split == 0:  # the first part counts the token without a value
            top = tl.load(learned_sinks + head) * 1.4426950408889634  # log2(e)
            total += 1.0
    VALUES: tl.constexpr = 2 if ENCODING else 1  # elements of a value in an element of `values`
    value_dims = tl.arange(0, PADDED_DIM // VALUES)
    mixed = tl.zeros((ROWS, PADDED_DIM // VALUES), tl.float32)
    odd_mixed = mixed
    for number in range(start, tl.minimum(start + share, num_tiles)):
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

        tile_keys = decoded(tl.load(keys + places, mask=is_loaded, other=0), ENCODING, queries.dtype, IN_PAIRS)
        scores = tl.dot(queries, tl.trans(tile_keys), input_precision="tf32x3") * scale
        if LOOKS_APART:
            if key_tile < SINK_TILES:
                place = (row * HEADS + head) * DIM
                apart = tl.load(towards_sinks + place[:, None] + dims[None, :], mask=is_row, other=0.0)
                apart = rescaled(apart, ENCODING, apart.dtype)
                apart_scores = tl.dot(apart, tl.trans(tile_keys), input_precision="tf32x3") * scale
                scores = tl.where((key < SINKS)[None, :], apart_scores, scores)
        if ENCODING:
            scores *= code_scales(key_scales, vector, is_key, ENCODING, queries.dtype)[None, :]
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
        value_places = (vector * (DIM // VALUES))[:, None] + value_dims[None, :]
        is_loaded = is_key[:, None] & (value_dims < DIM // VALUES)[None, :]
        tile_values = tl.load(values + value_places, mask=is_loaded, other=0)
        if ENCODING:
            tile_values, odd_values = decoded_halves(tile_values, ENCODING, queries.dtype, IN_PAIRS)
            value_scale = code_scales(value_scales, vector, is_key, ENCODING, queries.dtype)
            if queries.dtype == tl.float16:  # in which a product of a small share and a small scale is 0
                tile_values = (tile_values.to(tl.float32) * value_scale[:, None]).to(tl.float16)
                odd_values = (odd_values.to(tl.float32) * value_scale[:, None]).to(tl.float16)
            else:
                shares *= value_scale[None, :]
            odd_mixed *= fade[:, None]
            odd_mixed += tl.dot(shares.to(odd_values.dtype), odd_values, input_precision="tf32x3")
        mixed = mixed * fade[:, None] + tl.dot(shares.to(tile_values.dtype), tile_values, input_precision="tf32x3")
        top = new_top

    total = tl.where(total == 0.0, 1.0, total)  # a part without keys has the weight 2^-inf
    if ENCODING:
        mixed = rescaled(tl.interleave(mixed, odd_mixed), ENCODING, queries.dtype)
    result = mixed / total[:, None]
    if HAS_RESULTS and splits > 1:
        vector = (first_place + split * STEP + token).to(tl.int64) * HEADS + head
        tl.store(mixed_parts + vector[:, None] * DIM + dims[None, :], result, mask=is_row)
        tl.store(weights + vector, top + tl.log2(total), mask=token < count)
    else:
        vector = row * HEADS + head
        tl.store(out + vector[:, None] * DIM + dims[None, :], result.to(out.dtype.element_ty), mask=is_row)


@triton.jit
def _combine(
    out, mixed_parts, weights, rows,
    HEADS: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr, SPLITS: tl.constexpr, STEP: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    await_inputs(EARLY)
    listed, head = rows + 4 * tl.program_id(0), tl.program_id(1)
    row, first, splits = tl.load(listed), tl.load(listed + 1), tl.load(listed + 2)
    if splits == 0:
        return
    split, dims = tl.arange(0, SPLITS), tl.arange(0, PADDED_DIM)
    is_part = split < splits
    vector = (first + split * STEP).to(tl.int64) * HEADS + head
    weight = tl.load(weights + vector, mask=is_part, other=float("-inf"))
    weight = tl.exp2(weight - tl.max(weight, axis=0))
    is_loaded = is_part[:, None] & (dims < DIM)[None, :]
    part = tl.load(mixed_parts + vector[:, None] * DIM + dims[None, :], mask=is_loaded, other=0.0)
    mixed = tl.sum(part * weight[:, None], axis=0) / tl.sum(weight, axis=0)
    tl.store(out + (row.to(tl.int64) * HEADS + head) * DIM + dims, mixed.to(out.dtype.element_ty), mask=dims < DIM)
