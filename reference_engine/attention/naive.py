"""The twin that the fast backend is tested against: one token and one head at a time, softmax written out in float32.

Formula: softmax(q·Kᵀ / √head_dim)·V (Attention Is All You Need, arXiv 1706.03762, eq. 1), with the query heads of
one group sharing a key/value head (GQA, arXiv 2305.13245).
"""

from collections.abc import Sequence

import torch

from reference_engine.attention.base import Span, slot_mapping
from reference_engine.kv_cache.storage import KvStorage


class NaiveAttention:
    """Slow and plain; any device, any dtype, accumulates in float32."""

    def __init__(self, storage: KvStorage) -> None:
        self._storage = storage

    def begin_step(self, spans: Sequence[Span]) -> "NaiveStep":
        """See `AttentionBackend.begin_step`."""
        return NaiveStep(self._storage, spans)


class NaiveStep:
    """One step of `NaiveAttention`."""

    def __init__(self, storage: KvStorage, spans: Sequence[Span]) -> None:
        self._storage = storage
        self._spans = spans

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See `AttentionStep.attend`."""
        keys = self._storage.keys[layer].flatten(0, 1)
        values = self._storage.values[layer].flatten(0, 1)
        for row, slot in enumerate(slot_mapping(self._spans, self._storage.block_size)):
            keys[slot] = key[row]
            values[slot] = value[row]
        rows = [
            _attend_one(query[row], keys[slots].float(), values[slots].float())
            for row, slots in enumerate(self._visible_slots())
        ]
        return torch.stack(rows).flatten(1).to(query.dtype)

    def _visible_slots(self) -> list[list[int]]:
        visible: list[list[int]] = []
        for span in self._spans:
            whole = slot_mapping([Span(span.blocks, 0, span.end)], self._storage.block_size)
            visible.extend(whole[: position + 1] for position in range(span.start, span.end))
        return visible


def _attend_one(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Query [num_heads, head_dim], keys and values [context, num_kv_heads, head_dim] -> [num_heads, head_dim]."""
    group = query.shape[0] // keys.shape[1]
    outputs: list[torch.Tensor] = []
    for head in range(query.shape[0]):
        scores = keys[:, head // group] @ query[head].float() / query.shape[1] ** 0.5
        weights = torch.exp(scores - scores.max())
        outputs.append((weights / weights.sum()) @ values[:, head // group])
    return torch.stack(outputs)
