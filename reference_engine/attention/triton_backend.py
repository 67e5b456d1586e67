"""Paged attention on a GPU with Triton kernels, which read the cache in place."""

import functools
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bakeoff.reference_engine.attention.base import Span
from bakeoff.reference_engine.attention.span_arrays import SpanArrays, to_device
from bakeoff.reference_engine.kernels.cache_codes import store_codes
from bakeoff.reference_engine.kernels.paged_attention import (
    MAX_DIM,
    SPLIT_FACTORS,
    PagedCache,
    attend_chunks,
    attend_decodes,
    attend_invariantly,
    split_factor,
    store_tokens,
    tokens_per_tile,
)
from bakeoff.reference_engine.kernels.scoring import PLAIN, Scoring
from bakeoff.reference_engine.kv_cache.block_table import Visible
from bakeoff.reference_engine.kv_cache.layout import CacheLayout
from bakeoff.reference_engine.kv_cache.quantised import Fp8, Int8, QuantisedStore
from bakeoff.reference_engine.kv_cache.storage import KvStorage, LayerStore, PlainStore

LONG_CHUNK = 1024
"""Tokens of a chunk from which cuDNN's kernel is faster, although it must be called once for each length."""
_MOST_PAST = 0.6  # of a sequence: cuDNN computes all of it, and is about twice as fast as `attend_chunks`
_LENGTH_STEP = 256  # prompts are padded to multiples: cuDNN plans each length anew
_SDPA_BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,  # 531 TFLOP/s at 4,096 tokens on an H200, flash attention 274
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
_SDPA_DTYPES = (torch.bfloat16, torch.float16)
_DIM_STEP = 8  # elements; heads then begin at multiples of 16 bytes


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
        decodes: int32 [decodes, 4], see `attend_decodes`; the first rows of the step.
    """

    slots: torch.Tensor
    decodes: torch.Tensor


class TritonAttention:
    """An `AttentionBackend` over a storage that `suits_triton`.

    Args:
        storage: the cache.
        batch_invariant: whether a token's bits must depend only on the tokens that it sees.
    """

    def __init__(self, storage: KvStorage, *, batch_invariant: bool = False) -> None:
        self.storage, self.batch_invariant = storage, batch_invariant
        # New tokens must be seen as they were rounded, too, which cuDNN's kernel cannot do.
        self._may_be_dense = not batch_invariant and storage.is_plain

    def begin_step(self, spans: Sequence[Span]) -> "TritonStep":
        """See `AttentionBackend.begin_step`; one-token spans before the first longer one are decoded together."""
        storage, arrays = self.storage, self.arrays(spans)
        num_decodes = arrays.num_decodes
        parts = [
            part
            for group in range(len(storage.layout.groups))
            for part in (arrays.slots(group), arrays.tiles(group, slice(num_decodes), 1))
        ]
        tables, *staged = to_device([arrays.tables, *parts], storage.device)
        groups = [GroupInputs(*pair) for pair in zip(staged[::2], staged[1::2], strict=True)]
        chunks = None
        if num_decodes < len(spans):
            chunks = Chunks(arrays, num_decodes, storage, may_be_dense=self._may_be_dense)
        return self.step(groups, tables, chunks, factor=self.split_factor(arrays.starts[:num_decodes]))

    def arrays(self, spans: Sequence[Span]) -> SpanArrays:
        """Spans over this cache in the form that the kernels read."""
        return SpanArrays(spans, len(self.storage.layout.groups), self.storage.block_size)

    @property
    def split_factors(self) -> Sequence[int]:
        """The values that `split_factor` may return."""
        return SPLIT_FACTORS[:1] if self.batch_invariant else SPLIT_FACTORS

    def split_factor(self, starts: NDArray[np.int64]) -> int:
        """Factor by which keys are split beyond the usual number, for decodes at these positions [decodes]."""
        if self.batch_invariant or not len(starts):
            return SPLIT_FACTORS[0]
        return split_factor(starts + 1, self.storage.layout.layers[0].num_kv_heads)

    def step(
        self,
        groups: Sequence[GroupInputs],
        tables: torch.Tensor,
        chunks: "StepChunks | None" = None,
        *,
        factor: int,
        is_padded: bool = False,
    ) -> "TritonStep":
        """A step whose inputs are on the device.

        Args:
            groups: inputs of each group's layers.
            tables: int32, the block tables that the tiles point into.
            chunks: the spans that are not decodes; None where all are.
            factor: see `split_factor`.
            is_padded: whether there may be tiles without tokens, and tokens without a tile; their results are 0.
        """
        return TritonStep(
            self.storage, groups, tables, chunks, factor, is_padded=is_padded, batch_invariant=self.batch_invariant
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
        factor: int,
        *,
        is_padded: bool,
        batch_invariant: bool,
    ) -> None:
        self._storage, self._groups, self._tables, self._chunks = storage, groups, tables, chunks
        self._is_padded, self._batch_invariant = is_padded, batch_invariant
        self._attend_decodes = (
            attend_invariantly
            if batch_invariant
            else functools.partial(attend_decodes, factor=factor, has_empty_tiles=is_padded)
        )
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
        """See `AttentionStep.attend`."""
        storage, group = self._storage, self._storage.group_of[layer]
        visible, inputs = storage.layout.groups[group], self._groups[group]
        cache = _cache_of(storage.stores[layer])
        is_plain = scoring.is_plain and towards_sinks is None
        how = _Options(scoring=scoring, visible=visible, towards_sinks=towards_sinks)
        out = (query.new_zeros if self._is_padded else query.new_empty)(query.shape)
        if key is not None and value is not None:
            _store(cache, key, value, inputs.slots)
            for dense in self._chunks.dense(group) if self._chunks and is_plain else ():
                rows = dense.rows
                past = None if dense.past is None else storage.stores[layer].read(dense.past)
                out[rows] = _attend_dense(query[rows], key[rows], value[rows], dense, past, scale=scoring.scale)
        if len(inputs.decodes):
            self._attend_decodes(out, query, cache, inputs.decodes, self._tables, **how)
        if self._chunks is not None:
            tokens = tokens_per_tile(query, cache.keys, batch_invariant=self._batch_invariant)
            tiles = self._chunks.tiles(group, tokens, with_dense=key is None or not is_plain)
            if len(tiles):
                self._attend_chunks(out, query, cache, tiles, self._tables, **how)
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

    def dense(self, group: int) -> "Sequence[DenseChunks]":
        """See `Chunks.dense`."""
        ...

    def tiles(self, group: int, tokens: int, *, with_dense: bool) -> torch.Tensor:
        """See `Chunks.tiles`."""
        ...


class Chunks:
    """The spans of a step that are not decodes.

    Args:
        arrays: all spans.
        first: number of the first chunk; all later spans are chunks.
        storage: the cache.
        may_be_dense: whether `dense` may name any.
    """

    def __init__(self, arrays: SpanArrays, first: int, storage: KvStorage, *, may_be_dense: bool) -> None:
        self._arrays, self._storage = arrays, storage
        self._may_be_dense = may_be_dense and storage.dtype in _SDPA_DTYPES
        self._numbers = np.arange(first, len(arrays.lengths))
        self._tiles: dict[tuple[int, int, bool], torch.Tensor] = {}
        self._dense: dict[int, list[DenseChunks]] = {}

    def dense(self, group: int) -> "list[DenseChunks]":
        """The long chunks of sequences that fit into the window and have few earlier tokens."""
        if group not in self._dense:
            self._dense[group] = self._find_dense(group)
        return self._dense[group]

    def tiles(self, group: int, tokens: int, *, with_dense: bool) -> torch.Tensor:
        """Tiles for `attend_chunks`.

        Args:
            group: of the layer.
            tokens: maximum number in a tile.
            with_dense: whether to include the chunks that `dense` returns.
        """
        key = (group, tokens, with_dense)
        if key not in self._tiles:
            numbers = self._numbers
            if not with_dense:
                numbers = numbers[~self._is_dense(self._storage.layout.groups[group])]
            # A chunk's last tile has the most keys; the longest work starts first.
            tiles = self._arrays.tiles(group, numbers, tokens)[::-1]
            self._tiles[key] = to_device([tiles], self._storage.device)[0]
        return self._tiles[key]

    def _is_dense(self, visible: Visible) -> NDArray[np.bool_]:
        starts, lengths = self._arrays.starts[self._numbers], self._arrays.lengths[self._numbers]
        ends = starts + lengths
        is_dense = (lengths >= LONG_CHUNK) & (starts <= _MOST_PAST * ends) & self._may_be_dense
        return is_dense if visible.window is None else is_dense & (ends <= visible.window)

    def _find_dense(self, group: int) -> "list[DenseChunks]":
        arrays, dense = self._arrays, list[DenseChunks]()
        last_length = 0  # of the chunks of `dense[-1]`, where they have no past
        for number in self._numbers[self._is_dense(self._storage.layout.groups[group])].tolist():
            row, start, length = (int(of[number]) for of in (arrays.rows, arrays.starts, arrays.lengths))
            if not start and length == last_length and dense[-1].rows.stop == row:
                dense[-1] = DenseChunks(slice(dense[-1].rows.start, row + length), dense[-1].num_chunks + 1)
                continue
            past = None
            if start:
                past = to_device([arrays.blocks(group, number, start)], self._storage.device)[0]
            dense.append(DenseChunks(slice(row, row + length), 1, start, past))
            last_length = 0 if start else length
        return dense


class DenseChunks(NamedTuple):
    """Chunks of one length, in consecutive rows, whose whole sequences are attended at once.

    Attributes:
        rows: of the step.
        num_chunks: 1 if there is a past.
        past_tokens: tokens of the sequence before the chunk.
        past: int32, the blocks of those tokens; None if there are none.
    """

    rows: slice
    num_chunks: int
    past_tokens: int = 0
    past: torch.Tensor | None = None


def _attend_dense(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    chunks: DenseChunks,
    past: tuple[torch.Tensor, torch.Tensor] | None,
    *,
    scale: float | None,
) -> torch.Tensor:
    """Causal attention of sequences to themselves; tokens before a chunk have keys but no queries.

    Args:
        query: [tokens, heads, dim].
        key: [tokens, kv_heads, dim].
        value: the same.
        chunks: which tokens these are.
        past: keys and values [past tokens or more, kv_heads, dim] before them.
        scale: see `Scoring`.

    Returns:
        As `query`.
    """
    first, count = chunks.past_tokens, chunks.num_chunks
    length = len(query) // count
    behind = -(first + length) % _LENGTH_STEP  # behind all tokens, where none of them sees it
    parts = [part.unflatten(0, (count, -1)) for part in (query, key, value)]
    if first or behind:
        earlier = (None, None) if past is None else past
        in_front = [
            query.new_zeros(count, first, *query.shape[1:]),
            *(part if part is None else part[None, :first] for part in earlier),
        ]
        parts = [_extended(part, front, behind) for part, front in zip(parts, in_front, strict=True)]
    query, key, value = (part.transpose(1, 2) for part in parts)
    with sdpa_kernel(_SDPA_BACKENDS, set_priority=True):
        attended = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
    return attended[:, :, first : first + length].transpose(1, 2).flatten(0, 1)


def _extended(part: torch.Tensor, front: torch.Tensor | None, behind: int) -> torch.Tensor:
    """Sequences [count, tokens, heads, dim] with `front` before each and zeros behind, in one copy."""
    zeros = part.new_zeros(len(part), behind, *part.shape[2:])
    return torch.cat((part, zeros) if front is None else (front, part, zeros), dim=1)
