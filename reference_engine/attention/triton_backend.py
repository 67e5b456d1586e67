"""Paged attention on a GPU with Triton kernels, which read the cache in place."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bakeoff.reference_engine.attention.base import LONG_CHUNK, Span
from bakeoff.reference_engine.attention.span_arrays import SpanArrays, WorkLists, listed_parts, to_device
from bakeoff.reference_engine.kernels.cache_codes import store_codes
from bakeoff.reference_engine.kernels.paged_attention import (
    MAX_DIM,
    AttentionWork,
    PagedCache,
    QueryShape,
    attend_chunks,
    attend_decodes,
    attend_invariantly,
    chunk_splits,
    decode_splits,
    most_extra_parts,
    programs_at_a_time,
    store_tokens,
    tokens_per_tile,
)
from bakeoff.reference_engine.kernels.scoring import PLAIN, Scoring
from bakeoff.reference_engine.kv_cache.block_table import Visible
from bakeoff.reference_engine.kv_cache.layout import CacheLayout
from bakeoff.reference_engine.kv_cache.quantised import Fp8, Int8, QuantisedStore
from bakeoff.reference_engine.kv_cache.storage import KvStorage, LayerStore, PlainStore

_MOST_PAST = 0.6  # of a sequence that is computed as a whole, which is about twice as fast as `attend_chunks`
_LENGTH_STEP = 256  # prompts are padded to multiples: cuDNN plans each length anew, in 50 ms
_PAST_STEP, _MOST_PIECE = 1024, 16_384
"""Tokens before a chunk are attended in pieces of the first number doubled some times, at most the second."""
_SDPA_BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,  # 531 TFLOP/s at 4,096 tokens on an H200, flash attention 274
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
_SDPA_DTYPES = (torch.bfloat16, torch.float16)
_CUDNN_DIM = 128  # elements of the longest head
_DIM_STEP = 8  # elements; heads then begin at multiples of 16 bytes


def has_cudnn_attention(storage: KvStorage) -> bool:
    """Whether `_cudnn_attention` supports the heads and the device of a storage."""
    is_short = all(layer.key_dim <= _CUDNN_DIM for layer in storage.layout.layers)
    return is_short and storage.device.type == "cuda" and torch.cuda.get_device_capability(storage.device) >= (9, 0)


def suits_triton(storage: KvStorage) -> bool:
    """Whether the kernels support the stores and heads of a storage."""
    return all(map(_is_read, storage.stores)) and has_suitable_heads(storage.layout)


def _is_read(store: LayerStore) -> bool:
    is_quantised = isinstance(store, QuantisedStore) and isinstance(store.codec, Int8 | Fp8)
    return is_quantised or isinstance(store, PlainStore)


def has_suitable_heads(layout: CacheLayout) -> bool:
    """Whether the kernels support the heads of a layout."""
    return all(
        layer.key_dim == layer.value_dim <= MAX_DIM and layer.key_dim % _DIM_STEP == 0 and not layer.value_in_key
        for layer in layout.layers
    )


class GroupInputs(NamedTuple):
    """Inputs of the kernels of a group's layers in one step, on the device.

    Attributes:
        slots: int32 [tokens], see `store_tokens`.
        decodes: the attention of the step's first rows.
    """

    slots: torch.Tensor
    decodes: AttentionWork


class TritonAttention:
    """An `AttentionBackend` over a storage that `suits_triton`.

    Args:
        storage: the cache.
        batch_invariant: whether a token's bits must depend only on the tokens that it sees.
    """

    def __init__(self, storage: KvStorage, *, batch_invariant: bool = False) -> None:
        self.storage, self.batch_invariant = storage, batch_invariant
        layout = storage.layout
        # Of a group; where its layers have different numbers, the largest makes the fewest parts.
        self._kv_heads = [
            max((layer.num_kv_heads for layer in layout.layers if layer.visible == visible), default=1)
            for visible in layout.groups
        ]
        self._may_be_dense = not batch_invariant

    def begin_step(self, spans: Sequence[Span]) -> "TritonStep":
        """One-token spans before the first longer one are decoded together."""
        storage, arrays = self.storage, self.arrays(spans)
        num_decodes = arrays.num_decodes
        works = self.decode_works(arrays)
        lists = [part for group, work in enumerate(works) for part in (arrays.slots(group), work.parts, work.rows)]
        tables, *staged = to_device([arrays.tables, *lists], storage.device)
        groups = [
            GroupInputs(slots, AttentionWork(parts, rows, work.num_places))
            for slots, parts, rows, work in zip(staged[::3], staged[1::3], staged[2::3], works, strict=True)
        ]
        chunks = None
        if num_decodes < len(spans):
            chunks = Chunks(arrays, num_decodes, self, may_be_dense=self._may_be_dense)
        return self.step(groups, tables, chunks)

    def arrays(self, spans: Sequence[Span]) -> SpanArrays:
        """Spans over this cache in the form that the kernels read."""
        return SpanArrays(spans, len(self.storage.layout.groups), self.storage.block_size)

    def decode_works(self, arrays: SpanArrays) -> list[WorkLists]:
        """The attention of the one-token spans before the first longer one, in the layers of each group."""
        return [self._decode_work(arrays, group) for group in range(len(self.storage.layout.groups))]

    def _decode_work(self, arrays: SpanArrays, group: int) -> WorkLists:
        tiles = arrays.tiles(group, slice(arrays.num_decodes), 1)
        keys = self._keys(tiles, group)
        splits = np.ones_like(keys) if self.batch_invariant else decode_splits(keys, self._kv_heads[group])
        return listed_parts(tiles, keys, splits, 1)

    def chunk_work(
        self, arrays: SpanArrays, group: int, spans: slice | NDArray[np.int64], step_tokens: int, queries: QueryShape
    ) -> WorkLists:
        """The attention of some longer spans.

        Args:
            arrays: all spans.
            group: of the layers.
            spans: the chunks.
            step_tokens: of the step, with padding.
            queries: of the layers.
        """
        tokens = self.tokens_per_tile(step_tokens, queries)
        tiles = arrays.tiles(group, spans, tokens)
        keys = self._keys(tiles, group)
        splits = np.ones_like(keys)
        if not self.batch_invariant:
            counts, at_a_time = tiles[:, 1].astype(np.int64), programs_at_a_time(step_tokens, queries)
            splits = chunk_splits(keys, counts, self._kv_heads[group], at_a_time)
        return listed_parts(tiles, keys, splits, tokens)

    def _keys(self, tiles: NDArray[np.int32], group: int) -> NDArray[np.int64]:
        """That the tokens of each tile see together."""
        visible, keys = self.storage.layout.groups[group], tiles[:, 1:3].sum(axis=1, dtype=np.int64)
        if visible.window is None:
            return keys
        return np.minimum(keys, visible.window + tiles[:, 1] - 1 + visible.sinks)

    def tokens_per_tile(self, step_tokens: int, queries: QueryShape) -> int:
        """Maximum tokens in a tile of a chunk in a step of `step_tokens` tokens."""
        return tokens_per_tile(step_tokens, queries, batch_invariant=self.batch_invariant)

    def most_extra_parts(self, group: int, tiles: int) -> int:
        """The most parts, beyond one for each of so many tiles, that the work of a step has."""
        return 0 if self.batch_invariant else most_extra_parts(self._kv_heads[group], tiles)

    def step(
        self,
        groups: Sequence[GroupInputs],
        tables: torch.Tensor,
        chunks: "StepChunks | None" = None,
        *,
        is_padded: bool = False,
    ) -> "TritonStep":
        """A step whose inputs are on the device.

        Args:
            groups: inputs of each group's layers.
            tables: int32, the block tables that the tiles point into.
            chunks: the spans that are not decodes; None where all are.
            is_padded: whether there may be tokens without a tile; their results are 0.
        """
        return TritonStep(
            self.storage, groups, tables, chunks, is_padded=is_padded, batch_invariant=self.batch_invariant
        )


class _Options(TypedDict):
    """Arguments that the kernels of decodes and chunks share."""

    scoring: Scoring
    visible: Visible
    towards_sinks: torch.Tensor | None


class TritonStep:
    """One step of `TritonAttention`; see `TritonAttention.step`."""

    def __init__(
        self,
        storage: KvStorage,
        groups: Sequence[GroupInputs],
        tables: torch.Tensor,
        chunks: "StepChunks | None",
        *,
        is_padded: bool,
        batch_invariant: bool,
    ) -> None:
        self._storage, self._groups, self._tables, self._chunks = storage, groups, tables, chunks
        self._is_padded = is_padded
        self._attend_decodes = attend_invariantly if batch_invariant else attend_decodes
        self._attend_chunks = attend_invariantly if batch_invariant else attend_chunks

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        scoring: Scoring = PLAIN,
        *,
        towards_sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        storage, group = self._storage, self._storage.group_of[layer]
        visible, inputs = storage.layout.groups[group], self._groups[group]
        cache = _cache_of(storage.stores[layer])
        is_plain = scoring.is_plain and towards_sinks is None
        how = _Options(scoring=scoring, visible=visible, towards_sinks=towards_sinks)
        dense = list[tuple[slice, torch.Tensor]]()
        if key is not None and value is not None:
            _store(cache, key, value, inputs.slots)
            for chunks in self._chunks.dense(group) if self._chunks and is_plain else ():
                rows = chunks.rows
                fresh = query[rows], key[rows], value[rows]
                dense.append((rows, _attend_dense(fresh, chunks, storage.stores[layer], scoring.scale)))
        if len(dense) == 1 and len(dense[0][1]) == len(query):
            return dense[0][1].flatten(1)
        out = (query.new_zeros if self._is_padded else query.new_empty)(query.shape)
        for rows, attended in dense:
            out[rows] = attended
        if len(inputs.decodes.parts):
            self._attend_decodes(out, query, cache, inputs.decodes, self._tables, **how)
        if self._chunks is not None:
            queries = QueryShape.of(query, cache.keys)
            work = self._chunks.work(group, queries, with_dense=key is None or not is_plain)
            if len(work.parts):
                self._attend_chunks(out, query, cache, work, self._tables, **how)
        return out.flatten(1)


def _cache_of(store: LayerStore) -> PagedCache:
    """The cache tensors that the kernels read; quantised stores list codes and scales alternately."""
    if isinstance(store, PlainStore):
        return PagedCache(*store.parts)
    keys, key_scales, values, value_scales = store.parts
    return PagedCache(keys, values, key_scales, value_scales)


def _store(cache: PagedCache, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    if cache.key_scales is None or cache.value_scales is None:
        store_tokens(cache.keys, cache.values, key, value, slots)
    else:
        store_codes((cache.keys, cache.values, cache.key_scales, cache.value_scales), key, value, slots)


class StepChunks(Protocol):
    """The spans of a step that are not decodes, in the form that attention needs."""

    def dense(self, group: int) -> "Sequence[DenseChunks]": ...

    def work(self, group: int, queries: QueryShape, *, with_dense: bool) -> AttentionWork: ...


class Chunks:
    """The spans of a step that are not decodes.

    Args:
        arrays: all spans.
        first: number of the first chunk; all later spans are chunks.
        attention: over the cache.
        may_be_dense: whether `dense` may name any.
    """

    def __init__(self, arrays: SpanArrays, first: int, attention: TritonAttention, *, may_be_dense: bool) -> None:
        self._arrays, self._attention, self._storage = arrays, attention, attention.storage
        self._may_be_dense = may_be_dense and self._storage.dtype in _SDPA_DTYPES
        self._takes_past_apart = has_cudnn_attention(self._storage)
        self._numbers, self._num_tokens = np.arange(first, len(arrays.lengths)), int(arrays.lengths.sum())
        self._work: dict[tuple[int, QueryShape, bool], AttentionWork] = {}
        self._dense: dict[int, list[DenseChunks]] = {}

    def dense(self, group: int) -> "list[DenseChunks]":
        """The long chunks of sequences that fit into the window; without cuDNN, those with few earlier tokens."""
        if group not in self._dense:
            self._dense[group] = self._find_dense(group)
        return self._dense[group]

    def work(self, group: int, queries: QueryShape, *, with_dense: bool) -> AttentionWork:
        """What `attend_chunks` computes.

        Args:
            group: of the layer.
            queries: of the layer.
            with_dense: whether to include the chunks that `dense` returns.
        """
        key = (group, queries, with_dense)
        if key not in self._work:
            numbers = self._numbers
            if not with_dense:
                numbers = numbers[~self._is_dense(self._storage.layout.groups[group])]
            work = self._attention.chunk_work(self._arrays, group, numbers, self._num_tokens, queries)
            parts, rows = to_device([work.parts, work.rows], self._storage.device)
            self._work[key] = AttentionWork(parts, rows, work.num_places)
        return self._work[key]

    def _is_dense(self, visible: Visible) -> NDArray[np.bool_]:
        starts, lengths = self._arrays.starts[self._numbers], self._arrays.lengths[self._numbers]
        ends = starts + lengths
        most_past = 1.0 if self._takes_past_apart else _MOST_PAST
        is_dense = (lengths >= LONG_CHUNK) & (starts <= most_past * ends) & self._may_be_dense
        return is_dense if visible.window is None else is_dense & (ends <= visible.window)

    def _find_dense(self, group: int) -> "list[DenseChunks]":
        arrays, dense = self._arrays, list[DenseChunks]()
        last_length = 0  # of the chunks of `dense[-1]`, where they are not read from the cache
        for number in self._numbers[self._is_dense(self._storage.layout.groups[group])].tolist():
            row, start, length = (int(of[number]) for of in (arrays.rows, arrays.starts, arrays.lengths))
            is_read = start > 0 or not self._storage.is_plain  # new tokens are seen as they were rounded
            if not is_read and length == last_length and dense[-1].rows.stop == row:
                dense[-1] = DenseChunks(slice(dense[-1].rows.start, row + length), dense[-1].num_chunks + 1)
                continue
            blocks = None
            if is_read:
                blocks = arrays.blocks(group, number, start + length)
                missing = -(-_padded_length(start + length) // self._storage.block_size) - len(blocks)
                blocks = to_device([np.pad(blocks, (0, missing), "edge")], self._storage.device)[0]
            apart = start // _PAST_STEP * _PAST_STEP if self._takes_past_apart else 0
            dense.append(DenseChunks(slice(row, row + length), 1, start, blocks, apart))
            last_length = 0 if is_read else length
        return dense


class DenseChunks(NamedTuple):
    """Chunks of one length, in consecutive rows, whose whole sequences are attended at once.

    Attributes:
        rows: of the step.
        num_chunks: 1 if there are `blocks`.
        past_tokens: tokens of the sequence before the chunk.
        blocks: int32, those of the sequence, repeated up to its padded length; None if its keys and values are those
            of the step.
        apart: tokens of the past that all queries see, which are attended apart: of the others, before the chunk,
            queries are computed for nothing.
    """

    rows: slice
    num_chunks: int
    past_tokens: int = 0
    blocks: torch.Tensor | None = None
    apart: int = 0


def _attend_dense(
    fresh: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    chunks: DenseChunks,
    store: LayerStore,
    scale: float | None,
) -> torch.Tensor:
    """Causal attention of chunks to the tokens of their sequences.

    Args:
        fresh: queries [tokens, heads, dim], keys and values [tokens, kv_heads, dim], which are stored already.
        chunks: which tokens these are.
        store: of the layer.
        scale: see `Scoring`.

    Returns:
        As the queries.
    """
    query, key, value = fresh
    count, apart = chunks.num_chunks, chunks.apart
    length = len(query) // count
    front = chunks.past_tokens - apart
    end = front + length
    padded = _padded_length(end)
    queries = query.unflatten(0, (count, -1))
    if chunks.blocks is None:
        keys, values = (_padded(part.unflatten(0, (count, -1)), 0, padded) for part in (key, value))
        earlier = []
    else:
        (earlier_keys, keys), (earlier_values, values) = (
            part[None, : apart + padded].split([apart, padded], dim=1) for part in store.read(chunks.blocks)
        )
        for part in (keys, values):
            part[:, end:].zero_()  # no token sees what is there, but 0 · NaN is NaN
        pieces = _pieces(apart)
        earlier = zip(earlier_keys.split(pieces, dim=1), earlier_values.split(pieces, dim=1), strict=True)
    own = _padded(queries, front, padded).transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
    if not apart:
        with sdpa_kernel(_SDPA_BACKENDS, set_priority=True):
            attended = scaled_dot_product_attention(*own, is_causal=True, scale=scale, enable_gqa=True)
        return attended[:, :, front:end].transpose(1, 2).flatten(0, 1)
    mixed, weights = _cudnn_attention(*own, is_causal=True, scale=scale)
    parts = [(mixed[:, :, front:end], weights[:, :, front:end])]
    queries = _padded(queries, 0, _padded_length(length)).transpose(1, 2)
    for piece in earlier:
        mixed, weights = _cudnn_attention(
            queries, *(part.transpose(1, 2) for part in piece), is_causal=False, scale=scale
        )
        parts.append((mixed[:, :, :length], weights[:, :, :length]))
    shares = torch.stack([weights for _, weights in parts]).softmax(0)
    total = (parts[0][0] * shares[0]).transpose(1, 2)
    for (mixed, _), share in zip(parts[1:], shares[1:], strict=True):
        total.addcmul_(mixed.transpose(1, 2), share.transpose(1, 2))
    return total.flatten(0, 1).to(query.dtype)


def _cudnn_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_causal: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention [batch, heads, tokens, dim], and the logarithms of the sums of exponentials of the scores, float32."""
    mixed, weights, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(  # noqa: SLF001 (no public name)
        query, key, value, None, compute_log_sumexp=True, is_causal=is_causal, scale=scale
    )
    return mixed, weights


def _pieces(tokens: int) -> list[int]:
    """Few different lengths, because cuDNN plans each anew."""
    pieces = [_MOST_PIECE] * (tokens // _MOST_PIECE)
    size = _MOST_PIECE // 2
    while size >= _PAST_STEP:
        if tokens & size:
            pieces.append(size)
        size //= 2
    return pieces


def _padded_length(tokens: int) -> int:
    return tokens + -tokens % _LENGTH_STEP


def _padded(part: torch.Tensor, first: int, length: int) -> torch.Tensor:
    """Sequences [count, tokens, heads, dim] from place `first` of `length` on, zeros elsewhere; a view if it can be."""
    count, tokens, *rest = part.shape
    if tokens == length:
        return part
    whole = part.new_empty(count, length, *rest)
    whole[:, :first].zero_()
    whole[:, first : first + tokens].copy_(part)
    whole[:, first + tokens :].zero_()
    return whole
