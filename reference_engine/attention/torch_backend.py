"""Paged attention with stock torch operators, for CPU and CUDA.

Decodes of similar context length are gathered into one padded batch and share one call of
`scaled_dot_product_attention`; the queries of one GQA group become the rows of one small matrix, because they see the
same keys (measured here at batch 8, context 208, bf16: 97 µs against 579 µs with one row per head). Each prefill chunk
is attended in query tiles so that keys after the tile are not multiplied only to be masked.
Choices and measurements: docs/decisions/reference-engine-cpu-attention.md.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from bakeoff.reference_engine.attention.base import Span, seen_blocks, slot_mapping
from bakeoff.reference_engine.kernels.scoring import PLAIN, Scoring
from bakeoff.reference_engine.kv_cache.block_table import Visible
from bakeoff.reference_engine.kv_cache.storage import KvStorage

_QUERY_TILE = 128  # rows; smaller tiles waste fewer masked keys, larger ones cost fewer calls
_MAX_PADDING = 2.0  # a decode group ends where a context is more than this factor shorter than the group's longest
_GROUP_DIM = 2  # of queries: heads that share keys
_NEGLIGIBLE_PADDING_BLOCKS = 16  # contexts this close share a group whatever the factor


@dataclasses.dataclass(frozen=True, slots=True)
class DecodeBatch:
    """Consecutive one-token spans that share a padded batch.

    Attributes:
        rows: their rows in the flat token batch.
        blocks: int64 [batch * blocks_per_sequence], padded with block 0.
        mask: [batch, 1, 1, padded_context], 0 where visible and -inf where not.
    """

    rows: slice
    blocks: torch.Tensor
    mask: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class PrefillTile:
    """Query rows of one chunk: `rows` within the chunk, the keys [first, stop) of it, mask [tile, stop - first]."""

    rows: slice
    keys: slice
    mask: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class PrefillChunk:
    """One multi-token span: its rows in the flat batch, the blocks it sees (int64 [blocks]), its query tiles."""

    rows: slice
    blocks: torch.Tensor
    tiles: tuple[PrefillTile, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class GroupStep:
    """Inputs that all layers of a group share in one step; slots: int64 [num_tokens]."""

    slots: torch.Tensor
    batches: tuple[DecodeBatch, ...]
    chunks: tuple[PrefillChunk, ...]


class _Weighing(NamedTuple):
    """From products of queries and keys to weights, where stock operators do not compute that.

    Attributes:
        scoring: of the layer.
        sinks: of its group, see `Visible`; they are the first keys.
    """

    scoring: Scoring
    sinks: int

    def attend(
        self, queries: Sequence[torch.Tensor], keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Attention in float32.

        Args:
            queries: [batch, kv_heads, group, ..., key_dim]; a second one towards sinks, if they are others.
            keys: [..., seen, key_dim].
            values: [..., seen, value_dim].
            mask: broadcasts to products of queries and keys.

        Returns:
            [..., value_dim], in the dtype of the queries.
        """
        factor, turned = self.scoring.factor(keys.shape[-1]), keys.float().transpose(-1, -2)
        scores = (queries[0].float() * factor) @ turned
        for query in queries[1:]:
            scores[..., : self.sinks] = (query.float() * factor) @ turned[..., : self.sinks]
        return (self.scoring.weights(scores, mask, _GROUP_DIM) @ values.float()).to(queries[0].dtype)


class TorchAttention:
    """The default backend; see the module text for how it works."""

    def __init__(self, storage: KvStorage) -> None:
        self._storage = storage

    def begin_step(self, spans: Sequence[Span]) -> "TorchStep":
        """Sorting decodes by context length makes their batches larger."""
        visible = self._storage.layout.groups
        return TorchStep(self._storage, [_group_step(spans, i, sees, self._storage) for i, sees in enumerate(visible)])


class TorchStep:
    """One step of `TorchAttention`."""

    def __init__(self, storage: KvStorage, groups: Sequence[GroupStep]) -> None:
        self._stores = storage.stores
        self._group_of = storage.group_of
        self._sinks = [visible.sinks for visible in storage.layout.groups]
        self._groups = groups

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
        group, store = self._groups[self._group_of[layer]], self._stores[layer]
        if key is not None:
            store.write(group.slots, key, value)
        queries = [query] if towards_sinks is None else [query, towards_sinks]
        how = _Weighing(scoring, self._sinks[self._group_of[layer]])
        outputs = [
            *(
                _attend_decodes([part[batch.rows] for part in queries], *store.read(batch.blocks), batch.mask, how)
                for batch in group.batches
            ),
            *(
                _attend_chunk(chunk, [part[chunk.rows] for part in queries], *store.read(chunk.blocks), how)
                for chunk in group.chunks
            ),
        ]
        if len(outputs) == 1:
            return outputs[0]
        whole = query.new_empty(query.shape[0], outputs[0].shape[1])
        for part, output in zip((*group.batches, *group.chunks), outputs, strict=True):
            whole[part.rows] = output
        return whole


def _group_step(spans: Sequence[Span], group: int, visible: Visible, storage: KvStorage) -> GroupStep:
    slots = torch.tensor(slot_mapping(spans, storage.block_size, group), device=storage.device)
    batches: list[DecodeBatch] = []
    chunks: list[PrefillChunk] = []
    row = 0
    for together in _batches(spans, storage.block_size):
        if together[0].length == 1:
            batches.append(_decode_batch(together, row, group, visible, storage))
        else:
            chunks.append(_prefill_chunk(together[0], row, group, visible, storage))
        row += sum(span.length for span in together)
    return GroupStep(slots, tuple(batches), tuple(chunks))


def _batches(spans: Sequence[Span], block_size: int) -> Iterator[list[Span]]:
    """Cuts the spans, in order, into batches: chunks alone, neighbouring decodes together while padding stays small."""
    batch: list[Span] = []
    low = high = 0  # blocks of the batch's shortest and longest context
    for span in spans:
        blocks = -(-span.end // block_size)
        grown_low, grown_high = (min(low, blocks), max(high, blocks)) if batch else (blocks, blocks)
        wasteful = grown_high > _MAX_PADDING * grown_low and grown_high - grown_low > _NEGLIGIBLE_PADDING_BLOCKS
        if batch and (span.length > 1 or batch[0].length > 1 or wasteful):
            yield batch
            batch, grown_low, grown_high = [], blocks, blocks
        low, high = grown_low, grown_high
        batch.append(span)
    if batch:
        yield batch


def _decode_batch(spans: Sequence[Span], row: int, group: int, visible: Visible, storage: KvStorage) -> DecodeBatch:
    size = storage.block_size
    visible_blocks = [seen_blocks(span, visible, size) for span in spans]
    width = max(map(len, visible_blocks))
    blocks: list[int] = []
    for span, places in zip(spans, visible_blocks, strict=True):
        table = span.tables[group]
        blocks.extend(table[: len(places)] if len(places) == places[-1] + 1 else [table[i] for i in places])
        blocks.extend([0] * (width - len(places)))
    newest = torch.tensor([span.start for span in spans])[:, None]
    if visible.window is None:
        hidden = torch.arange(width * size) > newest
    else:
        after = max(span.end for span in spans)  # where padding is: out of sight
        firsts = torch.tensor(
            [[i * size for i in places] + [after] * (width - len(places)) for places in visible_blocks]
        )
        hidden = _hidden((firsts[:, :, None] + torch.arange(size)).flatten(1), newest, visible)
    return DecodeBatch(
        rows=slice(row, row + len(spans)),
        blocks=torch.tensor(blocks, device=storage.device),
        mask=_mask(hidden, storage)[:, None, None, :],
    )


def _prefill_chunk(span: Span, row: int, group: int, visible: Visible, storage: KvStorage) -> PrefillChunk:
    size, table = storage.block_size, span.tables[group]
    visible_blocks = seen_blocks(span, visible, size)
    positions = (torch.tensor(visible_blocks)[:, None] * size + torch.arange(size)).flatten()
    tiles: list[PrefillTile] = []
    for first in range(0, span.length, _QUERY_TILE):
        queries = torch.arange(span.start + first, span.start + min(first + _QUERY_TILE, span.length))
        stop = int((positions <= queries[-1]).sum())
        hidden = _hidden(positions[:stop], queries[:, None], visible)
        # Keys before the window of the tile's first query matter only as sinks.
        start = 0 if visible.sinks or visible.window is None else int((~hidden).any(dim=0).int().argmax())
        rows = slice(first, first + len(queries))
        tiles.append(PrefillTile(rows, slice(start, stop), _mask(hidden[:, start:], storage)))
    blocks = torch.tensor([table[i] for i in visible_blocks], device=storage.device)
    return PrefillChunk(slice(row, row + span.length), blocks, tuple(tiles))


def _hidden(keys: torch.Tensor, queries: torch.Tensor, visible: Visible) -> torch.Tensor:
    """Whether each of the positions `keys` is invisible to tokens at the positions `queries`, which broadcast."""
    hidden = keys > queries
    if visible.window is not None:
        hidden |= (keys <= queries - visible.window) & (keys >= visible.sinks)
    return hidden


def _mask(hidden: torch.Tensor, storage: KvStorage) -> torch.Tensor:
    return torch.zeros(hidden.shape, dtype=storage.dtype).masked_fill_(hidden, float("-inf")).to(storage.device)


def _attend_decodes(
    queries: Sequence[torch.Tensor], keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, how: _Weighing
) -> torch.Tensor:
    """One-token attention.

    Args:
        queries: [batch, heads, key_dim]; a second one towards sinks, if they are others.
        keys: [batch * context, kv_heads, dim].
        values: the same.
        mask: see `DecodeBatch`.
        how: from products to weights.

    Returns:
        [batch, heads * value_dim].
    """
    batch, heads, _ = queries[0].shape
    kv_heads = keys.shape[1]
    queries = [query.view(batch, kv_heads, heads // kv_heads, -1) for query in queries]
    keys = keys.unflatten(0, (batch, -1)).transpose(1, 2)
    values = values.unflatten(0, (batch, -1)).transpose(1, 2)
    if how.scoring.is_plain and len(queries) == 1:
        attended = scaled_dot_product_attention(queries[0], keys, values, attn_mask=mask, scale=how.scoring.scale)
    else:
        attended = how.attend(queries, keys, values, mask)
    return attended.reshape(batch, -1)


def _attend_chunk(
    chunk: PrefillChunk, queries: Sequence[torch.Tensor], keys: torch.Tensor, values: torch.Tensor, how: _Weighing
) -> torch.Tensor:
    """Attention of a chunk to its sequence.

    Args:
        chunk: which tokens these are.
        queries: [chunk, heads, key_dim]; a second one towards sinks, if they are others.
        keys: [context, kv_heads, dim].
        values: the same.
        how: from products to weights.

    Returns:
        [chunk, heads * value_dim].
    """
    keys, values = keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
    if len(queries) > 1 or not how.scoring.is_plain:
        # Dimensions: 1, heads of keys, heads that share them, tokens, elements.
        grouped = [query.unflatten(1, (keys.shape[1], -1)).permute(1, 2, 0, 3)[None] for query in queries]
        parts = [
            how.attend(
                [group[..., tile.rows, :] for group in grouped],
                keys[:, :, None, tile.keys],
                values[:, :, None, tile.keys],
                tile.mask,
            )
            for tile in chunk.tiles
        ]
        return torch.cat(parts, dim=-2)[0].permute(2, 0, 1, 3).flatten(1)
    query = queries[0]
    attended = [
        scaled_dot_product_attention(
            query[tile.rows].transpose(0, 1)[None],
            keys[:, :, tile.keys],
            values[:, :, tile.keys],
            attn_mask=tile.mask,
            enable_gqa=True,
            scale=how.scoring.scale,
        )
        for tile in chunk.tiles
    ]
    return torch.cat(attended, dim=2)[0].transpose(0, 1).flatten(1)
