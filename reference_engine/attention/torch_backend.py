"""Paged attention with stock torch operators, for CPU and CUDA.

Decodes of similar context length are gathered into one padded batch and share one call of
`scaled_dot_product_attention`; the queries of one GQA group become the rows of one small matrix, because they see the
same keys (measured here at batch 8, context 208, bf16: 97 µs against 579 µs with one row per head). Each prefill chunk
is attended in query tiles so that keys after the tile are not multiplied only to be masked.
Choices and measurements: docs/decisions/reference-engine-cpu-attention.md.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention

from reference_engine.attention.base import Span, slot_mapping
from reference_engine.kv_cache.storage import KvStorage

_QUERY_TILE = 128  # rows; smaller tiles waste fewer masked keys, larger ones cost fewer calls
_MAX_PADDING = 2.0  # a decode group ends where a context is more than this factor shorter than the group's longest
_NEGLIGIBLE_PADDING_BLOCKS = 16  # contexts this close share a group whatever the factor


@dataclasses.dataclass(frozen=True, slots=True)
class DecodeGroup:
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
    """Query rows of one chunk: `rows` within the chunk, the `visible` first keys, mask [tile, visible]."""

    rows: slice
    visible: int
    mask: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class PrefillChunk:
    """One multi-token span: its rows in the flat batch, its sequence's blocks (int64 [blocks]), its query tiles."""

    rows: slice
    blocks: torch.Tensor
    tiles: tuple[PrefillTile, ...]


class TorchAttention:
    """The default backend; see the module text for how it works."""

    def __init__(self, storage: KvStorage) -> None:
        self._storage = storage
        # index_select copies whole blocks, so each layer is also seen as [num_blocks, block_elements],
        # and as [num_slots, num_kv_heads, head_dim] for writes.
        self.block_views = [
            (keys.flatten(1), values.flatten(1)) for keys, values in zip(storage.keys, storage.values, strict=True)
        ]
        self.slot_views = [
            (keys.flatten(0, 1), values.flatten(0, 1))
            for keys, values in zip(storage.keys, storage.values, strict=True)
        ]

    def begin_step(self, spans: Sequence[Span]) -> "TorchStep":
        """See `AttentionBackend.begin_step`. Sorting decodes by context length makes their groups larger."""
        storage = self._storage
        slots = torch.tensor(slot_mapping(spans, storage.block_size), device=storage.device)
        groups: list[DecodeGroup] = []
        chunks: list[PrefillChunk] = []
        row = 0
        for group in _group_spans(spans, storage.block_size):
            if group[0].length == 1:
                groups.append(_decode_group(group, row, storage))
            else:
                chunks.append(_prefill_chunk(group[0], row, storage))
            row += sum(span.length for span in group)
        return TorchStep(self, slots, groups, chunks)


class TorchStep:
    """One step of `TorchAttention`."""

    def __init__(
        self,
        backend: TorchAttention,
        slots: torch.Tensor,
        groups: Sequence[DecodeGroup],
        chunks: Sequence[PrefillChunk],
    ) -> None:
        self._backend = backend
        self._slots = slots
        self._groups = groups
        self._chunks = chunks

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See `AttentionStep.attend`."""
        slot_keys, slot_values = self._backend.slot_views[layer]
        slot_keys.index_copy_(0, self._slots, key)
        slot_values.index_copy_(0, self._slots, value)
        keys, values = self._backend.block_views[layer]
        if len(self._groups) == 1 and not self._chunks:
            return _attend_decodes(self._groups[0], query, keys, values, key.shape[1])
        output = query.new_empty(query.shape[0], query.shape[1] * query.shape[2])
        for group in self._groups:
            output[group.rows] = _attend_decodes(group, query[group.rows], keys, values, key.shape[1])
        for chunk in self._chunks:
            output[chunk.rows] = _attend_chunk(chunk, query[chunk.rows], keys, values, key.shape[1])
        return output


def _group_spans(spans: Sequence[Span], block_size: int) -> Iterator[list[Span]]:
    """Cuts the spans, in order, into groups: chunks alone, neighbouring decodes together while padding stays small."""
    group: list[Span] = []
    low = high = 0  # blocks of the group's shortest and longest context
    for span in spans:
        blocks = -(-span.end // block_size)
        grown_low, grown_high = (min(low, blocks), max(high, blocks)) if group else (blocks, blocks)
        wasteful = grown_high > _MAX_PADDING * grown_low and grown_high - grown_low > _NEGLIGIBLE_PADDING_BLOCKS
        if group and (span.length > 1 or group[0].length > 1 or wasteful):
            yield group
            group, grown_low, grown_high = [], blocks, blocks
        low, high = grown_low, grown_high
        group.append(span)
    if group:
        yield group


def _decode_group(spans: Sequence[Span], row: int, storage: KvStorage) -> DecodeGroup:
    ends = torch.tensor([span.end for span in spans])
    width = -(-int(ends.max()) // storage.block_size)
    blocks: list[int] = []
    for span in spans:
        used = span.blocks[:width]
        blocks.extend(used)
        blocks.extend([0] * (width - len(used)))
    hidden = torch.arange(width * storage.block_size) >= ends[:, None]
    mask = torch.zeros(hidden.shape, dtype=storage.dtype).masked_fill_(hidden, float("-inf"))
    return DecodeGroup(
        rows=slice(row, row + len(spans)),
        blocks=torch.tensor(blocks, device=storage.device),
        mask=mask[:, None, None, :].to(storage.device),
    )


def _prefill_chunk(span: Span, row: int, storage: KvStorage) -> PrefillChunk:
    tiles: list[PrefillTile] = []
    for first in range(0, span.length, _QUERY_TILE):
        size = min(_QUERY_TILE, span.length - first)
        visible = span.start + first + size
        hidden = torch.ones(size, visible, dtype=torch.bool).triu_(visible - size + 1)
        mask = torch.zeros(hidden.shape, dtype=storage.dtype).masked_fill_(hidden, float("-inf"))
        tiles.append(PrefillTile(slice(first, first + size), visible, mask.to(storage.device)))
    used = span.blocks[: -(-span.end // storage.block_size)]
    return PrefillChunk(slice(row, row + span.length), torch.tensor(used, device=storage.device), tuple(tiles))


def _attend_decodes(
    group: DecodeGroup, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, kv_heads: int
) -> torch.Tensor:
    """Query [batch, heads, head_dim], keys and values as block rows -> [batch, heads * head_dim]."""
    batch, heads, head_dim = query.shape
    padded = (batch, -1, kv_heads, head_dim)
    attended = scaled_dot_product_attention(
        query.view(batch, kv_heads, heads // kv_heads, head_dim),
        keys.index_select(0, group.blocks).view(padded).transpose(1, 2),
        values.index_select(0, group.blocks).view(padded).transpose(1, 2),
        attn_mask=group.mask,
    )
    return attended.reshape(batch, heads * head_dim)


def _attend_chunk(
    chunk: PrefillChunk, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, kv_heads: int
) -> torch.Tensor:
    """Query [chunk, heads, head_dim], keys and values as block rows -> [chunk, heads * head_dim]."""
    flat = (1, -1, kv_heads, query.shape[2])
    chunk_keys = keys.index_select(0, chunk.blocks).view(flat).transpose(1, 2)
    chunk_values = values.index_select(0, chunk.blocks).view(flat).transpose(1, 2)
    attended = [
        scaled_dot_product_attention(
            query[tile.rows].transpose(0, 1)[None],
            chunk_keys[:, :, : tile.visible],
            chunk_values[:, :, : tile.visible],
            attn_mask=tile.mask,
            enable_gqa=True,
        )
        for tile in chunk.tiles
    ]
    return torch.cat(attended, dim=2)[0].transpose(0, 1).flatten(1)
